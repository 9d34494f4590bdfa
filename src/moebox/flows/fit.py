"""Whether a recipe fits this machine now: the planner's budget, and the memory that is free at this moment.

Asked before an engine is started, because a machine that runs out of memory takes more down than the engine.
"""

import dataclasses

import psutil

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.errors import MoeboxError
from moebox.units import format_gib

MARGIN = 0.05  # of the device: the planner's own error; a step that misses by less is tried


def memory_problem(deployment: Deployment) -> str:
    """Why it should not be started on its box; "" where it fits, or where the planner does not know the weights."""
    memory = _planned(deployment)
    if memory is None:
        return ""
    largest = max((device.total for device in memory.devices), default=0)
    if not memory.fits and memory.shortfall > MARGIN * largest:
        return f"out of memory by the plan: {format_gib(memory.shortfall)} are missing on the fullest device"
    return _short_of_ram(memory)


def _short_of_ram(memory: Memory) -> str:
    free = psutil.virtual_memory().available
    needed = sum(device.kv + device.activations for device in memory.devices if device.device == "ram")
    if needed > free:  # weights are mapped from their file and may be read again; these cannot
        return (
            f"out of memory by the plan: cache and buffers take {format_gib(needed)}, {format_gib(free)} are free now"
        )
    return ""


def startup_problem(deployment: Deployment) -> str:
    """Why it is known not to start on its box; "" where nothing is known against it."""
    known = engines.find_refusals(deployment) if deployment.is_known else []
    return next((f"does not start: {caution.text}" for caution in known if caution.severity == "fatal"), "")


def _planned(deployment: Deployment) -> Memory | None:
    box = deployment.box
    if box is None or not deployment.is_known:
        return None
    if deployment.recipe.runtime.kind == "embedded":  # it has no GPU, whatever the machine has
        box = dataclasses.replace(box, gpus=(), links=())
    try:
        return engines.memory_budget(deployment.on_box(box))
    except MoeboxError:
        return None
