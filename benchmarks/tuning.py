"""Regret of `moebox tune` against the whole grid, and how well few layers rank settings, with dummy weights.

    python benchmarks/tuning.py vllm MODELS/kimi --out DIR --settings '{"max_seqs": [8, 64], "flags.block-size": [64]}'

MODEL is a catalogue name or a folder with config.json and a tokenizer. Every point of the grid is measured with
--shallow and with --deep layers (4 and 12). The search of `moebox tune` is then replayed: shallow measurements screen,
deep ones decide between the finalists. Printed are Spearman's rank correlation between both depths, the winner, and its
regret: how much slower it is, with --deep layers, than the best point of the grid. Each call measures for at most
--seconds (540), and another call with the same --out goes on; figures are printed once the grid is complete.
--by-cpu divides tokens by the server's CPU time instead, which other programs of a shared machine hardly change; it
says nothing of settings that trade CPU time for waiting, such as threads.
--parts 4,2 starts four shallow engines at a time, and two deep ones, each in its share of the GPU's memory (--memory).
While one of them is measured, the others are stopped (SIGSTOP).
"""

import argparse
import contextlib
import fcntl
import functools
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from moebox import codec
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Hybrid, Listen, Parallel, Recipe, Runtime
from moebox.detect.conditions import server_processes
from moebox.detect.machine import detect_machine
from moebox.flows.pace import WARM, SpeedRounds, measure_speed
from moebox.flows.tune import Tuner
from moebox.flows.tune_state import TUNE_FILE, Changes, ScreenTrial, TuneOptions, TuneState, combine_changes
from moebox.flows.walk import ClimbEffort
from moebox.serve.guard import MARK
from moebox.store import Run

ROUNDS_STAGE = 1  # four rounds of each point


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share their mean rank. NaN if one side is constant."""

    def ranks(values: Sequence[float]) -> list[float]:
        below = [sum(other < value for other in values) for value in values]
        same = [sum(other == value for other in values) for value in values]
        return [low + (count - 1) / 2 for low, count in zip(below, same, strict=True)]

    a, b = ranks(left), ranks(right)
    middle = (len(a) - 1) / 2
    both = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b))
    return both / spread if spread else math.nan


def measure_by_cpu(endpoint: Endpoint, *, concurrency: int, rounds: int, tokens: int) -> SpeedRounds:
    """Tokens per second of the server's CPU time in each round, over its processes."""
    family = [psutil.Process(pid) for pid in server_processes(endpoint.server_url) or ()]
    found = []
    for _ in range(rounds):
        before = sum(sum(process.cpu_times()[:2]) for process in family)
        speed = measure_speed(endpoint, concurrency=concurrency, rounds=1, tokens=tokens)  # one more warms up
        spent = sum(sum(process.cpu_times()[:2]) for process in family) - before
        found.append(replace(speed, tok_s=((1 + WARM) * concurrency * tokens / spent,)))
    return replace(found[0], tok_s=tuple(row.tok_s[0] for row in found), ttft_ms=tuple(row.ttft_ms[0] for row in found))


@contextlib.contextmanager
def others_stopped(folder: Path) -> Iterator[None]:
    """Stop all engines whose state lies in `folder`, but those of this process, until the block ends."""
    stopped = []
    with open(folder / "turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    mark = process.environ().get(MARK, "")
                    if f"@{folder}/" in mark and not mark.endswith("@" + os.environ["MOEBOX_STATE"]):
                        process.send_signal(signal.SIGSTOP)
                        stopped.append(process)
            yield
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    process.send_signal(signal.SIGCONT)


def measure_alone(folder: Path, endpoint: Endpoint, **how: int) -> SpeedRounds:
    """Measure one engine while the other parts' engines stand still."""
    with others_stopped(folder):
        return measure_speed(endpoint, **how)


def measure_parts(layers: int, parts: int, memory: str) -> dict[str, float]:
    """Measure the grid in several processes, each of which has a part of it."""

    def measure_part(part: int) -> dict[str, float]:
        words = [*sys.argv[1:], "--part", f"{part}/{parts}", "--shallow", str(layers), "--memory", memory]
        done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    with ThreadPoolExecutor(parts) as pool:
        return {key: value for found in pool.map(measure_part, range(parts)) for key, value in found.items()}


def list_grid(settings: dict[str, list[Any]]) -> list[Changes]:
    """Every combination; a setting that stays as it is counts as one of its values."""
    rows = itertools.product(*([None, *values] for values in settings.values()))
    return [{path: value for path, value in zip(settings, row, strict=True) if value is not None} for row in rows]


def measure_grid(recipe: Recipe, grid: list[Changes], layers: int, given: argparse.Namespace) -> dict[str, float]:
    """The speed of each point with so many layers, by its JSON; points that failed have 0; missing: out of time."""
    home = Path(given.out).resolve()
    folder = home / (f"{layers}-layers" + (f"-{given.part.replace('/', '-of-')}" if given.part else ""))
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder)
    path = folder / TUNE_FILE
    spent = codec.decode(TuneState, run.read_json(TUNE_FILE), where=str(path)).spent_s if path.exists() else 0.0
    measure = measure_by_cpu if given.by_cpu else measure_speed
    if given.part:
        os.environ["MOEBOX_STATE"] = str(home / folder.name.replace("layers", "state"))
        measure = functools.partial(measure_alone, home)
    effort = ClimbEffort(concurrency=given.streams, tokens=given.tokens, measure_speed=measure)
    options = TuneOptions(budget_s=spent + given.seconds, layers=layers)
    tuner = Tuner(
        recipe, run, effort, lambda kind, news: print(news, file=sys.stderr), detect_machine(), options=options
    )
    tuner.update(layers=layers, screened=tuple(row for row in tuner.state.screened if row.scores))  # failed ones: again
    found: dict[str, float] = {}
    with tuner.budget:
        for changes in grid:
            row = tuner.screen(changes, ROUNDS_STAGE)
            if row is None:
                break
            found[json.dumps(changes)] = statistics.median(row.scores) if row.scores else 0.0
            if row.why:
                print(f"{changes}: {row.why}", file=sys.stderr)
    return found


def main() -> int:
    """Measure, and print the figures once both depths are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("model")
    parser.add_argument("--checkpoint", default="", help="the catalogue's form; the model itself for a folder")
    parser.add_argument("--settings", required=True, help="recipe paths and values, as JSON")
    parser.add_argument("--entry", default="", help="words that start the engine; its usual ones without")
    parser.add_argument("--flags", default="{}", help="more flags of the engine, as JSON")
    parser.add_argument("--shallow", type=int, default=4)
    parser.add_argument("--deep", type=int, default=12)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="per stream")
    parser.add_argument("--by-cpu", action="store_true")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--finalists", type=int, default=2)
    parser.add_argument("--combinations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--parts", default="", help="engines at a time: of the shallow ones, and of the deep ones")
    parser.add_argument("--memory", default="", help="share of the GPU for a shallow engine, and for a deep one")
    parser.add_argument("--part", default="", help="for --parts: measure only every fourth point (1/4) of --shallow")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    settings = json.loads(given.settings)
    recipe = Recipe(
        name="tuning",
        engine=given.engine,
        model=given.model,
        checkpoint=given.checkpoint or given.model,
        served_name="tuning",
        context=given.context,
        parallel=Parallel(),
        hybrid=Hybrid() if any(path.startswith("hybrid") for path in settings) else None,
        runtime=Runtime(entry=given.entry),
        listen=Listen(port=0),
        flags=json.loads(given.flags),
    )
    grid = list_grid(settings)
    if given.part:
        part, parts = map(int, given.part.split("/"))
        recipe = replace(recipe, memory_utilization=float(given.memory)) if given.memory else recipe
        print(json.dumps(measure_grid(recipe, grid[part::parts], given.shallow, given)))
        return 0
    if given.parts:
        counts, shares = given.parts.split(","), given.memory.split(",")
        shallow = measure_parts(given.shallow, int(counts[0]), shares[0])
        deep = measure_parts(given.deep, int(counts[-1]), shares[-1]) if len(shallow) == len(grid) else {}
    else:
        shallow = measure_grid(recipe, grid, given.shallow, given)
        deep = measure_grid(recipe, grid, given.deep, given) if len(shallow) == len(grid) else {}
    if len(deep) < len(grid):
        print(f"{len(shallow)} and {len(deep)} of {len(grid)} points measured; run it again to go on")
        return 1
    if failed := [key for key in shallow if not shallow[key] or not deep[key]]:
        print(f"failed: {', '.join(failed)}; run it again to try them once more")
        return 1

    class Replay(Tuner):
        """The search of `moebox tune` over measurements that are there."""

        def screen(self, changes: Changes, stage: int) -> ScreenTrial:
            point = {path: changes[path] for path in settings if path in changes}
            return ScreenTrial(changes=changes, stage=stage, scores=(shallow[json.dumps(point)],))

        def forecast_gain(self, changes: Changes) -> float:
            return 0.0

    options = TuneOptions(combinations=given.combinations, finalists=given.finalists)
    folder = Path(given.out) / "replay"
    folder.mkdir(exist_ok=True)
    replay = Replay(recipe, Run(folder), ClimbEffort(), lambda kind, news: None, None, options=options)
    pool = combine_changes(settings, replay.screen_settings(settings), width=given.combinations)
    pool = [{path: changes[path] for path in settings if path in changes} for changes in replay.halve(pool)]
    winner = max([{}, *pool], key=lambda changes: deep[json.dumps(changes)])
    best = max(deep.values())
    ranks = rank_correlation([shallow[key] for key in deep], [*deep.values()])
    print(f"points: {len(grid)}")
    print(f"rank correlation of {given.shallow} and {given.deep} layers: {ranks:.3f}")
    print(f"winner: {winner or 'the start'}; best of the grid: {max(deep, key=lambda key: deep[key])}")
    print(f"gain over the start: {deep[json.dumps(winner)] / deep['{}'] - 1:+.1%}")
    print(f"regret against the grid: {1 - deep[json.dumps(winner)] / best:.1%}")
    for key in sorted(deep, key=lambda key: -deep[key]):
        print(f"  {shallow[key]:10.1f} {deep[key]:10.1f}  {key}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
