"""How well a calibration from two depths foretells a third that it has not seen, on this machine.

    python benchmarks/calibration.py --engine ik_llama.cpp --entry BUILD/bin/llama-server --model qwen3-235b \
        --quant q4_0 --layers 4,8 --check 11 --threads 2
    python benchmarks/calibration.py --engine vllm --model FOLDER --layers 4,8 --check 12 --streams 64

The engine is booted at each depth with dummy weights and even routing, its steps are timed through its endpoint, and
the deepest boot is compared with what the others foretell, and with the forecast from published measurements alone.
"""

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core.calibration import Boot, Calibration
from moebox.core.recipe import Hybrid, Listen, Recipe, Runtime
from moebox.flows.calibrate import BUDGET_S, Calibrator, calibrate, deploy_for_calibration
from moebox.flows.rehearse import prefill_chunk
from moebox.planner.depths import cut_layers
from moebox.planner.speed import Speed
from moebox.planner.speed.measured import RANGE_SIGMAS, MeasuredSpeed
from moebox.serve.session import PATIENCE_S
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.store import calibrations as store

HYBRID = ("llama.cpp", "ik_llama.cpp")


def measure_depth(
    recipe: Recipe,
    run: Run,
    layers: int,
    *,
    known: Boot | None = None,
    budget_s: float = BUDGET_S,
    notify: Notify = lambda line: None,
) -> Boot:
    """Time a single boot at the points of `known`, to check a calibration from other depths."""
    work = Calibrator(deploy_for_calibration(recipe), run, budget_s, notify)
    work.measure_boot(Boot(layers=layers), after=0, patience_s=PATIENCE_S, known=known)
    return work.done[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of the depth that was not used: measured, foretold by the calibration, and by published rows."""

    what: str
    measured: float
    calibrated: float
    fitted: float
    unit: str
    range_factor: float = float("nan")  # four of five lie between calibrated / factor and calibrated × factor

    @property
    def off(self) -> float:
        """Error of the calibrated forecast."""
        return self.calibrated / self.measured - 1

    @property
    def fitted_off(self) -> float:
        """Error of the forecast without a calibration."""
        return self.fitted / self.measured - 1


def main() -> int:
    """Calibrate, measure the check, compare."""
    asked = arguments()
    recipe = recipe_of(asked)
    home = Path(asked.out or tempfile.mkdtemp(prefix="calibration-"))
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MOEBOX_CALIBRATIONS", str(home / "calibrations"))
    os.environ.setdefault("MOEBOX_STATE", str(home / "state"))
    depths = tuple(int(word) for word in asked.layers.split(","))
    load = os.getloadavg()
    began = time.monotonic()
    if asked.stage != "check":
        run = Run.create("measure", runs=home / "runs")
        calibrate(recipe, run, layers=depths, budget_s=asked.budget, notify=say)
    if asked.stage == "calibrate":
        return 0
    found = store.stored_calibrations().calibrations[0]
    took = time.monotonic() - began
    known = found.boots[0]
    check = measure_depth(
        recipe,
        Run.create("check", runs=home / "runs"),
        asked.check,
        known=known,
        budget_s=asked.budget / 2,
        notify=say,
    )
    (home / "check.json").write_text(json.dumps(dataclasses.asdict(check)))
    rows = compared(found, check, recipe, asked.box)
    document = {
        "engine": recipe.engine,
        "version": found.version,
        "box": found.place.text,
        "model": recipe.model,
        "layers": depths,
        "check": asked.check,
        "seconds": round(took, 1),
        "load": load,
        "notes": found.notes,
        "rows": [{**dataclasses.asdict(row), "off": row.off, "fitted_off": row.fitted_off} for row in rows],
        "boots": [dataclasses.asdict(boot) for boot in (*found.boots, check)],
    }
    (home / f"calibration-{recipe.engine}.json").write_text(json.dumps(document, indent=1))
    show(found, asked.check, rows, took, load)
    return 0


def arguments() -> argparse.Namespace:
    """What was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--entry", default="", help="words that start it; its usual ones without")
    parser.add_argument("--model", required=True, help="a catalogue name or a folder with config.json")
    parser.add_argument("--checkpoint", default="", help="the catalogue's form; the model itself for a folder")
    parser.add_argument("--quant", default="", help="for GGUF engines: the type of generated experts")
    parser.add_argument("--layers", default="4,8")
    parser.add_argument("--check", type=int, required=True)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=0, help="prompt tokens a step; -ub for llama.cpp")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--box", default="", help="the box of the forecast from published rows; this machine without")
    parser.add_argument("--stage", choices=("all", "calibrate", "check"), default="all")
    parser.add_argument("--memory-utilization", type=float, default=None)
    parser.add_argument("--flags", default="{}", help="more flags of the engine, as JSON")
    parser.add_argument("--out", default="", help="where runs and the result are kept")
    return parser.parse_args()


def recipe_of(asked: argparse.Namespace) -> Recipe:
    """The recipe that is calibrated."""
    hybrid = asked.engine in HYBRID
    chunk = asked.chunk or (512 if hybrid else 8192)
    return Recipe(
        name=f"calibration-{asked.engine}",
        engine=asked.engine,
        model=asked.model,
        checkpoint=asked.checkpoint or asked.model,
        served_name="calibration",
        context=asked.context,
        max_seqs=asked.streams,
        batched_tokens=None if hybrid else chunk,
        hybrid=Hybrid(threads=asked.threads, threads_batch=asked.threads, ubatch=chunk) if hybrid else None,
        runtime=Runtime(entry=asked.entry),
        listen=Listen(port=0),
        memory_utilization=asked.memory_utilization,
        flags=json.loads(asked.flags),
    )


def compared(found: Calibration, check: Boot, recipe: Recipe, asked_box: str = "") -> list[Row]:
    """Every figure of the check beside both forecasts."""
    reading = MeasuredSpeed(calibration=found, layers=check.layers, chunk=prefill_chunk(recipe))
    plain = uncalibrated(recipe, check.layers, asked_box)
    rows = [
        Row(
            what=f"decode, {step.batch} at {step.context:,}",
            measured=step.batch / step.seconds,
            calibrated=step.batch / reading.step_s(step.batch, step.context),
            fitted=step.batch / plain.step_s(step.batch, step.context),
            unit="tok/s",
            range_factor=math.exp(RANGE_SIGMAS * reading.step_spread(step.batch, step.context)),
        )
        for step in sorted(check.decode, key=lambda one: (one.batch, one.context))
    ]
    rows += [
        Row(
            what=f"prompt of {prompt.tokens:,}",
            measured=prompt.tokens / prompt.seconds,
            calibrated=prompt.tokens / prefill_s(reading, prompt.tokens),
            fitted=prompt.tokens / (plain.prefill_s(prompt.tokens) + plain.request_s),
            unit="tok/s",
            range_factor=math.exp(RANGE_SIGMAS * reading.prompt_spread(prompt.tokens)),
        )
        for prompt in sorted(check.prefill, key=lambda one: one.tokens)
    ]
    if check.cache_tokens:
        tokens = float(check.cache_tokens)
        rows.append(
            Row(what="cache", measured=tokens, calibrated=reading.cache_tokens, fitted=float("nan"), unit="tokens")
        )
    return rows


def prefill_s(reading: MeasuredSpeed, tokens: int) -> float:
    """A prompt in chunks."""
    seconds, past = 0.0, 0
    while past < tokens:
        piece = min(reading.chunk, tokens - past)
        seconds += reading.step_s(0, 0, piece, past)
        past += piece
    return seconds


def uncalibrated(recipe: Recipe, layers: int, asked_box: str) -> Speed:
    """The forecast from published measurements for a model of that depth."""
    return Speed.from_published_rows(cut_layers(deploy(recipe, detect.load_box(asked_box or None)), layers))


def show(found: Calibration, check: int, rows: list[Row], took: float, load: tuple[float, float, float]) -> None:
    """The table, as Markdown."""
    print(f"\n{found.engine} {found.version}, {found.model} {found.quant}, {found.place.text}, {found.date}")
    print(f"calibrated from {found.depths} layers in {took:.0f} s, checked at {check}; load average {load[0]:.1f}\n")
    print("| | measured | calibrated | off | published rows alone | off |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        fitted = f"{row.fitted:,.1f} | {row.fitted_off:+.0%}" if row.fitted == row.fitted else "– | –"
        print(f"| {row.what}, {row.unit} | {row.measured:,.1f} | {row.calibrated:,.1f} | {row.off:+.1%} | {fitted} |")
    judged = [row for row in rows if row.range_factor == row.range_factor]
    inside = sum(1 / row.range_factor <= row.measured / row.calibrated <= row.range_factor for row in judged)
    worse = max(abs(row.off) - abs(row.fitted_off) for row in judged)
    print(
        f"\n{inside} of {len(judged)} inside the stated range; at worst {worse * 100:+.1f} points beside published rows"
    )
    for note in (*found.notes, *(f"disturbed: {line}" for line in found.disturbed)):
        print(f"\n{note}")


def say(line: str) -> None:
    """Progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
