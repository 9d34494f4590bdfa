"""Whether a recipe can be meant: fields against each other, and every flag against the engine's catalogue."""

from moebox.core import grammar, presets
from moebox.core.catalogue import models
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.engines import flags
from moebox.engines.flags import catalogue, replaced
from moebox.engines.words import canonical, flag_words, spelled
from moebox.errors import BadInput

KV = {
    "vllm": ("auto", "fp8", "bf16", "f16"),
    "sglang": ("auto", "fp8", "bf16"),
    "llama.cpp": ("auto", "f16", "bf16", "q8_0", "q4_0"),
    "ik_llama.cpp": ("auto", "f16", "bf16", "q8_0", "q4_0"),
}


def check(recipe: Recipe, model: Model | None = None) -> None:
    """Raise BadInput naming the first setting that cannot be."""
    grammar.refuse(recipe)
    _ranges(recipe)
    _runtime(recipe)
    _belongs(recipe)
    _trust(recipe, model)
    _flags(recipe)


def _ranges(recipe: Recipe) -> None:
    spread = recipe.parallel
    least = {
        "context": (recipe.context, 0),
        "max_seqs": (recipe.max_seqs, 1),
        "batched_tokens": (recipe.batched_tokens, 1),
        "parallel.tp": (spread.tp, 1),
        "parallel.pp": (spread.pp, 1),
        "parallel.dcp": (spread.dcp, 1),
        "parallel.dp": (spread.dp, 1),
        "parallel.nodes": (spread.nodes, 1),
    }
    for path, (value, bound) in least.items():
        if value is not None and value < bound:
            raise BadInput(f"{path}: {value} is less than {bound}")
    if recipe.memory_utilization is not None and not 0 < recipe.memory_utilization <= 1:
        raise BadInput(f"memory_utilization: {recipe.memory_utilization} is not a share between 0 and 1")
    if not 0 <= recipe.listen.port <= 65535:  # 0: any that is free
        raise BadInput(f"listen.port: {recipe.listen.port} is not a port")
    if spread.gpus % spread.nodes:
        raise BadInput(f"parallel.nodes: {spread.gpus} GPUs do not divide over {spread.nodes} nodes")
    if recipe.kv not in KV[recipe.engine]:
        raise BadInput(
            f"kv: {recipe.engine} has no cache type {recipe.kv!r}", hint=f"use {', '.join(KV[recipe.engine])}"
        )


def _runtime(recipe: Recipe) -> None:
    runtime = recipe.runtime
    inside = runtime.kind in ("docker", "podman")
    if runtime.kind == "embedded" and recipe.engine != "llama.cpp":
        raise BadInput(f"runtime.kind: only llama.cpp runs embedded, not {recipe.engine}")
    if runtime.preset:
        presets.preset(runtime.preset)
        if recipe.engine != "vllm" or not inside:
            raise BadInput(f"runtime.preset: {runtime.preset!r} is an image of vLLM", hint='runtime.kind = "docker"')
    for path, value in (("setup", runtime.setup), ("options", runtime.options), ("mounts", runtime.mounts)):
        if value and not inside:
            raise BadInput(f"runtime.{path}: needs a container", hint='runtime.kind = "docker" or "podman"')


def _belongs(recipe: Recipe) -> None:
    """Fields that only some engines have."""
    llama = recipe.engine in ("llama.cpp", "ik_llama.cpp")
    if recipe.hybrid and not llama:
        raise BadInput(f"hybrid: {recipe.engine} keeps no experts in RAM", hint='engine = "ik_llama.cpp"')
    spread = recipe.parallel
    if llama and (spread.tp, spread.pp, spread.dcp, spread.dp, spread.nodes) != (1, 1, 1, 1, 1):
        raise BadInput(
            f"parallel: {recipe.engine} spreads layers over the cards by itself", hint="leave [parallel] out"
        )
    if recipe.hybrid and recipe.engine == "llama.cpp":
        for path in ("mla", "attention_buffer"):
            if getattr(recipe.hybrid, path) is not None:
                raise BadInput(f"hybrid.{path}: llama.cpp has no such flag", hint='engine = "ik_llama.cpp"')
    if recipe.hybrid and recipe.hybrid.mla is not None and recipe.hybrid.mla not in (0, 1, 2, 3):
        raise BadInput(f"hybrid.mla: {recipe.hybrid.mla} is none of 0, 1, 2, 3")
    layers = [layer for card in (recipe.hybrid.experts if recipe.hybrid else ()) for layer in card]
    if len(set(layers)) != len(layers):
        raise BadInput("hybrid.experts: a layer is given to two cards")
    if recipe.speculate and recipe.speculate.tokens < 1:
        raise BadInput(f"speculate.tokens: {recipe.speculate.tokens} is less than 1")
    if recipe.speculate and recipe.speculate.method.startswith("eagle") and not recipe.speculate.draft:
        raise BadInput("speculate.draft: EAGLE needs a draft model", hint='e.g. "lightseekorg/kimi-k2.6-eagle3"')


def _trust(recipe: Recipe, model: Model | None) -> None:
    """A model's own code runs only where it is on the allow-list."""
    if not recipe.trust_remote_code:
        return
    wanted = {recipe.model.lower(), recipe.checkpoint.lower()}
    listed = [one for one in models().values() if one.trust_remote_code]
    if model is not None and model.name not in models() and model.trust_remote_code:
        return
    if not any(wanted & {one.name, one.repo.lower(), *one.aliases} for one in listed):
        raise BadInput(
            f"trust_remote_code: {recipe.model} is not on the list of models whose own code may run",
            hint="the list is `trust_remote_code` in models.toml; set it to false to go on without",
        )


def _flags(recipe: Recipe) -> None:
    from moebox.engines import ENGINES

    engine = ENGINES[recipe.engine]
    known = catalogue(recipe.engine, recipe.engine_version)
    fields = {canonical(flag, known): path for flag, path in engine.FIELDS.items()}
    for key in recipe.flags:
        name = canonical(spelled(key, known), known)
        if name in fields:
            raise BadInput(f"flags.{key}: the recipe has a field for this", hint=f"set {fields[name]}")
    for name in recipe.env:
        if told := replaced(recipe.engine, recipe.engine_version, name, "env"):
            version = recipe.engine_version or known.version
            raise BadInput(f"env.{name}: {recipe.engine} {version} does not read it", hint=f"use {told}")
    flags.check(recipe.engine, recipe.engine_version, flag_words(recipe.flags, known))
    flags.check(recipe.engine, recipe.engine_version, engine.words(recipe, None)[1:], where="recipe")
