"""A catalogue name, a folder with config.json, or a GGUF file as a Model and its checkpoints; headers only."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec
from moebox.checkpoint.recognise import WeightHints, recognise_model, slugify
from moebox.core import catalogue, grammar, registry
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, UnknownName, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model, the forms it is known in, and how it was recognised, where that is not plain."""

    model: Model
    checkpoints: tuple[Checkpoint, ...]
    notes: tuple[str, ...] = ()


def resolve_model(name: str) -> tuple[Model, tuple[Checkpoint, ...]]:
    """The model called `name`, or at the path `name`, with the forms it is known in."""
    found = look_up_model(name)
    return found.model, found.checkpoints


def look_up_model(name: str) -> ResolvedModel:
    """The same with notes."""
    if not _is_there(Path(name)):
        return _named(name)
    path = Path(name).expanduser()
    if not path.is_file() and not path.is_dir():
        raise BadInput(f"{name}: is a pipe or a device, not a file or folder")
    if name in catalogue.models() and _empty(path):
        note = f"the folder {name} holds no model, so the catalogue's {name} is meant; ./{name} means the folder"
        return replace(_named(name), notes=(note,))
    return model_from_file(path) if path.is_file() else model_from_folder(path)


def _empty(path: Path) -> bool:
    """A folder without a model, such as one that weights are to come into."""
    return path.is_dir() and not (path / "config.json").is_file() and not any(path.glob("*.gguf"))


def _is_there(path: Path) -> bool:
    """Whether there is anything; a name that no file system takes is none, and a ~ of nobody neither."""
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def _named(name: str) -> ResolvedModel:
    if is_weights_path(name):
        raise BadInput(f"{name}: no such file or folder")
    model = catalogue.find_model(name)
    return ResolvedModel(model=model, checkpoints=catalogue.published_checkpoints(model.name))


def is_weights_path(name: str) -> bool:
    """Whether a checkpoint's name can only be a path."""
    return name.startswith(("/", "./", "../", "~")) or name.endswith(".gguf")


def deploy(recipe: Recipe, box: Box | None = None) -> Deployment:
    """The one place where a recipe becomes a model, a checkpoint and an engine.

    Weights on disk are read; otherwise the catalogue is asked for the recipe's model and its checkpoint. Weights that
    nobody knows can still be launched: see Deployment.
    """
    if _is_there(Path(recipe.checkpoint)) and (is_weights_path(recipe.checkpoint) or not _published(recipe)):
        grammar.validate_recipe(recipe)  # nothing of a recipe is opened that may not be named in one
        try:
            found = look_up_model(recipe.checkpoint)
        except Unsupported:
            return Deployment.from_parts(recipe, None, None, box)
        return Deployment.from_parts(
            recipe, found.model, _absolute(found.checkpoints[0], recipe), box, notes=found.notes
        )
    pair = _published(recipe)
    return Deployment.from_parts(recipe, *pair, box) if pair else Deployment.from_parts(recipe, None, None, box)


def _absolute(checkpoint: Checkpoint, recipe: Recipe) -> Checkpoint:
    """The checkpoint under the path that the recipe gives it."""
    return replace(checkpoint, path=recipe.checkpoint)


def _published(recipe: Recipe) -> tuple[Model, Checkpoint | None] | None:
    """The catalogue's model and form of a recipe, by name, alias or repository in any case."""
    try:
        model = catalogue.find_model(recipe.model)
    except UnknownName:
        return _by_repository(recipe.checkpoint)
    forms = _readable_first(recipe, catalogue.published_checkpoints(model.name))
    return model, _form(recipe.checkpoint, forms) or _elsewhere(recipe, forms)


def planned_checkpoint(recipe: Recipe, checkpoints: tuple[Checkpoint, ...]) -> Checkpoint:
    """The one of `forms` that a recipe planned from them names."""
    named = recipe.checkpoint
    return next(form for form in _readable_first(recipe, checkpoints) if named in (form.name, form.repo, form.path))


def _readable_first(recipe: Recipe, forms: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
    """Forms of different formats may share a name (gpt-oss comes in mxfp4 as both): the engine's own come first."""
    reads = registry.engine_traits(recipe.engine).formats
    return tuple(sorted(forms, key=lambda form: form.format not in reads))


def _by_repository(name: str) -> tuple[Model, Checkpoint | None] | None:
    """The model of which `name` is a form's repository."""
    for model in catalogue.models().values():
        forms = catalogue.published_checkpoints(model.name)
        if any(form.repo and name.lower().partition(":")[0] == form.repo.lower() for form in forms):
            return model, _form(name, forms)
    return None


def _form(name: str, forms: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """The form called `name`: by its own name, its repository where that holds no other, or REPOSITORY:NAME."""
    wanted = name.lower()
    exact = [form for form in forms if wanted in (form.name.lower(), f"{form.repo}:{form.name}".lower())]
    inside = [form for form in forms if form.repo.lower() == wanted]
    return next(iter(exact or (inside if len(inside) == 1 else [])), None)


def _elsewhere(recipe: Recipe, forms: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """Weights at a path of another machine: the form that the path's name tells, or the published one."""
    path = recipe.checkpoint
    form = _by_path(path, forms) if is_weights_path(path) else None
    return replace(form, path=path) if form else None


def _by_path(path: str, forms: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """The form whose quantisation the path names; a folder that names none is taken for the published one."""
    gguf = path.endswith(".gguf")
    alike = [form for form in forms if (form.format == "gguf") == gguf]
    named = next((form for form in alike if form.quant.lower() in path.lower()), None)
    return named or next((form for form in alike if form.native and not gguf), None)


def model_from_file(path: Path) -> ResolvedModel:
    """A GGUF file, or a bare config.json."""
    if path.suffix == ".json":
        model, computed = _from_config(path, path.parent.name if path.name == "config.json" else path.stem)
        return _known(model, computed, WeightHints(names=_names(path.parent), template=_template(path.parent)))
    from moebox.checkpoint import gguf_model

    read, found, template = gguf_model.read_gguf_model(path)
    return _known(read, found, WeightHints(names=(read.name, *_names(path)), template=template))


def model_from_folder(folder: Path) -> ResolvedModel:
    """A Hugging Face folder, or a folder of GGUF files."""
    config = folder / "config.json"
    if not config.is_file():
        files = sorted(folder.glob("*.gguf"))
        if files:
            return model_from_file(files[0])
        hint = "name the folder that the weights lie in, or a model of `moebox models`"
        raise BadInput(f"{folder}: has neither config.json nor a .gguf file", hint=hint)
    from moebox.checkpoint import safetensors
    from moebox.checkpoint.agreement import check_agreement

    files = safetensors.shard_files(folder)
    model, computed = _from_config(config, folder.name)
    hints = WeightHints(names=_names(folder), template=_template(folder))
    if not files:
        found = _known(model, replace(computed, path=_full(folder)), hints)
        bare = f"{folder} holds no weights: bytes are computed from config.json; `moebox up` needs them downloaded"
        return replace(found, notes=(*found.notes, bare))
    sizes = safetensors.read_sizes(files, model.layers)
    check_agreement(folder, model, sizes.by_layer, sizes.shapes)
    read = replace(
        computed,
        path=_full(folder),
        bytes_by_component=dict(sizes.by_component),
        layer_bytes=tuple(sizes.by_layer),
        expert_layer_bytes=sizes.by_component["routed_experts"] // max(model.moe_layers, 1),
        shards=len(files),
        how="read",
        source=str(folder),
    )
    return _known(model, read, hints)


def _known(model: Model, checkpoint: Checkpoint, hints: WeightHints) -> ResolvedModel:
    """What was read, as the model it is."""
    found, note = recognise_model(model, replace(hints, quant=checkpoint.quant))
    notes = (note,) if note else ()
    return ResolvedModel(model=found, checkpoints=(replace(checkpoint, model=found.name),), notes=notes)


def _full(path: Path) -> str:
    """The absolute path, links kept: in a Hub cache they carry the shards' names."""
    return os.path.abspath(path)


def _names(path: Path) -> tuple[str, ...]:
    """Names the weights go by: their own, their folder's, and the repository's in a Hub cache."""
    return tuple(part for part in Path(_full(path)).parts[-5:] if len(part) > 1)


def _template(folder: Path) -> str:
    """The chat template beside the weights."""
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        file = folder / name
        if file.is_file():
            return codec.read_text(file)
    return ""


def _from_config(path: Path, name: str) -> tuple[Model, Checkpoint]:
    from moebox.checkpoint.config import model_from_config
    from moebox.checkpoint.quantized import checkpoint_from_config

    config = codec.load_json(path)
    model = replace(model_from_config(config, name=name, where=str(path)), name=slugify(name))
    return model, checkpoint_from_config(model, config, name, path.parent)
