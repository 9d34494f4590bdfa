"""Sweep the power cap of an engine's GPUs: tokens per joule, and the lowest cap that costs little speed."""

from dataclasses import dataclass

from moebox.core.recipe import Recipe
from moebox.core.verdict import Gain
from moebox.flows.pace import SpeedRounds, bracketing_gain
from moebox.flows.trials import TrialRunner
from moebox.serve import power

SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the default power cap
COST = -0.02  # speed that a lower cap may cost, over its whole interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CapMeasurement:
    """The winner under a power cap."""

    cap_w: int
    tok_s: float
    tokens_per_joule: float
    gain: Gain | None  # in speed, over the default cap


def sweep_caps(runner: TrialRunner, recipe: Recipe) -> tuple[tuple[CapMeasurement, ...], int]:
    """Measure a recipe under each cap. Return the rows and the lowest cap in watts that costs less than COST.

    The default cap is measured first and last, so that a machine that became slower meanwhile widens the intervals.
    """
    live, folder = runner.start_engine(recipe, f"climb/{runner.run.id}-power")
    rows: list[tuple[int, SpeedRounds, float]] = []
    with live, power.PowerCaps(live.prepared.gpus, folder.path) as caps:
        steps = caps.list_watts(SHARES)
        for cap in (*steps, steps[0]):
            caps.set_watts(cap)
            runner.notify("news", f"measuring with a power cap of {cap} W")
            rows.append((cap, *runner.measure_speed(live, folder)))
    first, last = rows[0][1].tok_s, rows[-1][1].tok_s
    found = tuple(
        CapMeasurement(
            cap_w=cap,
            tok_s=speed.output_tok_s,
            tokens_per_joule=speed.output_tok_s / watts if watts else 0.0,
            gain=bracketing_gain(first, speed.tok_s, last) if cap != steps[0] else None,
        )
        for cap, speed, watts in rows[:-1]
    )
    return found, min((row.cap_w for row in found[1:] if row.gain and row.gain.low >= COST), default=steps[0])
