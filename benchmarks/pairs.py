"""Compare published pairs with the forecast: a model on two boxes, a box with two engines, formats, sizes or prompts.

    python benchmarks/pairs.py [--all]

Rows are in pairs.csv: milliseconds a token of both sides at the same load (InferenceX, 2026), with the versions, and
with settings of launch scripts that the forecast needs. `use` is fit (fit_speed.py fits ratios of them beside absolute
rows) or score (never fitted). A direction counts if the two sides differ by more than SPREAD, and by more than the
published results of either setup differ among each other (this table and unseen.csv, any version).
"""

import csv
import functools
import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import published
import unseen

SPREAD = 0.10  # four of five of 216 setups that were published more than once, by any version, differ by less
REQUESTS = 4  # for each stream: ratios need no more


@dataclass(frozen=True, slots=True)
class Pair:
    """Two published results that differ in one thing."""

    row: dict[str, str]

    @property
    def name(self) -> str:
        """What differs, and where."""
        row, names = self.row, ("box", "engine", "checkpoint", "input")
        sides = [" ".join(row[f"{name}_{side}"] for name in names) for side in "ab"]
        return f"{row['model']} C{row['concurrency']}: {sides[0]} -> {sides[1]}"

    @property
    def published(self) -> float:
        """Logarithm of the second side's time over the first's."""
        return math.log(float(self.row["tpot_b"]) / float(self.row["tpot_a"]))

    def predict(self) -> float:
        """Logarithm of the forecast ratio."""
        first, second = (forecast_ms(*self._key(side)) for side in "ab")
        return math.log(second / first)

    @property
    def counts(self) -> bool:
        """The published difference is larger than runs of one setup differ: of any, and of these two."""
        spreads = [setup_spreads()[self.setup(side)] for side in "ab"]
        return abs(self.published) > max(math.log(1 + SPREAD), *spreads)

    def setup(self, side: str) -> tuple[str, ...]:
        """What was run on one side, whatever the version."""
        names = (f"{name}_{side}" for name in ("engine", "checkpoint", "box", "tp", "input"))
        return (self.row["model"], self.row["output"], self.row["concurrency"], *map(self.row.__getitem__, names))

    def _key(self, side: str) -> tuple[str, ...]:
        return (*self.setup(side), self.row[f"settings_{side}"])


def load_pairs(*, use: str = "", engine: str = "") -> Iterator[Pair]:
    """Yield the pairs of one use and engine, or all."""
    with open(Path(__file__).with_suffix(".csv"), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if use in ("", row["use"]) and engine in ("", row["engine_a"]):
                yield Pair(row)


@functools.cache
def setup_spreads() -> dict[tuple[str, ...], float]:
    """Return ln(slowest / fastest) of the published results of each setup, as far apart as their rounding allows."""
    times: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for pair in load_pairs():
        for side in "ab":
            times[pair.setup(side)].add(pair.row[f"tpot_{side}"])
    for row in unseen.read_rows(unseen.ROWS):
        words = row["args"].split()
        options = dict(itertools.pairwise(words))
        if row["metric"] == "tpot" and "--ep" not in options and options.get("--speculate") == "none":
            names = ("--engine", "--checkpoint", "", "--tp", "--input")
            values = (row["box"] if not name else options.get(name, "") for name in names)
            times[row["model"], options.get("--output", ""), row["concurrency"], *values].add(row["measured"])
    spreads = {}
    for setup, seen in times.items():
        halves = {text: 0.5 * 10.0 ** -len(text.partition(".")[2]) for text in seen}
        slowest = max(float(text) + half for text, half in halves.items())
        fastest = min(float(text) - half for text, half in halves.items())
        spreads[setup] = math.log(slowest / fastest)
    return spreads


@functools.cache
def forecast_ms(
    model: str,
    output: str,
    concurrency: str,
    engine: str,
    checkpoint: str,
    box: str,
    tp: str,
    prompt: str,
    settings: str,
) -> float:
    """Milliseconds a token of one side, simulated."""
    run: dict[str, Any] = {"model": model, "engine": engine, "checkpoint": checkpoint, "box": box, "kv": "auto"}
    given = dict(word.split("=") for word in settings.split())
    typed = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    flags = ("moe-backend", "moe-runner-backend", "max-prefill-tokens")
    run |= {"flags": {name: typed.pop(name) for name in flags if name in typed}} | typed
    run |= {
        "tp": int(tp),
        "input": int(prompt),
        "output": int(output),
        "lengths": "near",
        "requests_per_slot": REQUESTS,
    }
    # Medians are published, but those of the simulation lie in bins of 1%, in which small differences are lost.
    return published.outcome(run, {"concurrency": int(concurrency)}).tpot.mean * 1e3


def summary() -> Iterator[tuple[str, int, int, int, float]]:
    """Yield each kind's name, pairs, pairs that count, directions that are right, and the median error of the ratio."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in load_pairs():
        groups[f"{pair.row['kind']}, {pair.row['use']}"].append(pair)
    for name, pairs in sorted(groups.items()):
        counted = [pair for pair in pairs if pair.counts]
        right = sum(pair.published * pair.predict() > 0 for pair in counted)
        errors = [abs(pair.predict() - pair.published) for pair in pairs]
        yield name, len(pairs), len(counted), right, math.expm1(statistics.median(errors))


def main() -> None:
    """Print wrong directions, or every pair, then the summary."""
    for pair in load_pairs():
        wrong = pair.counts and pair.published * pair.predict() <= 0
        if wrong or "--all" in sys.argv:
            ratios = f"{math.exp(pair.published):.2f} published, {math.exp(pair.predict()):.2f} forecast"
            print(f"{pair.name}  {ratios}{'  WRONG' if wrong else ''}")
    for name, rows, counted, right, error in summary():
        print(f"{name:18} {rows:4} pairs  {right} of {counted} directions right  median error of the ratio {error:.0%}")


if __name__ == "__main__":
    main()
