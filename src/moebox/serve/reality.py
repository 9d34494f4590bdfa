"""Compare the plan's memory with what the engine reports."""

from collections.abc import Sequence

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.engine_event import PlanRealityRow
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.plan import Memory
from moebox.errors import MoeboxError

CPU_NAMES = ("cpu", "host", "ram")
COMPARED = ("weights", "kv", "activation", "graph")


def planned_memory(deployment: Deployment) -> Memory | None:
    """The planner's memory budget on this machine, or None if the model or checkpoint is unknown."""
    from moebox import detect

    if not deployment.is_known:
        return None
    try:
        return engines.memory_budget(deployment if deployment.box else deployment.on_box(detect.load_box()))
    except MoeboxError:
        return None


def compare_with_plan(facts: EngineFacts, memory: Memory | None) -> list[PlanRealityRow]:
    """A row for every figure that the engine reported; `planned` is None if the plan has none."""
    rows = []
    if facts.kv_tokens:
        planned = float(memory.kv_tokens) if memory else None
        rows.append(PlanRealityRow(what="cache", planned=planned, real=facts.kv_tokens, unit="tokens"))
    for place in merge_host_buffers(facts.devices):
        sizes = place.sizes_by_name()
        for what in COMPARED:
            real = sizes.get(f"{what}_bytes")
            if real:
                planned = planned_bytes(memory, place.device, what)
                rows.append(PlanRealityRow(what=what, device=place.device, planned=planned, real=real, unit="bytes"))
    return rows


def merge_host_buffers(devices: Sequence[DeviceFacts]) -> list[DeviceFacts]:
    """Merge llama.cpp's host buffers (CPU, CPU_Mapped, CPU_REPACK, CUDA_Host) into one row."""
    places: dict[str, DeviceFacts] = {}
    for row in devices:
        on_host = row.device.lower().startswith(CPU_NAMES) or row.device.endswith("_Host")
        name = "ram" if on_host else row.device
        places[name] = places.get(name, DeviceFacts(device=name)).merge_with(row)
    return list(places.values())


def planned_bytes(memory: Memory | None, device: str, what: str) -> float | None:
    """The plan's figure for a device: "CUDA1", "TP1" and "gpu1" are the same GPU."""
    if memory is None:
        return None
    digits = "".join(char for char in device if char.isdigit())
    name = "ram" if device == "ram" else f"gpu{digits or 0}"
    planned = {place.device: place for place in memory.devices}.get(name)
    if planned is None:
        return None
    figure = {"weights": planned.weights_total, "kv": planned.kv, "activation": planned.activations}.get(what)
    return float(figure) if figure else None
