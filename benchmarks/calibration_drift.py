"""Calibrations from simulated boots that drift: are they ever worse than the forecast without them?

    python benchmarks/calibration_drift.py --boots 500 --seed 1

An engine with known constants is "booted" with few layers: a host that prepares steps beside the GPU, noise, drift of
the host or of everything, hurried boots that leave kinds of step out and time the others once. Its whole model is then
measured as a load on a machine of the same kind. The forecast from published rows is wrong by a random amount as well.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from moebox.core.calibration import Boot, CalibratedBox, Calibration, DecodeStep, ExpectedStep
from moebox.flows.calibrate_timing import agreed_time, look_disagreement
from moebox.planner.speed.measured import RANGE_SIGMAS, MeasuredSpeed

BATCHES, CONTEXTS = (1, 2, 4, 8, 16, 32, 64), (256, 4096, 16384)
KINDS = [(batch, context) for context in CONTEXTS for batch in BATCHES if batch * context <= 262_144]
FIRST_KINDS = [kind for kind in KINDS if kind[1] == 256]  # the order of moebox.flows.calibrate_boot.timing_grid


@dataclass(frozen=True)
class SimulatedEngine:
    """Seconds of a decode step: as long as the slower of host and GPU takes."""

    host_s: float
    fixed_s: float
    layer_s: float
    power: float  # of the batch
    token_s: float  # of a cached token in a layer

    def gpu_s(self, layers: int, batch: float, context: float) -> float:
        return self.fixed_s + layers * (self.layer_s * math.pow(batch, self.power) + self.token_s * batch * context)


@dataclass(frozen=True)
class Figure:
    """One TPOT of the whole model: measured, by the calibration, by published rows, and the calibration's range."""

    batch: int
    measured: float
    calibrated: float
    fitted: float
    range_factor: float

    @property
    def worse_by(self) -> float:
        """How much further the calibrated forecast is from the measured figure than the fitted one, as a share."""
        return abs(self.calibrated / self.measured - 1) - abs(self.fitted / self.measured - 1)

    @property
    def is_inside(self) -> bool:
        return 1 / self.range_factor <= self.measured / self.calibrated <= self.range_factor


def simulate_boot(engine: SimulatedEngine, layers: int, draw: random.Random) -> Boot:
    """Time an engine of that depth as a rehearsal does, with its drift."""
    drift = draw.choice((0.0, draw.uniform(-0.35, 0.35)))
    of_everything = draw.random() < 0.3
    hurried = draw.random() < 0.3
    kinds = KINDS[: draw.randint(9, 14)] if hurried else KINDS

    def time_step(kind: tuple[int, int], phase: float) -> float:
        slower = 1 + abs(drift) * (phase if drift > 0 else 1 - phase)  # a disturbance only adds time
        host, gpu = engine.host_s * slower, engine.gpu_s(layers, *kind)
        seconds = max(host, gpu * slower if of_everything else gpu + 0.2 * (host - engine.host_s))
        return seconds * math.exp(draw.gauss(0, 0.005))

    seen = time_step(kinds[0], 1.0) / time_step(kinds[0], 0.0) - 1
    seen = seen if abs(seen) > 0.05 else 0.0
    steps = []
    for place, kind in enumerate(kinds):
        looks = [time_step(kind, 0.5 * place / len(kinds))]
        looks += [] if hurried else [time_step(kind, 0.5 + 0.5 * place / len(kinds))]
        spread = max(look_disagreement(looks), 0.005) if len(looks) > 1 else max(abs(seen), 0.02)
        steps.append(DecodeStep(batch=kind[0], context=kind[1], seconds=agreed_time(looks), spread=spread))
    return Boot(
        layers=layers,
        decode=tuple(steps),
        drift=seen,
        left_out=len(KINDS) - len(kinds),
    )


def simulate_calibration(draw: random.Random) -> Iterator[Figure]:
    """Boot a random engine at two depths, and compare both forecasts with loads of the whole model."""
    engine = SimulatedEngine(
        host_s=draw.uniform(0.8e-3, 1.8e-3),
        fixed_s=draw.uniform(0.3e-3, 0.9e-3),
        layer_s=draw.uniform(0.06e-3, 0.2e-3),
        power=draw.uniform(0.35, 0.6),
        token_s=10 ** draw.uniform(-10.5, -9.3),
    )
    fit = SimulatedEngine(
        host_s=0.0,
        fixed_s=engine.fixed_s + draw.gauss(0, 0.15e-3),
        layer_s=engine.layer_s * math.exp(draw.gauss(0, 0.08)),
        power=engine.power + draw.gauss(0, 0.02),
        token_s=engine.token_s * math.exp(draw.gauss(0, 0.2)),
    )
    few, more, whole = draw.choice(((3, 6, 30), (4, 8, 36), (4, 8, 61), (4, 12, 61), (3, 12, 48)))
    boots = simulate_boot(engine, few, draw), simulate_boot(engine, more, draw)
    expected = tuple(
        ExpectedStep(
            batch=batch,
            context=context,
            fixed_s=fit.fixed_s,
            layer_s=(fit.gpu_s(whole, batch, context) - fit.fixed_s) / whole,
        )
        for batch, context in KINDS
    )
    found = Calibration(
        id="simulated",
        date="2026-11-17",
        place=CalibratedBox(gpus="1x h200"),
        engine="vllm",
        model="simulated",
        shape="",
        layers=whole,
        quant="fp8",
        boots=boots,
        expected=expected,
    )
    reading = MeasuredSpeed(
        calibration=found, layers=whole, chunk=8192, fitted=lambda batch, context: fit.gpu_s(whole, batch, context)
    )
    machine_s = draw.gauss(0, 0.1e-3)  # two H200s differed by 0.2 ms for one stream
    for batch in BATCHES:
        context = draw.choice((512, 1024, 4096))
        real = max(engine.host_s, engine.gpu_s(whole, batch, context)) + machine_s
        yield Figure(
            batch=batch,
            measured=real * math.exp(draw.gauss(0, 0.02)),
            calibrated=reading.decode_s(batch, context),
            fitted=fit.gpu_s(whole, batch, context),
            range_factor=math.exp(RANGE_SIGMAS * reading.step_spread(batch, context)),
        )


def simulate_figures(boots: int, seed: int) -> list[list[Figure]]:
    """Figures of every simulated calibration."""
    return [list(simulate_calibration(random.Random(seed * 100_003 + number))) for number in range(boots)]


def mean_error(figures: list[Figure], *, fitted: bool = False) -> float:
    """Mean distance from the measured figures, as a share."""
    return statistics.fmean(abs((each.fitted if fitted else each.calibrated) / each.measured - 1) for each in figures)


def main() -> int:
    """Print the errors of both forecasts by streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boots", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sets = simulate_figures(asked.boots, asked.seed)
    print("| streams | calibrated | published rows alone | inside the range | range | worse by over 3 points |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for batch in (*BATCHES, 0):
        rows = [each for figures in sets for each in figures if batch in (each.batch, 0)]
        inside = statistics.fmean(each.is_inside for each in rows)
        width = statistics.fmean(each.range_factor - 1 for each in rows)
        worse = statistics.fmean(each.worse_by > 0.03 for each in rows)
        errors = f"{mean_error(rows):.1%} | {mean_error(rows, fitted=True):.1%}"
        print(f"| {batch or 'all'} | {errors} | {inside:.0%} | ±{width:.0%} | {worse:.1%} |")
    gap = max(mean_error(figures) - mean_error(figures, fitted=True) for figures in sets)
    print(f"\nmean error of a calibration, at worst {gap * 100:+.1f} points beside published rows alone")
    print(f"one figure, at worst {max(each.worse_by for figures in sets for each in figures) * 100:+.1f} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
