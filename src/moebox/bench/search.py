"""Search the highest load that meets an SLO."""

from collections.abc import Callable

from moebox.bench.measure import MeasuredLoad
from moebox.core.measure import SearchAxis, Slo
from moebox.core.result import Measurement
from moebox.errors import BadInput, refuse_if
from moebox.units import parse_seconds

MAX_SEARCH_STEPS = 16
MAX_LOAD: dict[SearchAxis, float] = {"concurrency": 4096, "rate": 4096}  # doubling stops here: more than a box serves
MIN_LOAD: dict[SearchAxis, float] = {"concurrency": 1.0, "rate": 0.01}
CLOSE_RATIO = 1.1  # a search ends when the best and the first failing load are within this ratio


def parse_slo(text: str) -> Slo:
    """Parse limits written like "ttft=2s,tpot=50ms", with the share of requests that must meet them: "share=0.95"."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in ("ttft", "tpot", "itl", "e2e", "share") or not equals:
            text = f"--slo: {part.strip()!r} is not a valid limit"
            raise BadInput(text, hint="write it like ttft=2s,tpot=50ms,itl=200ms,e2e=60s,share=0.9")
        unitless = name != "share" and value.replace(".", "", 1).isdigit()
        refuse_if(unitless, f"--slo: {part.strip()!r} has no unit", hint=f"{name}={value}s or {name}={value}ms")
        try:
            found |= {"share": float(value)} if name == "share" else {f"{name}_s": parse_seconds(value)}
        except ValueError as problem:
            raise BadInput(f"--slo: {problem}") from None
    slo = Slo(**found)
    refuse_if(not 0 < slo.share <= 1, f"--slo: share={slo.share:g} is not a share above 0 and up to 1")
    refuse_if(set(found) == {"share"}, "--slo has no limit", hint="write it like ttft=2s,share=0.9")
    return slo


def load_meets_slo(result: Measurement, slo: Slo) -> bool:
    """True if enough requests met the SLO; failures count against it."""
    requests = result.num_prompts - result.cancelled
    return requests > 0 and round((result.request_goodput or 0.0) * result.duration) >= slo.share * requests


def find_highest_load(run: Callable[[float], MeasuredLoad], slo: Slo, *, axis: SearchAxis, start: float) -> int | None:
    """Search the highest load that meets the SLO: double until one does not, then halve the gap.

    Return how many were measured before the best, or None if not even the first met it.
    """
    best, best_load, worst_load, load = None, 0.0, 0.0, float(start)
    for number in range(MAX_SEARCH_STEPS):
        measured = run(load).result
        if measured.partial:
            break
        if not load_meets_slo(measured, slo):
            worst_load = load
        elif load > best_load:
            best, best_load = number, load
        close = worst_load / best_load <= CLOSE_RATIO if best_load else worst_load <= MIN_LOAD[axis]
        if worst_load and close:
            break
        load = (best_load + worst_load) / 2 if worst_load else min(load * 2, MAX_LOAD[axis])
        if axis == "concurrency":
            load = float(round(load))
        if load in (best_load, worst_load):
            break
    return best
