"""What is known to go wrong with a recipe on a box: engines' refusals, known symptoms, and what the numbers show."""

import re

from moebox import engines
from moebox.core import registry, symptom
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.kernel import known_bad
from moebox.core.model import Model
from moebox.core.plan import Caution, Memory
from moebox.core.recipe import Recipe
from moebox.sizing.constants import taken
from moebox.units import count, gb

HELD = 2e9  # bytes that a desktop may hold without a word
LINK = re.compile(r"https?://[^\s;,)]+")


def known_troubles(deployment: Deployment) -> tuple[Caution, ...]:
    """What engines refuse on that hardware, and symptoms of that engine, version, model and GPU."""
    box, model, recipe = deployment.place, deployment.model, deployment.recipe
    refused = tuple(engines.refusals(deployment))
    seen = {link for caution in refused for link in LINK.findall(caution.source)}
    gpu = box.gpu
    found = symptom.foreseen(
        engine=recipe.engine,
        version=recipe.engine_version or engines.newest(recipe.engine),
        sm=gpu.sm if gpu else "",
        model=model.name,
        recipe=recipe,
    )
    known = tuple(_caution(one) for one in found if not seen.intersection(LINK.findall(one.source)))
    told = (*refused, *known)
    return (*told, *(one for one in _kernels(recipe, box, model) if not any("shared memory" in a.text for a in told)))


def _kernels(recipe: Recipe, box: Box, model: Model) -> tuple[Caution, ...]:
    """Kernels of this release that were compiled for this GPU's architecture and do not fit it."""
    gpu = box.gpu
    if (
        gpu is None
        or model.mla is None
        or model.mla.indexer is not None  # sparse attention has other kernels, which were not compiled
        or recipe.runtime.preset
        or recipe.flags.get("attention-backend", "triton") != "triton"
    ):
        return ()
    version = recipe.engine_version or engines.newest(recipe.engine)
    kv = "fp8" if recipe.kv == "fp8" else "bf16"
    return tuple(
        Caution(
            symptom="",
            text=f"{bad.kernel} of {recipe.engine} {version} asks {count(bad.shared_bytes)} bytes of shared "
            f"memory; SM{gpu.sm.replace('.', '')} gives {count(gpu.smem)}: {bad.case} does not launch",
            remedy=f"`moebox doctor kernels --engine {recipe.engine} --kv {kv} --fix --apply` patches it",
            severity="fatal",
            source="compiled for the GPU's architecture by `moebox doctor kernels`",
        )
        for bad in known_bad(engine=recipe.engine, version=version, sm=gpu.sm, kv=kv)
    )


def from_numbers(recipe: Recipe, box: Box, model: Model, memory: Memory, concurrency: int) -> tuple[Caution, ...]:
    """What the budget itself says."""
    out: list[Caution] = []
    if recipe.context > model.context:
        text = f"{count(recipe.context)} tokens is beyond what {model.title} was trained for ({count(model.context)})"
        out.append(Caution(symptom="", text=text, remedy=f"context = {model.context}"))
    out += short_cache(memory, concurrency, recipe.context)
    if recipe.hybrid and not box.ram:
        text = "how much RAM there is is unknown: only forms that lie wholly on the GPUs were weighed"
        out.append(Caution(symptom="", text=text, remedy="--ram, e.g. 768GiB"))
    elif recipe.hybrid and not (box.ram_bandwidth or box.ram_bandwidth_measured):
        text = "the RAM's bandwidth is unknown, so the forecast of what runs from it is rough"
        out.append(Caution(symptom="", text=text, remedy="--ram-bandwidth, e.g. 614GB/s for twelve DDR5-6400 channels"))
    if registry.traits(recipe.engine).serves and box.mixed:
        text = "GPUs of different kinds in one group: the smallest and slowest decides"
        out.append(Caution(symptom="", text=text, severity="note"))
    out += _holders(box)
    if any(gpu.mig for gpu in box.gpus):
        text = "MIG slices cannot talk to each other: tensor parallelism over them does not start"
        out.append(Caution(symptom="", text=text, remedy="nvidia-smi -mig 0, or one slice alone"))
    return tuple(out)


def short_cache(memory: Memory, concurrency: int, length: int) -> list[Caution]:
    """A warning where the cache holds fewer requests of `length` tokens than are to run at a time."""
    holds = memory.kv_tokens // max(length, 1)
    if not 0 < holds < concurrency:
        return []
    text = f"the cache holds {holds} requests of {count(length)} tokens, not {concurrency}: the rest wait"
    return [Caution(symptom="", text=text, remedy="shorter contexts, decode context parallelism or fp8 cache")]


def _holders(box: Box) -> list[Caution]:
    """Who holds memory of the GPUs now: engines of moebox's, which a plan counts as stopped, and others."""
    held = [holder for gpu in box.gpus for holder in gpu.holders]
    ours = {holder.instance: 0 for holder in held if holder.instance}
    for holder in held:
        if holder.instance:
            ours[holder.instance] += holder.bytes
    out = [
        Caution(
            symptom="",
            text=f"{name}, which moebox runs, holds {gb(size)}: counted as free, because it can be stopped first",
            remedy=f"moebox down {name}",
            severity="note",
        )
        for name, size in ours.items()
    ]
    busy = [gpu for gpu in box.gpus if taken(gpu) > HELD]
    if busy:
        most = max(taken(gpu) for gpu in busy)
        names = sorted({f"pid {one.pid} ({one.name or 'another user'})" for one in held if not one.instance})
        who = ", ".join(names[:4]) or "other programs"
        text = f"{who} hold{'s' if len(names) == 1 else ''} up to {gb(most)} on {len(busy)} GPU(s)"
        remedy = "stop them, or leave the lower memory utilization as planned"
        out.append(Caution(symptom="", text=text, remedy=remedy))
    return out


def _caution(one: symptom.Symptom) -> Caution:
    changes = symptom.as_text(one.change)
    remedy = f"{one.remedy} ({changes})" if changes and "{" not in changes else one.remedy
    return Caution(symptom=one.id, text=one.cause, remedy=remedy, severity=one.severity, source=one.source)
