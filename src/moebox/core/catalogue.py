"""The tables that ship with moebox, as the core types.

Adding a GPU, a model or a checkpoint is a change to a TOML file in `moebox/data`, never to code.
"""

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

from moebox import codec
from moebox.core.box import Gpu
from moebox.core.model import Checkpoint, Model
from moebox.data import FOLDER
from moebox.errors import UnknownName


@functools.cache
def load_table(name: str) -> Mapping[str, Any]:
    """`moebox/data/NAME.toml` as plain dicts."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Every GPU in the catalogue by name."""
    rows = load_table("gpus")["gpu"]
    return {row["name"]: codec.decode(Gpu, row, where=f"gpus.toml [{row['name']}]") for row in rows}


@functools.cache
def models() -> dict[str, Model]:
    """Every model in the catalogue by name."""
    rows = load_table("models")["model"]
    return {row["name"]: codec.decode(Model, row, where=f"models.toml [{row['name']}]") for row in rows}


def find_gpu(name: str) -> Gpu:
    """The GPU called `name`."""
    found = gpus().get(name)
    if found is None:
        raise UnknownName("GPU", name, gpus())
    return found


def find_model(name: str) -> Model:
    """The model called `name`, by its name or an alias."""
    wanted = name.lower()
    for known in models().values():
        if wanted in (known.name, *known.aliases, known.repo.lower()):
            return known
    raise UnknownName("model", name, models())


@functools.cache
def published_checkpoints(model_name: str) -> tuple[Checkpoint, ...]:
    """The published forms of a model."""
    from moebox.core.quant import CheckpointRow, checkpoint_from_row

    rows = [row for row in load_table("checkpoints")["checkpoint"] if model_name in row["models"]]
    decoded = [codec.decode(CheckpointRow, row, where=f"checkpoints.toml [{row['name']}]") for row in rows]
    return tuple(checkpoint_from_row(find_model(model_name), row) for row in decoded)


def find_checkpoint(model_name: str, name: str) -> Checkpoint:
    """One published form of a model, by its name or repository."""
    known = published_checkpoints(model_name)
    for form in known:
        if name.lower() in (form.name.lower(), form.repo.lower()):
            return form
    raise UnknownName(f"checkpoint of {model_name}", name, [form.name for form in known])
