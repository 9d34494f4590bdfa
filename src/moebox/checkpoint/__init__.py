"""Resolve a catalogue name, a folder with config.json or a GGUF file to a Model and its checkpoints.

Only headers of weights are read.
"""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from moebox.core import catalogue, registry, validation
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.engine_source import parse_image
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, Unsupported, refuse_if, suggest_path

FORMATS_SEEN = "formats seen on the Hub"  # a plan adds to this note which one it uses


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model, its known checkpoints, and how it was recognised if that needs an explanation."""

    model: Model
    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...] = ()


def resolve_model(name: str) -> tuple[Model, tuple[Checkpoint, ...]]:
    """Return the model with this name or path, and its known checkpoints."""
    found = look_up_model(name)
    return found.model, found.checkpoints


def look_up_model(name: str) -> ResolvedModel:
    """Return the model with this name or path, with notes."""
    refuse_if(not name, "the name of the model is empty", hint="`moebox models` lists them")
    if name.startswith(("https:", "http:", "hf.co/", "huggingface.co/")):
        from moebox.hub.names import parse_repo_name

        name = str(parse_repo_name(name) or name)
    notes: tuple[str, ...] = ()
    if _path_exists(name):
        if found := read_weights(name):
            return found
        notes = (f"the folder {name} contains no model, so the catalogue's {name} is used; ./{name} means the folder",)
    elif is_weights_path(name):
        raise BadInput(f"{name}: no such file or folder", hint=suggest_path(name) or "a folder or a .gguf file")
    if "/" in name and catalogue.get_model(name) is None:
        from moebox.checkpoint.remote import look_up_repository

        if found := look_up_repository(name):
            return found
    model = catalogue.find_model(name)
    return ResolvedModel(model=model, checkpoints=catalogue.published_checkpoints(model.name), notes=notes)


def read_weights(name: str) -> ResolvedModel | None:
    """Read a file or folder that exists; None if it is a folder without weights that is called like a known model."""
    from moebox.checkpoint.disk import model_from_file, model_from_folder

    path = Path(name).expanduser()
    if path.suffix == ".toml":
        raise BadInput(f"{name}: is a TOML file, not a model", hint="`moebox up` takes recipes, --box box files")
    if path.is_file():
        return model_from_file(path)
    refuse_if(not path.is_dir(), f"{name}: is a pipe or a device, not a file or folder")
    has_model = (path / "config.json").is_file() or any(path.glob("*.gguf"))
    return model_from_folder(path) if has_model or name not in catalogue.models() else None


def _path_exists(name: str) -> bool:
    """False also for names that are not valid paths, such as ~ of an unknown user."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def is_weights_path(name: str) -> bool:
    """True if a checkpoint's name can only be a path."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith(".gguf")


def deploy(recipe: Recipe, box: Box | None = None) -> Deployment:
    """Resolve a recipe to its model, checkpoint and engine; the only place that does.

    Weights on disk are read, others are looked up in the catalogue. Unknown weights can still be launched: see
    Deployment.
    """
    if recipe.runtime.image and not recipe.engine_version and recipe.runtime.kind in ("docker", "podman"):
        with contextlib.suppress(BadInput):  # of an image that the engine does not publish, the version is not known
            source = parse_image(recipe.runtime.image)
            recipe = replace(recipe, engine_version=source.version if source.engine == recipe.engine else "")
    exists = _path_exists(recipe.checkpoint)
    model, checkpoint = (None, None) if exists and is_weights_path(recipe.checkpoint) else _find_published(recipe)
    notes: tuple[str, ...] = ()
    if exists and model is None:
        validation.validate_recipe(recipe)  # before a file that it names is opened
        with contextlib.suppress(Unsupported):
            if found := read_weights(recipe.checkpoint):
                model, notes = found.model, found.notes
                checkpoint = replace(found.checkpoints[0], path=recipe.checkpoint)
    return Deployment(recipe, model, checkpoint, box, notes=notes)


def _find_published(recipe: Recipe) -> tuple[Model | None, Checkpoint | None]:
    """Find model and checkpoint in the catalogue by name, alias or repository, or among those read from the Hub."""
    name, model = recipe.checkpoint, catalogue.get_model(recipe.model)
    checkpoints = _readable_first(recipe.engine, catalogue.published_checkpoints(model.name)) if model else ()
    found = _find_checkpoint(name, checkpoints)
    if found is None and "/" in name and not is_weights_path(name):  # quicker than all rows of the catalogue
        from moebox.checkpoint.remote import find_kept_checkpoint

        if kept := find_kept_checkpoint(name, str(recipe.flags.get("revision", ""))):
            return kept
    if model is None:
        for each in catalogue.models().values():
            checkpoints = catalogue.published_checkpoints(each.name)
            if any(row.repo and name.lower().partition(":")[0] == row.repo.lower() for row in checkpoints):
                return each, _find_checkpoint(name, checkpoints)
        return None, None
    if found or not is_weights_path(name):
        return model, found
    # A path on another machine: the checkpoint whose quantisation the path names, for a folder else the native one.
    is_gguf = name.endswith(".gguf")
    alike = [each for each in checkpoints if (each.format == "gguf") == is_gguf]
    named = [each for each in alike if each.quant.lower() in name.lower()]
    native = [each for each in alike if each.native and not is_gguf]
    found = next(iter([*named, *native]), None)
    return model, replace(found, path=name) if found else None


def _find_checkpoint(name: str, checkpoints: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """Find a checkpoint by its name, REPOSITORY:NAME, or its repository if that contains no other."""
    wanted = name.lower()
    exact = [each for each in checkpoints if wanted in (each.name.lower(), f"{each.repo}:{each.name}".lower())]
    inside = [each for each in checkpoints if each.repo.lower() == wanted]
    return next(iter(exact or (inside if len(inside) == 1 else [])), None)


def planned_checkpoint(recipe: Recipe, checkpoints: tuple[Checkpoint, ...]) -> Checkpoint:
    """The checkpoint of `checkpoints` that a recipe planned from them names."""
    readable = _readable_first(recipe.engine, checkpoints)
    return next(each for each in readable if recipe.checkpoint in (each.name, each.repo, each.path))


def _readable_first(engine: str, checkpoints: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Put the engine's own format first: checkpoints of both formats may share a name (gpt-oss mxfp4)."""
    formats = registry.engine_traits(engine).formats
    return tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.format not in formats))
