"""Whether a recipe fits its box: both numbers, and the nearest setting that does."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from moebox.core import catalogue
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint
from moebox.engines import check_recipe, find_refusals, memory_budget
from moebox.errors import DoesNotFit, MoeboxError
from moebox.planner.candidates import SHORTER_CONTEXTS
from moebox.planner.rate import HIGHER_UTILIZATIONS
from moebox.units import format_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    text: str  # with both numbers
    remedy: str  # the nearest setting that fits
    shortfall: int = 0  # bytes

    def error(self) -> DoesNotFit:
        """The error of a command that stops here."""
        return DoesNotFit(self.text, shortfall=self.shortfall, hint=f"{self.remedy}; --force goes on")


def find_misfit(deployment: Deployment) -> Misfit | None:
    """Return why the recipe does not fit its box, or None if it does or the weights are unknown."""
    if not deployment.is_known or deployment.box is None:
        return None
    memory, recipe, box = memory_budget(deployment), deployment.recipe, deployment.box
    if memory.fits:
        return None
    available = len(recipe.used_gpus(box))
    if not recipe.hybrid and recipe.parallel.gpu_count > available:
        counts = f"it needs {recipe.parallel.gpu_count} GPUs, {available} are there"
        text = f"{recipe.name} does not fit on {box.name}: {counts}"
    else:
        fullest = min(memory.devices, key=lambda device: device.free)
        needed = format_gb(fullest.total + memory.shortfall)
        text = f"{recipe.name} does not fit on {box.name}: {fullest.device} needs {needed} and has "
        text += format_gb(fullest.total)
    nearest = next((name for name, changed in smaller_deployments(deployment) if fits_and_starts(changed)), "")
    on_box = f" --box {recipe.planned_for.box}" if recipe.planned_for.box else ""
    remedy = f"{nearest} fits" if nearest else f"`moebox plan {recipe.model}{on_box}` looks for another recipe"
    return Misfit(text=text, remedy=remedy, shortfall=memory.shortfall)


def smaller_deployments(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield settings that need less memory with the recipe that has them, the smallest change first."""
    deployment = deployment.with_default_context()
    recipe, model, box = deployment.recipe, deployment.model, deployment.required_box
    if recipe.kv_tiers and recipe.tiers.ram_gib:
        size = max(recipe.tiers.ram_gib - memory_budget(deployment).shortfall // 2**30 - 1, 0.0)
        changed = replace(recipe, kv_tiers=replace(recipe.kv_tiers, ram_gib=size))
        yield f"kv_tiers.ram_gib = {size:g}", deployment.with_recipe(changed)
    for share in HIGHER_UTILIZATIONS:
        if recipe.memory_utilization and recipe.memory_utilization < share:
            changed = replace(recipe, memory_utilization=share)
            yield f"memory_utilization = {share:g}", deployment.with_recipe(changed)
    for context in SHORTER_CONTEXTS:
        if context < recipe.context and context <= model.context:
            yield f"context = {context}", deployment.with_recipe(replace(recipe, context=context))
    seqs = recipe.max_seqs or 1
    for count in (seqs >> shift for shift in range(1, seqs.bit_length())):
        yield f"max_seqs = {count}", deployment.with_recipe(replace(recipe, max_seqs=count))
    for tp in (2, 4, 8):
        if recipe.parallel.tp < tp <= len(box.gpus) and not recipe.hybrid:
            parallel = replace(recipe.parallel, tp=tp)
            yield f"parallel.tp = {tp}", deployment.with_recipe(replace(recipe, parallel=parallel))
    published: tuple[Checkpoint, ...] = ()
    if model.name in catalogue.models():
        published = tuple(catalogue.published_checkpoints(model.name))
    for checkpoint in sorted(published, key=lambda each: -each.total_bytes):
        is_smaller = checkpoint.total_bytes < deployment.checkpoint.total_bytes
        if is_smaller and checkpoint.format in deployment.engine.formats:
            changed = replace(recipe, checkpoint=checkpoint.name)
            yield f'checkpoint = "{checkpoint.name}"', Deployment(changed, model, checkpoint, box)


def fits_and_starts(deployment: Deployment) -> bool:
    """True if the recipe is valid, fits, and has no known fatal issue."""
    try:
        check_recipe(deployment)
        return memory_budget(deployment).fits and all(issue.severity != "fatal" for issue in find_refusals(deployment))
    except MoeboxError:
        return False
