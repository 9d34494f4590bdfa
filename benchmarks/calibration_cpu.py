"""Both llama.cpp servers on this machine's CPU: 4 and 8 layers of Qwen3-235B in q4_0 foretell 11. One command:

    python benchmarks/calibration_cpu.py --llama BUILD/bin/llama-server --ik BUILD/bin/llama-server

Wants an idle machine with 20 GB of free memory; both engines together take about 15 minutes. Noise is dealt with, not
hoped away: every depth is booted twice, in the order 4 8 11 11 8 4, so that a machine that slows down meanwhile slows
all of them; a third round follows where the two disagree and time is left. Whatever disturbs a step only adds time,
so of all looks at a point the shortest that agree count (`moebox.flows.calibrate_timing`). Asked for: decode within
8 %, prompts within 15 %. Ends with 1 where that is missed.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration import measure_depth

from moebox.core.calibration import (
    Boot,
    Calibration,
    DecodeStep,
    PrefillStep,
    calibrated_box,
    calibrated_layout,
    shape_id,
)
from moebox.core.recipe import EngineName, Flag, Hybrid, Listen, Recipe, Runtime
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate import deploy_for_calibration
from moebox.planner.speed.measured import MeasuredSpeed
from moebox.store import Run

MODEL, QUANT = "qwen3-235b", "q4_0"
CHECKPOINT = "Q4_K_M"  # a mix that cannot be generated: the dummy's experts are q4_0 instead
CONTEXT = 704  # prompts of 128 and 512 tokens, and room for the reply
CHUNK = 512
# Decode of one stream and two lengths of prompts: what TG and PP are.
POINTS = Boot(
    layers=1,
    decode=(DecodeStep(batch=1, context=256, seconds=1.0),),
    prefill=(PrefillStep(tokens=128, seconds=1.0), PrefillStep(tokens=512, seconds=1.0)),
)
BOOT_S = 110.0  # longest time of one boot, loading included
ENGINE_S = 600.0  # longest time of one engine
GOALS = {"decode": 0.08, "prompt": 0.15}
# Mainline repacks q4_0 weights while it loads, which takes minutes for 15 GB and as much memory again.
FLAGS: dict[EngineName, dict[str, Flag]] = {"llama.cpp": {"repack": False}, "ik_llama.cpp": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of the deepest boot: measured, and foretold by the others."""

    engine: str
    what: str
    measured: float
    foretold: float
    spread: float  # by which looks at the same point differ, at worst
    goal: float

    @property
    def off(self) -> float:
        """Error of the forecast."""
        return self.foretold / self.measured - 1

    @property
    def met(self) -> bool:
        """Whether the goal is."""
        return abs(self.off) <= self.goal


def main() -> int:
    """Both engines, one table."""
    asked = arguments()
    home = Path(asked.out or tempfile.mkdtemp(prefix="calibration-cpu-"))
    home.mkdir(parents=True, exist_ok=True)
    os.environ["MOEBOX_STATE"] = str(home / "state")
    os.environ["MOEBOX_CALIBRATIONS"] = str(home / "calibrations")
    depths = tuple(int(word) for word in asked.layers.split(","))
    began, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    servers: tuple[tuple[EngineName, str], ...] = (("ik_llama.cpp", asked.ik), ("llama.cpp", asked.llama))
    for engine, server in servers:
        if server:
            recipe = recipe_of(engine, server, asked.threads)
            boots = measured(recipe, home, depths)
            (home / f"{engine}.json").write_text(json.dumps([dataclasses.asdict(boot) for boot in boots], indent=1))
            rows += compared(recipe, boots)
    show(rows, depths, seconds=time.monotonic() - began, load=load, home=home)
    wanted = (len(POINTS.decode) + len(POINTS.prefill)) * sum(bool(server) for _, server in servers)
    if len(rows) < wanted:
        print(f"\n{wanted - len(rows)} of {wanted} figures are missing: time was up before they were measured")
    return 0 if len(rows) == wanted and all(row.met for row in rows) else 1


def arguments() -> argparse.Namespace:
    """What was asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", default="", help="llama-server of mainline llama.cpp")
    parser.add_argument("--ik", default="", help="llama-server of ik_llama.cpp")
    parser.add_argument("--layers", default="4,8,11", help="two depths and the one they foretell")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default="", help="where runs and timings are kept")
    asked = parser.parse_args()
    if not asked.llama and not asked.ik:
        parser.error("name at least one server: --llama, --ik")
    return asked


def recipe_of(engine: EngineName, server: str, threads: int) -> Recipe:
    """One stream on all threads."""
    return Recipe(
        name="calibration",
        engine=engine,
        model=MODEL,
        checkpoint=CHECKPOINT,
        served_name="calibration",
        context=CONTEXT,
        max_seqs=1,
        hybrid=Hybrid(threads=threads, threads_batch=threads, ubatch=CHUNK, gpu_layers=0),
        runtime=Runtime(entry=server),
        listen=Listen(port=0),
        flags=FLAGS[engine],
    )


def measured(recipe: Recipe, home: Path, depths: Sequence[int]) -> list[Boot]:
    """Every depth by all its boots."""
    until = time.monotonic() + ENGINE_S
    boots: dict[int, list[Boot]] = {depth: [] for depth in depths}
    for depth in (*depths, *reversed(depths)):
        boots[depth].append(booted(recipe, home, depth))
    for depth in depths:
        left = until - time.monotonic()
        if left > BOOT_S and doubtful(boots[depth]):
            boots[depth].append(booted(recipe, home, depth))
    return [joined(boots[depth]) for depth in depths]


def booted(recipe: Recipe, home: Path, depth: int) -> Boot:
    """One boot at the points that count."""
    run = Run.create(f"{recipe.engine}-{depth}", runs=home / "runs")
    boot = measure_depth(recipe, run, depth, known=POINTS, budget_s=BOOT_S, notify=say)
    decode = ", ".join(f"{1 / step.seconds:.2f} tok/s" for step in boot.decode)
    prompts = ", ".join(f"{prompt.tokens / prompt.seconds:.1f} tok/s of {prompt.tokens}" for prompt in boot.prefill)
    say(f"{recipe.engine}, {depth} layers: decode {decode}; prompts {prompts}; load {os.getloadavg()[0]:.1f}")
    return boot


def doubtful(boots: Sequence[Boot]) -> bool:
    """Whether the boots of a depth disagree by more than their looks may."""
    return any(timing.look_disagreement(looks) > timing.QUIET for looks in looks_of(boots).values())


def looks_of(boots: Sequence[Boot]) -> dict[tuple[int, int], list[float]]:
    """Seconds of every boot by batch and context; batch 0 is a prompt."""
    table: dict[tuple[int, int], list[float]] = {}
    for boot in boots:
        for step in boot.decode:
            table.setdefault((step.batch, step.context), []).append(step.seconds)
        for prompt in boot.prefill:
            table.setdefault((0, prompt.tokens), []).append(prompt.seconds)
    return table


def joined(boots: Sequence[Boot]) -> Boot:
    """All boots of a depth as one: at every point the shortest looks that agree."""
    looks = looks_of(boots)
    return dataclasses.replace(
        boots[0],
        decode=tuple(
            DecodeStep(
                batch=batch, context=context, seconds=timing.agreed_time(seen), spread=timing.look_disagreement(seen)
            )
            for (batch, context), seen in sorted(looks.items())
            if batch
        ),
        prefill=tuple(
            PrefillStep(tokens=tokens, seconds=timing.agreed_time(seen), spread=timing.look_disagreement(seen))
            for (batch, tokens), seen in sorted(looks.items())
            if not batch
        ),
    )


def compared(recipe: Recipe, boots: Sequence[Boot]) -> Iterator[Row]:
    """What the first two depths foretell of the third."""
    subject = deploy_for_calibration(recipe)
    found = Calibration(
        id="cpu",
        date=time.strftime("%Y-%m-%d"),
        place=calibrated_box(subject.required_box),
        engine=recipe.engine,
        model=subject.model.title,
        shape=shape_id(subject.model),
        layers=subject.model.layers,
        quant=QUANT,
        layout=calibrated_layout(recipe),
        boots=tuple(boots[:2]),
    )
    check = boots[2]
    reading = MeasuredSpeed(calibration=found, layers=check.layers, chunk=CHUNK)
    for step in check.decode if reading.decode_times else ():
        yield Row(
            engine=recipe.engine,
            what=f"decode at {step.context}",
            measured=1 / step.seconds,
            foretold=1 / reading.decode_s(step.batch, step.context),
            spread=worst(boots, step.batch, step.context),
            goal=GOALS["decode"],
        )
    known = {tokens for tokens, _ in reading.prompt_times}
    for prompt in (prompt for prompt in check.prefill if prompt.tokens in known):
        yield Row(
            engine=recipe.engine,
            what=f"prompt of {prompt.tokens}",
            measured=prompt.tokens / prompt.seconds,
            foretold=prompt.tokens / reading.prefill_s(prompt.tokens, 0),
            spread=worst(boots, 0, prompt.tokens),
            goal=GOALS["prompt"],
        )


def worst(boots: Sequence[Boot], batch: int, context: int) -> float:
    """By how much the boots of one depth differed at a point, at the depth where they did most."""
    steps = [step.spread for boot in boots for step in boot.decode if (step.batch, step.context) == (batch, context)]
    prompts = [prompt.spread for boot in boots for prompt in boot.prefill if (0, prompt.tokens) == (batch, context)]
    return max([*steps, *prompts], default=0.0)


def show(rows: Sequence[Row], depths: Sequence[int], *, seconds: float, load: float, home: Path) -> None:
    """The table, as Markdown."""
    few, more, check = depths
    print(f"\n{MODEL} in {QUANT}: {few} and {more} layers foretell {check}; {seconds / 60:.1f} minutes,")
    print(f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after; timings in {home}\n")
    print("| engine | | measured tok/s | foretold | off | goal | boots differ by |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        mark = "" if row.met else " missed"
        figures = f"{row.measured:.2f} | {row.foretold:.2f} | {row.off:+.1%} | {row.goal:.0%}{mark} | {row.spread:.1%}"
        print(f"| {row.engine} | {row.what} | {figures} |")


def say(line: str) -> None:
    """Progress."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
