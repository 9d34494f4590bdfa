"""What every command shares: the consoles, JSON on stdout, and names turned into facts."""

import functools
import sys
from typing import TYPE_CHECKING, Any

from moebox import codec

if TYPE_CHECKING:
    from rich.console import Console


def emit(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(codec.to_json(document) + "\n")


@functools.cache
def people() -> "Console":
    """Where results for people go: stdout."""
    from rich.console import Console

    return Console(highlight=False)


@functools.cache
def talk() -> "Console":
    """Where progress and remarks go: stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
