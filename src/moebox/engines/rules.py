"""Whether a recipe can be meant: fields against each other, and every flag against the engine's catalogue."""

from moebox.core import grammar, presets, registry
from moebox.core.catalogue import models
from moebox.core.change import get_setting
from moebox.core.deployment import Deployment
from moebox.core.model import Model
from moebox.core.recipe import Hybrid, Recipe, Speculate
from moebox.core.traits import LAST_PORT, Traits
from moebox.engines import flags, modules
from moebox.engines.arguments import canonical_name, flag_arguments, full_flag_name
from moebox.engines.assemble import runs_in_container
from moebox.engines.flags import flag_catalogue
from moebox.engines.retired import replacement
from moebox.errors import BadInput, refuse_if

LEAST = {"context": 0, "max_seqs": 1, "batched_tokens": 1} | dict.fromkeys(
    ("parallel.tp", "parallel.pp", "parallel.dcp", "parallel.dp", "parallel.nodes"), 1
)


def check_recipe(deployment: Deployment) -> None:
    """Raise BadInput naming the first setting that cannot be."""
    recipe = deployment.recipe
    grammar.validate_recipe(recipe)
    _ranges(recipe, deployment.engine)
    _runtime(recipe, deployment.engine)
    _belongs(recipe, deployment.engine)
    _trust(recipe, deployment.known_model)
    _flags(deployment)


def _ranges(recipe: Recipe, engine: Traits) -> None:
    spread, share = recipe.parallel, recipe.memory_utilization
    for path, least in LEAST.items():
        value = get_setting(recipe, path)
        refuse_if(value is not None and value < least, f"{path}: {value} is less than {least}")
    refuse_if(share is not None and not 0 < share <= 1, f"memory_utilization: {share} is not a share between 0 and 1")
    _port(recipe.listen.port, engine)
    uneven = spread.gpu_count % spread.nodes and not engine.uses_all_gpus
    refuse_if(uneven, f"parallel.nodes: {spread.gpu_count} GPUs do not divide over {spread.nodes} nodes")
    text = f"kv: {recipe.engine} has no cache type {recipe.kv!r}"
    refuse_if(recipe.kv not in engine.kv, text, hint=f"use {', '.join(engine.kv)}")


def _port(port: int, engine: Traits) -> None:
    others = " and ".join(f"{other:,}" for other in engine.ports_used(port)[1:])
    text = f"listen.port: {engine.title} on {port} also listens on {others}, and ports end at {LAST_PORT:,}"
    refuse_if(port > engine.last_port, text, hint=f"{engine.last_port} or less")


def _runtime(recipe: Recipe, engine: Traits) -> None:
    """How it is started: natively, embedded or in a container."""
    runtime, inside = recipe.runtime, runs_in_container(recipe)
    strange = runtime.kind == "embedded" and not engine.embedded
    refuse_if(strange, f"runtime.kind: only {_titles('embedded')} runs embedded, not {engine.title}")
    if runtime.preset:
        _preset(runtime.preset, engine, inside=inside)
    known = runtime.image or runtime.preset or engine.image
    text = f"runtime.kind: no image of {engine.title} is known"
    refuse_if(inside and not known, text, hint="name one in runtime.image")
    for path in ("setup", "options", "mounts"):
        outside = getattr(runtime, path) and not inside
        refuse_if(outside, f"runtime.{path}: needs a container", hint='runtime.kind = "docker" or "podman"')


def _titles(trait: str) -> str:
    """The engines that have a trait."""
    return ", ".join(other.title for other in registry.all_traits() if getattr(other, trait))


def _preset(name: str, engine: Traits, *, inside: bool) -> None:
    """A preset is an image of certain engines."""
    presets.load_preset(name)
    if name in engine.presets and inside:
        return
    titles = ", ".join(other.title for other in registry.all_traits() if name in other.presets)
    raise BadInput(f"runtime.preset: {name!r} is an image of {titles}", hint='runtime.kind = "docker"')


def _belongs(recipe: Recipe, engine: Traits) -> None:
    """Fields that only some engines have."""
    if recipe.hybrid:
        _hybrid(recipe.hybrid, engine)
    _parallel(recipe, engine)
    if recipe.speculate:
        _draft(recipe.speculate)


def _parallel(recipe: Recipe, engine: Traits) -> None:
    """Ways of dividing a model that the engine has."""
    divided = [name for name in ("tp", "pp", "dcp", "dp", "nodes") if getattr(recipe.parallel, name) != 1]
    for name in divided:
        alone = engine.uses_all_gpus and not engine.can_shard(name)
        refuse_if(
            alone, f"parallel: {engine.title} spreads layers over the GPUs by itself", hint="leave [parallel] out"
        )
        text = f"parallel.{name}: {engine.title} does not divide a model that way"
        refuse_if(not engine.can_shard(name), text, hint="leave it at 1")
    whole = recipe.parallel.ep and not engine.can_shard("ep")
    refuse_if(whole, f"parallel.ep: {engine.title} does not spread whole experts", hint="leave it out")


def _draft(draft: Speculate) -> None:
    """A draft that can be: tokens to draft, and a model where the method needs one."""
    refuse_if(draft.tokens < 1, f"speculate.tokens: {draft.tokens} is less than 1")
    missing = draft.method.startswith("eagle") and not draft.draft
    refuse_if(missing, "speculate.draft: EAGLE needs a draft model", hint='e.g. "lightseekorg/kimi-k2.6-eagle3"')


def _hybrid(hybrid: Hybrid, engine: Traits) -> None:
    """Placement of experts: fields the engine has, layers given once."""
    refuse_if(not engine.offloads_experts, f"hybrid: {engine.title} keeps no experts in RAM", hint=_engines_with())
    for path in ("mla", "attention_buffer", "gpu_experts", "pools", "experts", "split", "ranges"):
        foreign = path not in engine.hybrid_fields and getattr(hybrid, path) not in (None, ())
        refuse_if(foreign, f"hybrid.{path}: {engine.title} has no such flag", hint=_engines_with(path))
    refuse_if(hybrid.mla not in (None, 0, 1, 2, 3), f"hybrid.mla: {hybrid.mla} is none of 0, 1, 2, 3")
    unnamed = not (hybrid.device.isascii() and hybrid.device.isalpha())
    refuse_if(unnamed, f"hybrid.device: {hybrid.device!r} is no name of GPUs", hint='"CUDA", or "ROCm" of a HIP build')
    _split(hybrid)
    layers = [layer for gpu in hybrid.experts for layer in gpu]
    refuse_if(len(set(layers)) != len(layers), "hybrid.experts: a layer is given to two GPUs")


def _split(hybrid: Hybrid) -> None:
    """Layers by device."""
    split = hybrid.split
    impossible = split and (min(split) < 0 or not any(split))
    refuse_if(impossible, "hybrid.split: layers by device, none negative", hint="e.g. split = [30, 32]")
    both = split and hybrid.experts
    refuse_if(both, "hybrid.split keeps experts with their layers; hybrid.experts cannot name others")


def _engines_with(path: str = "") -> str:
    """Engines that keep experts in RAM, and have a field of [hybrid] where one is named, as a hint."""
    able = (other for other in registry.all_traits() if other.offloads_experts)
    return " or ".join(f'engine = "{other.name}"' for other in able if not path or path in other.hybrid_fields)


def _trust(recipe: Recipe, model: Model | None) -> None:
    """A model's own code runs only where it is on the allow-list."""
    if not recipe.trust_remote_code:
        return
    if model is not None and model.name not in models() and model.trust_remote_code:
        return
    listed = not _trusted().isdisjoint((recipe.model.lower(), recipe.checkpoint.lower()))
    text = f"trust_remote_code: {recipe.model} is not on the list of models whose own code may run"
    hint = "the list is `trust_remote_code` in models.toml; set it to false to go on without"
    refuse_if(not listed, text, hint=hint)


def _trusted() -> set[str]:
    """Every name of a model whose own code may run."""
    listed = [model for model in models().values() if model.trust_remote_code]
    return {name for model in listed for name in (model.name, model.repo.lower(), *model.aliases)}


def _flags(deployment: Deployment) -> None:
    recipe, argv = deployment.recipe, modules.argv_module(deployment.engine.name)
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    fields = {canonical_name(flag, known): path for flag, path in argv.FIELDS.items()}
    for key in recipe.flags:
        path = fields.get(canonical_name(full_flag_name(key, known), known))
        refuse_if(path, f"flags.{key}: the recipe has a field for this", hint=f"set {path}")
    version = recipe.engine_version or known.version
    for name in recipe.env:
        new = replacement(recipe.engine, recipe.engine_version, name, "env")
        refuse_if(new, f"env.{name}: {recipe.engine} {version} does not read it", hint=f"use {new}")
    flags.check_arguments(recipe.engine, recipe.engine_version, flag_arguments(recipe.flags, known))
    flags.check_arguments(recipe.engine, recipe.engine_version, argv.arguments(deployment)[1:], where="recipe")
