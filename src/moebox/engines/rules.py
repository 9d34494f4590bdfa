"""Whether a recipe is valid: fields against each other, and every flag against the engine's catalogue."""

from moebox.core import presets, registry, validation
from moebox.core.catalogue import models
from moebox.core.deployment import Deployment
from moebox.core.model import Model
from moebox.core.recipe import Hybrid, Recipe
from moebox.core.traits import LAST_PORT, Traits
from moebox.engines import flags
from moebox.engines.arguments import canonical_name, flag_arguments, full_flag_name
from moebox.engines.assemble import runs_in_container
from moebox.engines.engine import load_engine
from moebox.errors import BadInput, refuse_if
from moebox.sizing.layout import SIZES, layout_problem
from moebox.sizing.shards import NATIVE_METHODS

LEAST = {"context": 0, "max_seqs": 1, "batched_tokens": 1} | {f"parallel.{name}": 1 for name in SIZES}
LEAST |= {f"hybrid.{name}": 1 for name in ("threads", "threads_batch", "batch", "ubatch")} | {"hybrid.gpu_layers": 0}


def check_recipe(deployment: Deployment) -> None:
    """Raise BadInput for the first invalid setting."""
    recipe, engine = deployment.recipe, deployment.engine
    validation.validate_recipe(recipe)
    _check_ranges(recipe, engine)
    _check_runtime(recipe, engine)
    model = deployment.known_model
    if recipe.hybrid:
        _check_hybrid(recipe.hybrid, engine, model)
    if problem := layout_problem(deployment):
        raise BadInput(f"parallel.{problem.setting}: {problem.reason}", hint=problem.hint or None)
    draft = recipe.speculate
    if draft:
        refuse_if(draft.tokens < 1, f"speculate.tokens: {draft.tokens} is less than 1")
        missing = draft.method.startswith("eagle") and not draft.draft
        hint = 'e.g. "lightseekorg/kimi-k2.6-eagle3"'
        refuse_if(missing, "speculate.draft: EAGLE needs a draft model", hint=hint)
        inside = draft.method in NATIVE_METHODS and not draft.draft
        text = f"speculate.method: {model.title} has no prediction layer (MTP) to draft with" if model else ""
        refuse_if(inside and model and not model.mtp_layers, text, hint="remove [speculate]")
    if recipe.kv_tiers:
        _check_tiers(recipe, engine)
    _check_trust(deployment)
    _check_flags(deployment)


def _check_ranges(recipe: Recipe, engine: Traits) -> None:
    share, port = recipe.memory_utilization, recipe.listen.port
    for path, least in LEAST.items():
        value = recipe.get(path)
        refuse_if(value is not None and value < least, f"{path}: {value} is less than {least}")
    outside = share is not None and not 0 < share <= 1
    refuse_if(outside, f"memory_utilization: {share} is not a share between 0 and 1", hint="write it like 0.90")
    others = " and ".join(f"{other:,}" for other in engine.ports_used(port)[1:])
    text = f"listen.port: {engine.title} on {port} also listens on {others}, and ports end at {LAST_PORT:,}"
    refuse_if(port > engine.last_port, text, hint=f"{engine.last_port} or less")
    text = f"kv: {recipe.engine} has no cache type {recipe.kv!r}"
    refuse_if(recipe.kv not in engine.kv, text, hint=f"use {', '.join(engine.kv)}")


def _check_runtime(recipe: Recipe, engine: Traits) -> None:
    """Check how it is started: natively, embedded or in a container."""
    runtime, inside, every = recipe.runtime, runs_in_container(recipe), registry.all_traits()
    titles = ", ".join(other.title for other in every if other.embedded)
    text = f"runtime.kind: only {titles} runs embedded, not {engine.title}"
    refuse_if(runtime.kind == "embedded" and not engine.embedded, text)
    if runtime.preset:
        presets.load_preset(runtime.preset)
        titles = ", ".join(other.title for other in every if runtime.preset in other.presets)
        text = f"runtime.preset: {runtime.preset!r} is an image of {titles}"
        refuse_if(runtime.preset not in engine.presets or not inside, text, hint='runtime.kind = "docker"')
    known = runtime.image or runtime.preset or engine.image
    text = f"runtime.kind: no image of {engine.title} is known"
    refuse_if(inside and not known, text, hint="name one in runtime.image")
    for path in ("setup", "options", "mounts"):
        outside = getattr(runtime, path) and not inside
        refuse_if(outside, f"runtime.{path}: needs a container", hint='runtime.kind = "docker" or "podman"')


def _check_hybrid(hybrid: Hybrid, engine: Traits, model: Model | None) -> None:
    """Check the placement of experts: fields that the engine has, each layer given once."""

    def engines_with(path: str = "") -> str:
        hybrid_engines = (other for other in registry.all_traits() if other.offloads_experts)
        able = (other for other in hybrid_engines if not path or path in other.hybrid_fields)
        return " or ".join(f'engine = "{other.name}"' for other in able)

    text = f"hybrid: {engine.title} does not keep experts in RAM"
    refuse_if(not engine.offloads_experts, text, hint=engines_with())
    for path in ("mla", "attention_buffer", "gpu_experts", "pools", "experts", "split", "ranges"):
        foreign = path not in engine.hybrid_fields and getattr(hybrid, path) not in (None, ())
        refuse_if(foreign, f"hybrid.{path}: {engine.title} has no such flag", hint=engines_with(path))
    refuse_if(hybrid.mla not in (None, 0, 1, 2, 3), f"hybrid.mla: {hybrid.mla} is not one of 0, 1, 2, 3")
    is_name = hybrid.device.isascii() and hybrid.device.isalpha()
    text = f"hybrid.device: {hybrid.device!r} is not a device name"
    refuse_if(not is_name, text, hint='"CUDA", or "ROCm" of a HIP build')
    split, layers = hybrid.split, [layer for gpu in hybrid.experts for layer in gpu]
    impossible = split and (min(split) < 0 or not any(split))
    refuse_if(impossible, "hybrid.split: layers by device, none negative", hint="e.g. split = [30, 32]")
    both = split and hybrid.experts
    refuse_if(both, "hybrid.split keeps experts with their layers; hybrid.experts cannot name others")
    refuse_if(len(set(layers)) != len(layers), "hybrid.experts: a layer is given to two GPUs")
    if model and model.moe:
        outside = [layer for layer in layers if not model.dense_layers <= layer < model.layers]
        text = f"hybrid.experts: {model.title} has experts in layers {model.dense_layers} to {model.layers - 1}"
        refuse_if(outside, f"{text}, not in {', '.join(map(str, outside))}")


def _check_tiers(recipe: Recipe, engine: Traits) -> None:
    """Check the tiers below the KV cache: sizes, and what the engine has."""
    tiers = recipe.tiers
    for path in ("ram_gib", "disk_gib"):
        size = getattr(tiers, path)
        refuse_if(not 0 <= size < 2**24, f"kv_tiers.{path}: {size:g} is not a size in GiB", hint="e.g. 64")
    others = ", ".join(other.title for other in registry.all_traits() if other.kv_tiers)
    is_used = tiers.ram_gib or tiers.disk_gib
    refuse_if(is_used and not engine.kv_tiers, f"kv_tiers: {engine.title} keeps no prefixes in RAM", hint=others)
    unknown = tiers.connector not in engine.kv_connectors
    refuse_if(unknown, f"kv_tiers.connector: {engine.title} has no {tiers.connector}", hint='connector = "native"')
    alone = engine.kv_tiers == "blocks" and tiers.disk_gib and not tiers.ram_gib
    text = "kv_tiers.disk_gib needs kv_tiers.ram_gib: blocks go to disk through RAM"
    refuse_if(alone, text, hint="e.g. ram_gib = 16")
    hint = "leave one of them out"
    off = is_used and recipe.prefix_caching is False
    refuse_if(off, "kv_tiers keep prefixes, and prefix_caching is false", hint=hint)
    elsewhere = not tiers.folder.startswith(("/", "~/")) or ".." in tiers.folder
    refuse_if(elsewhere, f"kv_tiers.folder: {tiers.folder!r} is not a whole path", hint="begin with / or ~/")


def require_weights_file(deployment: Deployment) -> None:
    """Refuse to launch a published GGUF whose file is not known: the engine would refuse the command."""
    found = deployment.known_checkpoint
    if found is None or found.format != "gguf" or found.path or found.file:
        return
    text = f"{found.name} of {deployment.model.title}: no repository is known that holds it"
    refuse_if(not found.repo, text, hint="checkpoint = the path of a .gguf file that you have")
    text = f"{found.name} of {deployment.model.title}: which file of {found.repo} holds it is not known"
    hint = f"`moebox plan {found.repo}` reads the names on the Hub; or download it and give its path as checkpoint"
    raise BadInput(text, hint=hint)


def _check_trust(deployment: Deployment) -> None:
    """Refuse a model's own code unless the model is on the allow-list."""
    recipe, model = deployment.recipe, deployment.known_model
    is_own = model is not None and model.name not in models() and model.trust_remote_code
    if is_own or not recipe.trust_remote_code:
        return
    trusted = [known for known in models().values() if known.trust_remote_code]
    names = {name for known in trusted for name in (known.name, known.repo.lower(), *known.aliases)}
    text = f"trust_remote_code: {recipe.model} is not on the list of models whose own code may run"
    hint = "the list is `trust_remote_code` in models.toml; set it to false to continue without"
    refuse_if(names.isdisjoint((recipe.model.lower(), recipe.checkpoint.lower())), text, hint=hint)


def _check_flags(deployment: Deployment) -> None:
    """Check [flags] and [env], and that the engine's version accepts the whole command line."""
    recipe, engine = deployment.recipe, load_engine(deployment.engine.name)
    known = flags.flag_catalogue(recipe.engine, recipe.engine_version)
    fields = {canonical_name(flag, known): path for flag, path in engine.fields.items()}
    for key in recipe.flags:
        path = fields.get(canonical_name(full_flag_name(key, known), known))
        refuse_if(path, f"flags.{key}: the recipe has a field for this", hint=f"set {path}")
    version = recipe.engine_version or known.version
    for name in recipe.env:
        new = flags.replacement(recipe.engine, recipe.engine_version, name, "env")
        refuse_if(new, f"env.{name}: {recipe.engine} {version} does not read it", hint=f"use {new}")
    flags.check_arguments(recipe.engine, recipe.engine_version, flag_arguments(recipe.flags, known))
    flags.check_arguments(recipe.engine, recipe.engine_version, engine.arguments(deployment)[1:], where="recipe")
