"""The tables and files that ship with moebox; `core.catalogue` has the tables as core types."""

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@functools.cache
def load_table(name: str) -> Mapping[str, Any]:
    """Read `moebox/data/NAME.toml`."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
