"""What is known to go wrong with a recipe on a box: engines' refusals, known symptoms, and what the budget shows."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from moebox import engines
from moebox.core import symptom
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory, PlanWarning
from moebox.core.symptom import choose_remedy
from moebox.planner.speed import Speed
from moebox.planner.speed.links import SOCKET_GPUS
from moebox.sizing.constants import bytes_held_by_others
from moebox.units import format_count, format_gb, plural

PROMPT = 8192  # tokens of the prompt whose reading is compared
IGNORED_BYTES = 2e9  # a desktop may hold this much without a warning
LINK = re.compile(r"https?://[^\s;,)]+")


def known_issues(deployment: Deployment) -> tuple[PlanWarning, ...]:
    """Return what the engine refuses on this hardware, and known symptoms of engine, version, model and GPU.

    A symptom is omitted if a refusal cites the same source.
    """
    recipe = deployment.recipe
    version = recipe.engine_version or engines.newest_version(recipe.engine)
    refusals = engines.find_refusals(deployment)
    cited = {link for refusal in refusals for link in LINK.findall(refusal.source)}
    issues = [*refusals, *symptom_issues(deployment, version, cited)]
    # The compiled kernels are Triton MLA's; sparse attention and patched images run others.
    mla = deployment.model.mla
    dense_mla = mla is not None and not mla.indexer and not recipe.runtime.preset
    runs_triton = dense_mla and recipe.flags.get("attention-backend", "triton") == "triton"
    if runs_triton and not any("shared memory" in issue.text for issue in issues):
        issues += _kernel_failures(deployment, version)
    return tuple(issues)


def symptom_issues(deployment: Deployment, version: str, cited: set[str]) -> Iterator[PlanWarning]:
    """Yield known symptoms of engine, version, model and GPU, without those whose source is cited already."""
    recipe = deployment.recipe
    symptoms = {
        each.id: each
        for sm in [gpu.sm for gpu in deployment.gpu_kinds] or [""]
        for each in symptom.predicted_symptoms(
            engine=recipe.engine, version=version, sm=sm, model=deployment.model.name, recipe=recipe
        )
    }
    for each in symptoms.values():
        if cited.isdisjoint(LINK.findall(each.source)):
            remedy, change = choose_remedy(recipe, remedy=each.remedy, change=each.change, area=each.area)
            changes = symptom.changes_text(change)
            remedy = f"{remedy} ({changes})" if changes and "{" not in changes else remedy
            yield PlanWarning(
                symptom=each.id, text=each.cause, remedy=remedy, severity=each.severity, source=each.source
            )


def _kernel_failures(deployment: Deployment, version: str) -> Iterator[PlanWarning]:
    """Yield the kernels of this release that were compiled for a GPU's architecture and do not fit it."""
    engine, kv = deployment.recipe.engine, "fp8" if deployment.recipe.kv == "fp8" else "bf16"
    for gpu in deployment.gpu_kinds:
        scan = symptom.known_scan(engine=engine, version=version, sm=gpu.sm, kv=kv)
        for failure in scan.attention_failures if scan else ():
            yield PlanWarning(
                text=f"{failure.kernel} of {engine} {version} needs {format_count(failure.shared_bytes)} bytes of "
                f"shared memory; SM{gpu.sm.replace('.', '')} has {format_count(gpu.smem)}: {failure.case} does not "
                "launch",
                remedy=f"`moebox doctor kernels --engine {engine} --kv {kv} --fix --apply` patches it",
                severity="fatal",
                source="compiled for the GPU's architecture by `moebox doctor kernels`",
            )


def budget_warnings(deployment: Deployment, memory: Memory, concurrency: int) -> tuple[PlanWarning, ...]:
    """Return warnings about a short cache, unknown RAM, mixed GPUs, and programs that hold GPU memory."""
    recipe, box = deployment.recipe, deployment.required_box
    warnings = short_cache_warnings(deployment, memory, concurrency, recipe.context)
    known_rate = box.ram_rate or any(found.applies_to(*deployment.facts) for found in box.calibrations)
    if recipe.hybrid and not box.has_unified_memory and not box.ram:
        text = "the amount of RAM is unknown: only weights that fit on the GPUs alone were considered"
        warnings.append(PlanWarning(text=text, remedy="--ram, e.g. 768GiB"))
    elif recipe.hybrid and not box.has_unified_memory and not known_rate:
        text = "the RAM's bandwidth is unknown: the forecast assumes one, and its range covers all that is sold"
        remedy = "--ram-bandwidth, e.g. 614GB/s for twelve DDR5-6400 channels"
        warnings.append(PlanWarning(text=text, remedy=remedy))
    used = {box.all_gpus[index].name for index in recipe.used_gpus(box)}
    if not deployment.engine.offloads_experts and len(used) > 1:
        text = "GPUs of different kinds in one group: the smallest and slowest decides"
        warnings.append(PlanWarning(text=text, severity="note"))
    if any(gpu.mig for gpu in box.gpus):
        text = "MIG slices cannot communicate with each other: tensor parallelism over them does not start"
        warnings.append(PlanWarning(text=text, remedy="nvidia-smi -mig 0, or one slice alone"))
    return (*warnings, *_memory_holders(box))


def socket_warnings(deployment: Deployment) -> tuple[PlanWarning, ...]:
    """Warn of the speed over two sockets if a box is declared without its CPU and NCCL would have to cross them."""
    box, step = deployment.required_box, (speed := Speed.for_deployment(deployment)).gpu_step
    is_unknown = not (box.cpu.model or box.links or box.cpu.sockets > 1)
    if step is None or not is_unknown or not step.fabric.wire.bus_sockets or step.rank.tp <= SOCKET_GPUS:
        return ()
    two, xeons = (
        Speed.for_deployment(deployment.on_box(replace(box, cpu=replace(box.cpu, sockets=2, model=model))))
        for model in ("", "Xeon")
    )
    if two.step_s(1, PROMPT) < speed.step_s(1, PROMPT) * 1.05:
        return ()
    alone, *rates = (f"{PROMPT / each.prefill_s(PROMPT):,.0f}" for each in (speed, two, xeons))
    text = f"all GPUs are assumed behind one socket or switch; over two sockets {two.decode_tok_s(1, PROMPT):.0f} tok/s"
    text += f" with 1 stream, and prompts at {rates[0]} instead of {alone} ({rates[1]} between two Xeons)"
    remedy = "plan on the machine itself, or give a box file with cpu = { model, sockets = 2 }"
    return (PlanWarning(text=text, remedy=remedy, source=step.fabric.wire.source),)


def _memory_holders(box: Box) -> Iterator[PlanWarning]:
    """Yield engines of moebox and other programs that hold GPU memory now."""
    held_by_engine: Counter[str] = Counter()
    holders = [process for gpu in box.gpus for process in gpu.holders]
    for process in holders:
        held_by_engine[process.instance] += process.bytes
    others = {f"pid {each.pid} ({each.name or 'another user'})" for each in holders if not each.instance}
    del held_by_engine[""]  # not of moebox
    for name, size in held_by_engine.items():
        text = f"{name}, started by moebox, holds {format_gb(size)}: counted as free, because it can be stopped first"
        yield PlanWarning(text=text, remedy=f"moebox down {name}", severity="note")
    held = [size for size in map(bytes_held_by_others, box.gpus) if size > IGNORED_BYTES]
    if held:
        names, verb = ", ".join(sorted(others)[:4]) or "other programs", "holds" if len(others) == 1 else "hold"
        text = f"{names} {verb} up to {format_gb(max(held))} on {plural(len(held), 'GPU')}"
        remedy = "stop them, or keep the lower memory utilization as planned"
        yield PlanWarning(text=text, remedy=remedy)


def short_cache_warnings(deployment: Deployment, memory: Memory, concurrency: int, length: int) -> list[PlanWarning]:
    """Warn if the cache holds fewer requests of `length` tokens than are to run at once."""
    recipe, parallel, engine = deployment.recipe, deployment.recipe.parallel, deployment.engine
    holds = memory.held_sequences(length, recipe.context)
    if not 0 < holds < concurrency:
        return []
    ways = ["shorter contexts"]
    if "dcp" in engine.shards and parallel.dcp == 1 < parallel.tp:
        ways.append("decode context parallelism (--dcp)")
    if recipe.kv != "fp8" and "fp8" in engine.kv:
        issues = known_issues(deployment.with_recipe(replace(recipe, kv="fp8")))
        if all(issue.severity != "fatal" for issue in issues):
            ways.append("an fp8 cache (--kv fp8)")
    text = f"the cache holds {holds} requests of {format_count(length)} tokens, not {concurrency}: the rest wait"
    return [PlanWarning(text=text, remedy=" or ".join(ways))]
