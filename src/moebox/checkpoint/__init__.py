"""A catalogue name, a folder with config.json, or a GGUF file as a Model and its checkpoints; headers only."""

from dataclasses import replace
from pathlib import Path

from moebox import codec
from moebox.core import catalogue
from moebox.core.model import Checkpoint, Model
from moebox.errors import BadInput


def resolve(name: str) -> tuple[Model, tuple[Checkpoint, ...]]:
    """The model called `name`, or at the path `name`, with the forms it is known in."""
    path = Path(name)
    if path.suffix == ".gguf" or path.is_file():
        return from_file(path)
    if path.is_dir():
        return from_folder(path)
    if name.startswith(("/", "./", "../", "~")):
        raise BadInput(f"{name}: no such file or folder")
    model = catalogue.model(name)
    return model, catalogue.checkpoints(model.name)


def from_file(path: Path) -> tuple[Model, tuple[Checkpoint, ...]]:
    """A GGUF file, or a bare config.json."""
    if path.suffix == ".json":
        return _from_config(path, path.parent.name if path.name == "config.json" else path.stem)
    from moebox.checkpoint import gguf_model

    model, found = gguf_model.read(path)
    return model, (found,)


def from_folder(folder: Path) -> tuple[Model, tuple[Checkpoint, ...]]:
    """A Hugging Face folder, or a folder of GGUF files."""
    config = folder / "config.json"
    if not config.is_file():
        files = sorted(folder.glob("*.gguf"))
        if files:
            return from_file(files[0])
        raise BadInput(f"{folder}: has neither config.json nor a .gguf file")
    model, (computed,) = _from_config(config, folder.name)
    from moebox.checkpoint import safetensors

    files = safetensors.shards(folder)
    if not files:
        return model, (computed,)
    sizes = safetensors.read_sizes(files, model.layers)
    read = replace(
        computed,
        path=str(folder),
        bytes_by_component=dict(sizes.by_component),
        layer_bytes=tuple(sizes.by_layer),
        expert_layer_bytes=sizes.by_component["routed_experts"] // max(model.moe_layers, 1),
        shards=len(files),
        how="read",
        source=str(folder),
    )
    return model, (read,)


def _from_config(path: Path, name: str) -> tuple[Model, tuple[Checkpoint, ...]]:
    from moebox.checkpoint.config import model_of
    from moebox.checkpoint.quantized import checkpoint_from_config

    config = codec.load_json(path)
    model = model_of(config, name=name, where=str(path))
    return model, (checkpoint_from_config(model, config, name, path.parent),)
