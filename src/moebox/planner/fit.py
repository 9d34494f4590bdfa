"""Whether a recipe fits its box: both numbers, and the nearest setting that does."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from moebox.core import catalogue
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint
from moebox.core.setting import apply_settings
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

    def error(self, *, can_force: bool = True) -> DoesNotFit:
        """The error of a command that stops here."""
        hint = self.remedy + "; --force goes on" * can_force
        return DoesNotFit(self.text, shortfall=self.shortfall, hint=hint)


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
    nearest = next(
        (
            setting
            for setting, checkpoint in smaller_settings(deployment)
            if fits_and_starts(deployment, setting, checkpoint)
        ),
        "",
    )
    on_box = f" --box {shlex.quote(recipe.planned_for.box)}" if recipe.planned_for.box else ""
    remedy = f"{nearest} fits" if nearest else f"`moebox plan {recipe.model}{on_box}` looks for another recipe"
    return Misfit(text=text, remedy=remedy, shortfall=memory.shortfall)


def smaller_settings(deployment: Deployment) -> Iterator[tuple[str, Checkpoint]]:
    """Yield settings that need less memory, each with the checkpoint that it loads, the smallest change first."""
    box, model, checkpoint, recipe = deployment.with_default_context().facts
    settings = []
    if recipe.kv_tiers and recipe.tiers.ram_gib:
        size = max(recipe.tiers.ram_gib - memory_budget(deployment).shortfall // 2**30 - 1, 0.0)
        settings.append(f"kv_tiers.ram_gib = {size:g}")
    share, seqs, tp = recipe.memory_utilization or 1.0, recipe.max_seqs or 1, recipe.parallel.tp
    settings += [f"memory_utilization = {higher:g}" for higher in HIGHER_UTILIZATIONS if share < higher]
    settings += [f"context = {size}" for size in SHORTER_CONTEXTS if size < recipe.context and size <= model.context]
    settings += [f"max_seqs = {seqs >> shift}" for shift in range(1, seqs.bit_length())]
    settings += [f"parallel.tp = {more}" for more in (2, 4, 8) if tp < more <= len(box.gpus) and not recipe.hybrid]
    yield from ((setting, checkpoint) for setting in settings)
    published = catalogue.published_checkpoints(model.name) if model.name in catalogue.models() else ()
    for other in sorted(published, key=lambda each: -each.total_bytes):
        if other.total_bytes < checkpoint.total_bytes and other.format in deployment.engine.formats:
            yield f'checkpoint = "{other.name}"', other


def fits_and_starts(deployment: Deployment, setting: str, checkpoint: Checkpoint) -> bool:
    """True if the recipe with this setting is valid, fits, and has no known fatal issue."""
    recipe = apply_settings(deployment.with_default_context().recipe, [setting.replace('"', "")])
    changed = replace(deployment, recipe=recipe, known_checkpoint=checkpoint)
    try:
        check_recipe(changed)
        return memory_budget(changed).fits and all(issue.severity != "fatal" for issue in find_refusals(changed))
    except MoeboxError:
        return False
