"""What the plan promised beside what the engine reports."""

from dataclasses import dataclass
from typing import Any

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.errors import MoeboxError

CPU_NAMES = ("cpu", "host", "ram")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure twice."""

    what: str
    device: str
    planned: float | None
    real: float
    unit: str  # bytes or tokens

    @property
    def off(self) -> float | None:
        """How far reality is from the plan, as a share of the plan."""
        return self.real / self.planned - 1 if self.planned else None


def planned(deployment: Deployment) -> Memory | None:
    """The planner's budget for it on this machine; None where model or checkpoint is unknown."""
    from moebox import detect

    if not deployment.known:
        return None
    try:
        return engines.budget(deployment if deployment.box else deployment.on(detect.box()))
    except MoeboxError:
        return None


def compare(facts: dict[str, Any], memory: Memory | None) -> list[Row]:
    """Rows for every figure the engine reported; `planned` is None where there is no plan for it."""
    rows = []
    if facts.get("kv_tokens"):
        planned = float(memory.kv_tokens) if memory else None
        rows.append(Row(what="cache", device="", planned=planned, real=float(facts["kv_tokens"]), unit="tokens"))
    for place in merged(facts.get("devices", [])):
        for what in ("weights", "kv", "activation", "graph"):
            real = place.get(f"{what}_bytes")
            if real:
                planned = expected(memory, str(place["device"]), what)
                rows.append(
                    Row(what=what, device=str(place["device"]), planned=planned, real=float(real), unit="bytes")
                )
    return rows


def merged(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """llama.cpp's several host buffers (CPU, CPU_Mapped, CPU_REPACK, CUDA_Host) as one place."""
    places: dict[str, dict[str, Any]] = {}
    for row in devices:
        name = str(row["device"])
        name = "ram" if name.lower().startswith(CPU_NAMES) or name.endswith("_Host") else name
        place = places.setdefault(name, {"device": name})
        for key, value in row.items():
            if key != "device":
                place[key] = place.get(key, 0.0) + value
    return list(places.values())


def expected(memory: Memory | None, device: str, what: str) -> float | None:
    """The plan's figure for that device: "CUDA1", "TP1" and "gpu1" are the same card."""
    if memory is None:
        return None
    digits = "".join(char for char in device if char.isdigit())
    wanted = "ram" if device == "ram" else f"gpu{digits or 0}"
    for one in memory.devices:
        if one.device == wanted:
            found = {"weights": one.weights_total, "kv": one.kv, "activation": one.activations}.get(what)
            return float(found) if found else None
    return None
