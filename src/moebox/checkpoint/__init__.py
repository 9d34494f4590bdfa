"""Resolve a catalogue name, a folder with config.json or a GGUF file to a Model and its checkpoints.

Only headers of weights are read.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from moebox.core import catalogue, registry, validation
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, UnknownName, Unsupported, refuse_if, suggest_path

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
    try:
        model = catalogue.find_model(name)
    except UnknownName:
        if "/" not in name:
            raise
        from moebox.checkpoint.remote import look_up_repository

        found = look_up_repository(name)
        if found is None:
            raise
        return found
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
    exists = _path_exists(recipe.checkpoint)
    model, checkpoint = (None, None) if exists and is_weights_path(recipe.checkpoint) else _find_published(recipe)
    if not exists or model is not None:
        return Deployment.from_parts(recipe, model, checkpoint, box)
    validation.validate_recipe(recipe)  # before a file that it names is opened
    try:
        found = read_weights(recipe.checkpoint)
    except Unsupported:
        found = None
    if found is None:
        return Deployment.from_parts(recipe, None, None, box)
    checkpoint = replace(found.checkpoints[0], path=recipe.checkpoint)
    return Deployment.from_parts(recipe, found.model, checkpoint, box, notes=found.notes)


def _find_published(recipe: Recipe) -> tuple[Model | None, Checkpoint | None]:
    """Find model and checkpoint in the catalogue, by name, alias or repository in any case."""
    name = recipe.checkpoint
    try:
        model = catalogue.find_model(recipe.model)
    except UnknownName:
        if kept := _find_read(recipe):  # quicker than all rows of the catalogue
            return kept
        for model in catalogue.models().values():
            checkpoints = catalogue.published_checkpoints(model.name)
            if any(each.repo and name.lower().partition(":")[0] == each.repo.lower() for each in checkpoints):
                return model, _find_checkpoint(name, checkpoints)
        return None, None
    checkpoints = _readable_first(recipe, catalogue.published_checkpoints(model.name))
    found = _find_checkpoint(name, checkpoints)
    if found is None and (kept := _find_read(recipe)):
        return kept
    if found or not is_weights_path(name):
        return model, found
    # A path on another machine: the checkpoint whose quantisation the path names, for a folder else the native one.
    is_gguf = name.endswith(".gguf")
    alike = [each for each in checkpoints if (each.format == "gguf") == is_gguf]
    named = [each for each in alike if each.quant.lower() in name.lower()]
    native = [each for each in alike if each.native and not is_gguf]
    found = next(iter([*named, *native]), None)
    return model, replace(found, path=name) if found else None


def _find_read(recipe: Recipe) -> tuple[Model, Checkpoint] | None:
    """Find a checkpoint that was read from the Hub."""
    if "/" not in recipe.checkpoint or is_weights_path(recipe.checkpoint):
        return None
    from moebox.checkpoint.remote import find_kept_checkpoint

    return find_kept_checkpoint(recipe.checkpoint, str(recipe.flags.get("revision", "")))


def _find_checkpoint(name: str, checkpoints: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """Find a checkpoint by its name, REPOSITORY:NAME, or its repository if that contains no other."""
    wanted = name.lower()
    exact = [each for each in checkpoints if wanted in (each.name.lower(), f"{each.repo}:{each.name}".lower())]
    inside = [each for each in checkpoints if each.repo.lower() == wanted]
    return next(iter(exact or (inside if len(inside) == 1 else [])), None)


def planned_checkpoint(recipe: Recipe, checkpoints: tuple[Checkpoint, ...]) -> Checkpoint:
    """The checkpoint of `checkpoints` that a recipe planned from them names."""
    named = recipe.checkpoint
    return next(each for each in _readable_first(recipe, checkpoints) if named in (each.name, each.repo, each.path))


def _readable_first(recipe: Recipe, checkpoints: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Put the engine's own format first: checkpoints of both formats may share a name (gpt-oss mxfp4)."""
    formats = registry.engine_traits(recipe.engine).formats
    return tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.format not in formats))
