"""What is known to go wrong with a recipe on a box: engines' refusals, known symptoms, and what the numbers show."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from moebox import engines
from moebox.core import gpu_list, registry, symptom
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.kernel import known_failures
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.sizing.constants import bytes_held_by_others
from moebox.units import format_count, format_gb, plural

HELD = 2e9  # bytes that a desktop may hold without a word
LINK = re.compile(r"https?://[^\s;,)]+")


def known_issues(deployment: Deployment) -> tuple[PlanWarning, ...]:
    """What engines refuse on that hardware, and symptoms of that engine, version, model and GPU."""
    refused = tuple(engines.find_refusals(deployment))
    told = (*refused, *_symptoms(deployment, refused))
    if any("shared memory" in caution.text for caution in told) or not _runs_triton_mla(deployment):
        return told
    return (*told, *(bad for gpu in deployment.gpu_kinds for bad in _kernels(deployment.recipe, gpu)))


def _symptoms(deployment: Deployment, refused: tuple[PlanWarning, ...]) -> Iterator[PlanWarning]:
    """Known symptoms of that deployment, less what a refusal tells from the same source."""
    seen = {link for caution in refused for link in LINK.findall(caution.source)}
    found = _foreseen(deployment)
    return (_caution(each) for each in found if seen.isdisjoint(LINK.findall(each.source)))


def _foreseen(deployment: Deployment) -> Iterable[symptom.Symptom]:
    """What is known of that engine, version and model on any of these GPUs, each once."""
    recipe, version = deployment.recipe, engines.version_or_newest(deployment.recipe)
    found: dict[str, symptom.Symptom] = {}
    for sm in [gpu.sm for gpu in deployment.gpu_kinds] or [""]:
        known = symptom.predicted_symptoms(
            engine=recipe.engine, version=version, sm=sm, model=deployment.model.name, recipe=recipe
        )
        found |= {each.id: each for each in known}
    return found.values()


def _kernels(recipe: Recipe, gpu: Gpu) -> Iterator[PlanWarning]:
    """Kernels of this release that were compiled for this GPU's architecture and do not fit it."""
    version, kv = engines.version_or_newest(recipe), "fp8" if recipe.kv == "fp8" else "bf16"
    for bad in known_failures(engine=recipe.engine, version=version, sm=gpu.sm, kv=kv):
        yield PlanWarning(
            symptom="",
            text=f"{bad.kernel} of {recipe.engine} {version} asks {format_count(bad.shared_bytes)} bytes of shared "
            f"memory; SM{gpu.sm.replace('.', '')} gives {format_count(gpu.smem)}: {bad.case} does not launch",
            remedy=f"`moebox doctor kernels --engine {recipe.engine} --kv {kv} --fix --apply` patches it",
            severity="fatal",
            source="compiled for the GPU's architecture by `moebox doctor kernels`",
        )


def _runs_triton_mla(deployment: Deployment) -> bool:
    """Whether the kernels that were compiled are the ones that run: sparse attention and patched images have others."""
    mla, recipe = deployment.model.mla, deployment.recipe
    if mla is None or mla.indexer or recipe.runtime.preset:
        return False
    return recipe.flags.get("attention-backend", "triton") == "triton"


def budget_warnings(deployment: Deployment, memory: Memory, concurrency: int) -> tuple[PlanWarning, ...]:
    """What the budget itself says."""
    recipe, box = deployment.recipe, deployment.required_box
    return (
        *short_cache_warnings(deployment, memory, concurrency, recipe.context),
        *_unknown_ram(recipe, box),
        *_gpus(recipe, box),
        *_stoppable(box),
        *_others(box),
    )


def _unknown_ram(recipe: Recipe, box: Box) -> Iterator[PlanWarning]:
    if not recipe.hybrid or box.has_unified_memory:
        return
    if not box.ram:
        text = "how much RAM there is is unknown: only forms that lie wholly on the GPUs were weighed"
        yield PlanWarning(symptom="", text=text, remedy="--ram, e.g. 768GiB")
    elif not box.ram_rate:
        text = "the RAM's bandwidth is unknown: the forecast is a guess, and its band holds all that is sold"
        yield PlanWarning(symptom="", text=text, remedy="--ram-bandwidth, e.g. 614GB/s for twelve DDR5-6400 channels")


def _gpus(recipe: Recipe, box: Box) -> Iterator[PlanWarning]:
    """GPUs that make a poor group."""
    used = {gpu_list.all_gpus(box)[index].name for index in gpu_list.used_gpus(box, recipe)}
    if registry.engine_traits(recipe.engine).is_gpu_only and len(used) > 1:
        text = "GPUs of different kinds in one group: the smallest and slowest decides"
        yield PlanWarning(symptom="", text=text, severity="note")
    if any(gpu.mig for gpu in box.gpus):
        text = "MIG slices cannot talk to each other: tensor parallelism over them does not start"
        yield PlanWarning(symptom="", text=text, remedy="nvidia-smi -mig 0, or one slice alone")


def short_cache_warnings(deployment: Deployment, memory: Memory, concurrency: int, length: int) -> list[PlanWarning]:
    """A warning where the cache holds fewer requests of `length` tokens than are to run at a time."""
    holds = memory.kv_tokens // max(length, 1)
    if not 0 < holds < concurrency:
        return []
    text = f"the cache holds {holds} requests of {format_count(length)} tokens, not {concurrency}: the rest wait"
    return [PlanWarning(symptom="", text=text, remedy=" or ".join(_more_cache(deployment)))]


def _more_cache(deployment: Deployment) -> Iterator[str]:
    """Ways to a cache for more requests that this recipe has not taken and that start."""
    parallel = deployment.recipe.parallel
    yield "shorter contexts"
    if deployment.engine.can_shard("dcp") and parallel.dcp == 1 < parallel.tp:
        yield "decode context parallelism (--dcp)"
    if deployment.recipe.kv != "fp8" and _takes_fp8_cache(deployment):
        yield "an fp8 cache (--kv fp8)"


def _takes_fp8_cache(deployment: Deployment) -> bool:
    halved = deployment.with_recipe(replace(deployment.recipe, kv="fp8"))
    fatal = (caution for caution in known_issues(halved) if caution.severity == "fatal")
    return "fp8" in deployment.engine.kv and next(fatal, None) is None


def _stoppable(box: Box) -> Iterator[PlanWarning]:
    """Engines of moebox's that hold memory of the GPUs now, which a plan counts as stopped."""
    held: Counter[str] = Counter()
    for gpu in box.gpus:
        held.update({holder.instance: holder.bytes for holder in gpu.holders if holder.instance})
    for name, size in held.items():
        yield PlanWarning(
            symptom="",
            text=f"{name}, which moebox runs, holds {format_gb(size)}: "
            "counted as free, because it can be stopped first",
            remedy=f"moebox down {name}",
            severity="note",
        )


def _others(box: Box) -> Iterator[PlanWarning]:
    """Other programs that hold memory of the GPUs now."""
    busy = [gpu for gpu in box.gpus if bytes_held_by_others(gpu) > HELD]
    if not busy:
        return
    names = _programs(box)
    who, holds = ", ".join(names[:4]) or "other programs", "holds" if len(names) == 1 else "hold"
    text = f"{who} {holds} up to {format_gb(max(map(bytes_held_by_others, busy)))} on {plural(len(busy), 'GPU')}"
    yield PlanWarning(symptom="", text=text, remedy="stop them, or leave the lower memory utilization as planned")


def _programs(box: Box) -> list[str]:
    """Programs on the GPUs that are no engines of moebox's."""
    others = (holder for gpu in box.gpus for holder in gpu.holders if not holder.instance)
    return sorted({f"pid {holder.pid} ({holder.name or 'another user'})" for holder in others})


def _caution(one: symptom.Symptom) -> PlanWarning:
    changes = symptom.changes_text(one.change)
    remedy = f"{one.remedy} ({changes})" if changes and "{" not in changes else one.remedy
    return PlanWarning(symptom=one.id, text=one.cause, remedy=remedy, severity=one.severity, source=one.source)
