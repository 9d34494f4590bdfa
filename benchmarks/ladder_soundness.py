"""How often the ladder is right: the chance of yellow or red for faults of many kinds at many rates, and false alarms.

    python benchmarks/ladder_soundness.py power --rates 1,3,10,30 --climbs 10   # kinds x rates x whole/streamed
    python benchmarks/ladder_soundness.py power --effort thorough --noise 50    # a model that errs once in 50 prompts
    python benchmarks/ladder_soundness.py family --rates 1,10                   # every broken server, once at each rate
    python benchmarks/ladder_soundness.py odd                                   # every odd server that is right, once
    python benchmarks/ladder_soundness.py healthy --climbs 200                  # false alarms; odd servers too
    python benchmarks/ladder_soundness.py draws --climbs 20                     # constant faults that some draw misses
    python benchmarks/ladder_soundness.py table                                 # chance of detection, simulated

Ladders are numbered from `--first` on. The number is the seed of their questions and of what is broken when, so
the same command gives the same figures. Asked is the oracle of tests/verify: real HTTP, no model. Each kind of fault is
looked for by the checks that can show it (`--all-rungs` makes all), so the requests printed are those of these checks.
`--log FILE` keeps every verdict: the same command goes on from there, and prints what is known if `--minutes` are over.
`--part 1/2` and `--part 2/2` with the same file share the work between two processes; a third call prints all of it.
`table` runs the sequential test itself on simulated outcomes, and judges simulated readings as `moebox quality` does.
"""

import argparse
import dataclasses
import json
import math
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.verify.oracle.app import MODEL, serving
from tests.verify.oracle.faults import FAULTS
from tests.verify.oracle.fifth import FIFTH, SOME
from tests.verify.oracle.fourth import FOURTH
from tests.verify.oracle.rates import ALL, RIGHT
from tests.verify.oracle.second import SECOND
from tests.verify.oracle.seventh import SEVENTH
from tests.verify.oracle.seventh import SOME as SOME_SEVENTH
from tests.verify.oracle.sixth import SIXTH, THOUGHT_OF
from tests.verify.oracle.sixth import SOME as SOME_SIXTH
from tests.verify.oracle.third import THIRD
from tests.verify.test_runner import MISSED

from moebox.core.endpoint import endpoint_from_url
from moebox.core.setting import Effort
from moebox.core.verdict import Mark, wilson_score
from moebox.quality.judge import judge_quality
from moebox.quality.wire import NextToken, TextReading
from moebox.verify.options import TRIALS, VerifyOptions
from moebox.verify.runner import run_checks
from moebox.verify.statistics import FailureCounts
from moebox.verify.trials import TrialSeries

FAMILIES = {
    "first": tuple(name for name, fault in FAULTS.items() if fault.check),
    "second": tuple(SECOND),
    "third": tuple(THIRD),
    "fourth": tuple(FOURTH),
    "fifth": tuple(f"{name}@3" if name in SOME else name for name in FIFTH),
    "sixth": tuple(f"{name}@3" if name in SOME_SIXTH else name for name in SIXTH),
    "seventh": tuple(f"{name}@3" if name in SOME_SEVENTH else name for name in SEVENTH),
    "thought-of": tuple(THOUGHT_OF),
}

# A fault, the mode that shows it, and the rungs that must.
KINDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("piece-lost", "s", ("tools",)),
    ("arguments-cut", "w", ("tools",)),
    ("arguments-cut", "s", ("tools",)),
    ("last-call-lost", "s", ("tools",)),
    ("required-ignored", "w", ("tools",)),
    ("json-cut", "w", ("json",)),
    ("json-cut", "s", ("json",)),
    ("json-fence", "w", ("json",)),
    ("drops-last-chunk", "s", ("streaming",)),
    ("chunk-twice", "s", ("streaming",)),
    ("chunks-swapped", "s", ("streaming",)),
    ("no-done", "s", ("streaming",)),
    ("usage-of-last-chunk", "s", ("streaming",)),
    ("leaks-special-tokens", "s", ("streaming",)),
    ("think-tags", "w", ("thinking",)),
    ("word-after-thoughts-lost", "s", ("thinking",)),
    ("last-thoughts-lost", "s", ("thinking",)),
    ("second-choice-cut", "s", ("sampling",)),
    ("responses-pieces-lost", "s", ("responses",)),
    ("responses-uncounted", "w", ("responses",)),
    ("wrong-sums", "w", ("arithmetic",)),
    ("empty-at-times", "w", ("plain",)),
    ("finish-eos", "w", ("plain",)),
    ("stop-ignored", "w", ("limits",)),
    ("limit-doubled", "s", ("limits",)),
    ("stop-begins-to-show", "s", ("limits",)),
    ("non-ascii-arguments-lost", "s", ("prompts",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed:
    """What came of several ladders of one server."""

    caught: int
    climbs: int
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """What came of one ladder. `reason` is that of the first check that is not green."""

    verdict: Mark
    requests: int
    reason: str


class ClimbLog:
    """Ladders that were climbed, in a file if there is one, and the time for more of them."""

    def __init__(self, file: str, part: str, minutes: float) -> None:
        self.file = Path(file) if file else None
        self.number, self.parts = (int(text) for text in part.split("/"))
        self.ends = time.monotonic() + 60 * minutes
        self.left_out = 0
        lines = self.file.read_text().splitlines() if self.file and self.file.exists() else []
        self.known = {key: Climb(**climb) for key, climb in map(json.loads, lines)}

    def is_mine(self, key: str) -> bool:
        """Whether this ladder is to be climbed by this process, and now."""
        mine = zlib.crc32(key.encode()) % self.parts == self.number % self.parts and time.monotonic() < self.ends
        self.left_out += not mine
        return mine

    def add(self, key: str, climb: Climb) -> None:
        self.known[key] = climb
        if self.file:
            with self.file.open("a") as file:
                file.write(json.dumps([key, dataclasses.asdict(climb)]) + "\n")


LOG = ClimbLog("", "1/1", math.inf)


def main() -> int:
    """Climb, count, and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("power", "family", "odd", "healthy", "draws", "table"))
    parser.add_argument("--rates", default="1", help="one request in N is broken")
    parser.add_argument("--climbs", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the number of the first healthy ladder, and its seed")
    parser.add_argument("--effort", choices=sorted(TRIALS), action="append")
    parser.add_argument("--noise", type=int, default=0, help="the model errs on one prompt in N")
    parser.add_argument("--kinds", default="", help="only these faults, comma-separated")
    parser.add_argument(
        "--family", default="first,second,third,fourth,fifth,sixth,seventh", help="which families of broken servers"
    )
    parser.add_argument("--minutes", type=float, default=600, help="stop after so long, and say how far it came")
    parser.add_argument("--all-rungs", action="store_true")
    parser.add_argument("--log", default="", help="keeps every verdict; the same command goes on from there")
    parser.add_argument("--part", default="1/1", help="K/N: climb only the Kth of N parts")
    given = parser.parse_args()
    global LOG
    LOG = ClimbLog(given.log, given.part, given.minutes)
    began = time.monotonic()
    if given.what == "table":
        print_table()
        return 0
    with serving() as url:
        ways = {"power": power, "family": family, "odd": odd, "healthy": healthy, "draws": draws}
        good = ways[given.what](url, given)
    left = f", {LOG.left_out} ladders of other parts or out of time" if LOG.left_out else ""
    print(f"{time.monotonic() - began:.0f} s{left}")
    return 0 if good else 1


def power(url: str, given: argparse.Namespace) -> bool:
    """The chance of yellow or red by kind, rate and effort."""
    rates = [int(rate) for rate in given.rates.split(",")]
    named = wanted(given, [kind[0] for kind in KINDS])
    kinds = [kind for kind in KINDS if kind[0] in named]
    for effort in given.effort or list(TRIALS):
        print(f"\n{effort}: {TRIALS[effort]} trials" + (f", model wrong on 1 in {given.noise}" if given.noise else ""))
        print(f"| fault | | {' | '.join(f'1/{rate}' for rate in rates)} | requests |")
        print("| --- | --- " + "| --- " * (len(rates) + 1) + "|")
        sums = dict.fromkeys(rates, (0, 0))
        for name, mode, rungs in kinds:
            cells, asked = [], 0.0
            for rate in rates:
                seen = climbed(url, f"{name}@{rate}!{mode}", given, effort, rungs)
                sums[rate] = (sums[rate][0] + seen.caught, sums[rate][1] + seen.climbs)
                cells.append(f"{seen.caught}/{seen.climbs}")
                asked = seen.requests
            print(
                f"| {name} | {'streamed' if mode == 's' else 'whole'} | {' | '.join(cells)} | {asked:.0f} |", flush=True
            )
        print("| all | | " + " | ".join(_share(*sums[rate]) for rate in rates) + " | |", flush=True)
    return True


def print_table() -> None:
    """Chance of detection by rate, dose and damage, with requests and minutes, for each effort."""
    runs, rng = 2000, random.Random(1)
    print("\n| one kind of request | rate | yellow or red | red | requests | at 2 s | at 10 s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for effort, trials in TRIALS.items():
        for rate in (1, 3, 10, 30, 100):
            found = [run_series(trials, [1 / rate] * 10_000, rng) for _ in range(runs)]
            print(row_text(effort, f"1 in {rate}", found))
    print("\n| faults that grow with the dose | largest chance | yellow or red | red | requests | at 2 s | at 10 s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for effort, trials in TRIALS.items():
        for most in (0.9, 0.5, 0.25, 0.1):
            # Doses are drawn evenly from nothing to the largest one
            found = [run_series(trials, [most * rng.random() for _ in range(1000)], rng) for _ in range(runs)]
            print(row_text(effort, f"{most:.0%} at the end", found))
    print("\n| damage in nats | positions | called different | noise between 3 references |")
    print("| --- | --- | --- | --- |")
    for positions in (400, 1100, 4200):
        for damage in (0.0, 0.005, 0.01, 0.02, 0.05):
            seen, noise = zip(*(judge_drawn_readings(positions, damage, seed) for seed in range(20)), strict=True)
            print(f"| {damage:g} | {positions:,} | {sum(seen)} of 20 | {sum(noise) / 20:.4f} |", flush=True)


def row_text(effort: Effort, what: str, found: Sequence[tuple[Mark, int]]) -> str:
    """One row of the table, from verdicts and numbers of requests."""
    red = sum(mark == "fail" for mark, _ in found) / len(found)
    seen = sum(mark != "pass" for mark, _ in found) / len(found)
    requests = sum(count for _, count in found) / len(found)
    minutes = " | ".join(f"{requests * seconds / 60:.1f} min" for seconds in (2, 10))
    return f"| {effort} | {what} | {seen:.0%} | {red:.0%} | {requests:.0f} | {minutes} |"


def run_series(trials: int, chances: Sequence[float], rng: random.Random) -> tuple[Mark, int]:
    """One series of trials whose outcomes have these chances to fail: its verdict and its length."""
    options = VerifyOptions(trials=trials)
    session = SimpleNamespace(options=options, failures=FailureCounts(), seconds_left=1.0)
    series = TrialSeries(session, "answer", trials, stream=False)  # type: ignore[arg-type]
    while not series.is_over and not series.failing_side:
        series.add("wrong" if rng.random() < chances[series.of] else "")
    return series.judge_side("server"), series.of


def judge_drawn_readings(positions: int, damage: float, seed: int) -> tuple[bool, float]:
    """Judge a server that is `damage` nats away, with three references as far apart as healthy variants are."""
    truth = random.Random(seed)
    logits = [[2.5 * truth.gauss() for _ in range(24)] for _ in range(positions)]

    def draw(spread: float, own_seed: str) -> list[TextReading]:
        rng, found = random.Random(own_seed), []
        for depth, row in enumerate(logits):
            # Experts flip at some positions only, so most of a difference is in few of them
            scale = spread * (3.0 if rng.random() < 0.1 else 0.3)
            moved = [value + scale * rng.gauss() for value in row]
            total = math.log(math.fsum(map(math.exp, moved)))
            top = sorted(enumerate(value - total for value in moved), key=lambda pair: -pair[1])[:20]
            found.append(NextToken(depth=depth, token=0, top=dict(top)))
        return [TextReading(kind="drawn", name="drawn", tokens=(0,) * positions, positions=tuple(found))]

    # A spread of s moves about 0.3 s² nats here; healthy variants are 0.003 apart, as the phantom's
    references = [draw(math.sqrt(0.0015 / 0.3), f"{seed} {number}") for number in range(3)]
    measured = draw(math.sqrt((0.0015 + damage) / 0.3), f"{seed} measured")
    judged = judge_quality(references, measured)
    return judged.different, judged.noise or 0.0


def climbed(url: str, name: str, given: argparse.Namespace, effort: Effort, rungs: Sequence[str]) -> Climbed:
    """Several ladders of one server."""
    noise = f"~{given.noise}" if given.noise else ""
    only = () if given.all_rungs else ("alive", *rungs)
    seeds = range(given.first, given.first + given.climbs)
    tried = [climb(url, f"{name}{noise}+{seed}", TRIALS[effort], only, seed) for seed in seeds]
    ladders = [ladder for ladder in tried if ladder]
    caught = sum(ladder.verdict in ("warn", "fail") for ladder in ladders)
    requests = sum(ladder.requests for ladder in ladders) / max(1, len(ladders))
    return Climbed(caught=caught, climbs=len(ladders), requests=requests)


def climb(url: str, name: str, trials: int, only: Sequence[str] = (), seed: int | None = None) -> Climb | None:
    """One ladder, or what the log knows of it; None if it belongs to another part or there is no time for it."""
    key = f"{name} {trials} {','.join(only)} {seed}"
    if key not in LOG.known:
        if not LOG.is_mine(key):
            return None
        options = VerifyOptions(thinking="yes", trials=trials, deadline_s=20, time_s=300, seed=seed)
        results = run_checks(endpoint_from_url(f"{url}/{name}", MODEL), options, only=list(only))
        wrong = [f"{rung.name}: {rung.reason}" for rung in results.rungs if rung.verdict in ("warn", "fail")]
        LOG.add(key, Climb(verdict=results.verdict, requests=results.requests, reason=(*wrong, "")[0]))
    return LOG.known[key]


def family(url: str, given: argparse.Namespace) -> bool:
    """Every broken server of the families, and what the whole ladder makes of it."""
    rates = [int(rate) for rate in given.rates.split(",")]
    broken = [
        f"{name}@{rate}" if rate > 1 else name
        for rate in rates
        for family in given.family.split(",")
        for name in wanted(given, FAMILIES[family])
    ]
    missed, tried = [], 0
    for effort in given.effort or ["normal"]:
        for name in broken:
            ladder = climb(url, name, TRIALS[effort])
            if not ladder:
                continue
            tried += 1
            missed += [name] if ladder.verdict == "pass" else []
            print(f"{ladder.verdict:5} {name:28} {ladder.requests:4} requests  {ladder.reason[:90]}", flush=True)
    print(f"red or yellow: {_share(tried - len(missed), tried)}; missed: {missed or 'none'}")
    return not missed


def draws(url: str, given: argparse.Namespace) -> bool:
    """Every constant fault of the tests with the checks meant for it, under many seeds: none may hang on a draw."""
    meant = {name: ((fault.check,), 4, "fail" if fault.red else "warn") for name, fault in ALL.items() if fault.check}
    meant |= {name: (rungs, trials, "warn") for name, (rungs, trials) in MISSED.items()}
    missed, tried = [], 0
    for name in wanted(given, meant):
        rungs, trials, least = meant[name]
        ladders = {seed: climb(url, name, trials, rungs, seed) for seed in range(given.climbs)}
        seeds = [seed for seed, ladder in ladders.items() if ladder and ladder.verdict not in ("fail", least)]
        tried += any(ladders.values())
        if seeds:
            missed.append(name)
            print(f"{name}: missed by the seeds {seeds}", flush=True)
    print(f"{tried} faults, {given.climbs} seeds each; missed by some: {', '.join(missed) or 'none'}")
    return not missed


def wanted(given: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Of these names the ones asked for, or all."""
    asked = [name for name in given.kinds.split(",") if name]
    return [name for name in names if not asked or name in asked]


def odd(url: str, given: argparse.Namespace) -> bool:
    """Every odd server that documentation allows, once: none may be red."""
    verdicts = []
    for name in wanted(given, RIGHT):
        ladder = climb(url, name, TRIALS[(given.effort or ["normal"])[0]])
        verdicts += [ladder.verdict] if ladder else []
        if ladder and ladder.verdict != "pass":
            print(f"{ladder.verdict:5} {name:28} {ladder.reason[:120]}", flush=True)
    print(f"{len(verdicts)} odd servers: {verdicts.count('fail')} red, {verdicts.count('warn')} yellow")
    return "fail" not in verdicts


def healthy(url: str, given: argparse.Namespace) -> bool:
    """Right servers, odd ones and such with a model that errs: none may be red."""
    count: dict[str, Counter[str]] = {"correct": Counter(), "odd": Counter(), "erring model": Counter()}
    for number in range(given.first, given.first + given.climbs):
        name = _healthy(number)
        ladder = climb(url, name, TRIALS[(given.effort or ["normal"])[0]], seed=number)
        if not ladder:
            continue
        sort = "erring model" if "~" in name else "odd" if name.startswith("odd") else "correct"
        count[sort][ladder.verdict] += 1
        if ladder.verdict != "pass":
            print(f"{ladder.verdict:5} {name}, seed {number}: {ladder.reason[:160]}", flush=True)
    for sort, verdicts in count.items():
        climbs, red = sum(verdicts.values()), verdicts["fail"]
        print(f"{sort}: {climbs} ladders, {red} red, {verdicts['warn']} yellow; not red {_share(climbs - red, climbs)}")
    return not any(verdicts["fail"] for verdicts in count.values())


def _share(good: int, of: int) -> str:
    """Return a share with its interval: 19 of 20 (76-99%)."""
    score = wilson_score(good, of)
    return f"{score.passed} of {score.trials} ({score.low * 100:.0f}-{score.high * 100:.0f}%)"


def _healthy(number: int) -> str:
    """The right server and others that are odd or whose model errs, in turn."""
    others = [*RIGHT, "correct~100"]
    return others[number // 2 % len(others)] if number % 2 else "correct"


if __name__ == "__main__":
    sys.exit(main())
