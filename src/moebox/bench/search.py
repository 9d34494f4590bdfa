"""Several measurements: a sweep over loads, and the highest load that keeps to an SLO."""

from collections.abc import Callable, Iterable

from moebox.bench.measure import MeasuredLoad
from moebox.core.measure import SearchAxis, Slo
from moebox.core.result import Measurement
from moebox.errors import BadInput
from moebox.units import parse_seconds

MAX_SEARCH_STEPS = 16  # of a search
MAX_LOAD: dict[SearchAxis, float] = {
    "concurrency": 4096,
    "rate": 4096,
}  # where doubling stops: beyond what one box serves
CLOSE_RATIO = 1.1  # a search ends when the best and the first failing load are within this ratio


def parse_slo(text: str, *, share: float = 0.9) -> Slo:
    """Limits written like "ttft=2s,tpot=50ms"."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in ("ttft", "tpot", "itl", "e2e") or not equals:
            raise BadInput(
                f"--slo: {part.strip()!r} is no limit", hint="write it like ttft=2s,tpot=50ms,itl=200ms,e2e=60s"
            )
        try:
            limits[f"{name}_s"] = parse_seconds(value)
        except ValueError as problem:
            raise BadInput(f"--slo: {problem}") from None
    if not 0 < share <= 1:
        raise BadInput(f"--slo-share is {share}; it is a share above 0 and up to 1")
    return Slo(**limits, share=share)


def load_meets_slo(result: Measurement, slo: Slo) -> bool:
    """Enough of all requests, failed ones included, kept to the limits."""
    requests = result.num_prompts - result.cancelled
    met = (result.request_goodput or 0.0) * result.duration
    return requests > 0 and round(met) >= slo.share * requests


def run_sweep(loads: Iterable[float], run: Callable[[float], MeasuredLoad]) -> list[MeasuredLoad]:
    """One measurement for each load; an interrupted one ends it."""
    done = []
    for load in loads:
        done.append(run(load))
        if done[-1].was_interrupted:
            break
    return done


def find_highest_load(
    run: Callable[[float], MeasuredLoad], slo: Slo, *, axis: SearchAxis, start: float
) -> tuple[list[MeasuredLoad], int | None]:
    """The highest load that meets the SLO: double until it does not, then halve the gap.

    Gives everything that was measured, and the index of the best, None when not even the first met it.
    """
    done: list[MeasuredLoad] = []
    best, best_load, worst_load, load = None, 0.0, 0.0, float(start)
    while len(done) < MAX_SEARCH_STEPS:
        done.append(run(load))
        if done[-1].was_interrupted:
            break
        if not load_meets_slo(done[-1].result, slo):
            worst_load = load
        elif load > best_load:
            best, best_load = len(done) - 1, load
        if worst_load and _close(axis, best_load, worst_load):
            break
        load = _following(axis, load, best_load, worst_load)
        if load in (best_load, worst_load):
            break
    return done, best


def _close(axis: SearchAxis, best: float, worst: float) -> bool:
    """Whether there is nothing between the best load and the lowest that failed."""
    return worst / max(best, 1e-9) <= CLOSE_RATIO if best else worst <= _least(axis)


def _following(axis: SearchAxis, load: float, best: float, worst: float) -> float:
    """The load to try next: twice as much, or half way to what failed."""
    following = (best + worst) / 2 if worst else min(load * 2, MAX_LOAD[axis])
    return float(round(following)) if axis == "concurrency" else following


def _least(axis: SearchAxis) -> float:
    return 1.0 if axis == "concurrency" else 0.01
