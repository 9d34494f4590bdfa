"""How often the ladder is right: the chance of yellow or red for faults of many kinds at many rates, and false alarms.

    python benchmarks/ladder_soundness.py power --rates 1,3,10,30 --climbs 10   # kinds x rates x whole/streamed
    python benchmarks/ladder_soundness.py power --effort thorough --noise 50    # a model that errs once in 50 prompts
    python benchmarks/ladder_soundness.py family --rates 1,10                   # every broken server, once at each rate
    python benchmarks/ladder_soundness.py odd                                   # every odd server that is right, once
    python benchmarks/ladder_soundness.py healthy --climbs 200                  # false alarms; odd servers too
    python benchmarks/ladder_soundness.py draws --climbs 20                     # constant faults that some draw misses

Ladders are numbered from `--first` on. The number is the seed of their questions and of what is broken when, so
the same command gives the same figures. Asked is the oracle of tests/verify: real HTTP, no model. Each kind of fault is
looked for by the checks that can show it (`--all-rungs` makes all), so the requests printed are those of these checks.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.verify.oracle.app import MODEL, serving
from tests.verify.oracle.faults import FAULTS
from tests.verify.oracle.fifth import FIFTH, SOME
from tests.verify.oracle.fourth import FOURTH
from tests.verify.oracle.rates import ALL, RIGHT
from tests.verify.oracle.second import SECOND
from tests.verify.oracle.sixth import SIXTH, THOUGHT_OF
from tests.verify.oracle.sixth import SOME as SOME_SIXTH
from tests.verify.oracle.third import THIRD
from tests.verify.test_runner import MISSED

from moebox.core.endpoint import endpoint_from_url
from moebox.core.setting import Effort
from moebox.core.verdict import CheckResults, wilson_score
from moebox.verify.options import TRIALS, VerifyOptions
from moebox.verify.runner import run_checks
from moebox.verify.statistics import format_share

FAMILIES = {
    "first": tuple(name for name, fault in FAULTS.items() if fault.check),
    "second": tuple(SECOND),
    "third": tuple(THIRD),
    "fourth": tuple(FOURTH),
    "fifth": tuple(f"{name}@3" if name in SOME else name for name in FIFTH),
    "sixth": tuple(f"{name}@3" if name in SOME_SIXTH else name for name in SIXTH),
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


def main() -> int:
    """Climb, count, and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("power", "family", "odd", "healthy", "draws"))
    parser.add_argument("--rates", default="1", help="one request in N is broken")
    parser.add_argument("--climbs", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the number of the first healthy ladder, and its seed")
    parser.add_argument("--effort", choices=sorted(TRIALS), action="append")
    parser.add_argument("--noise", type=int, default=0, help="the model errs on one prompt in N")
    parser.add_argument("--kinds", default="", help="only these faults, comma-separated")
    parser.add_argument(
        "--family", default="first,second,third,fourth,fifth,sixth", help="which families of broken servers"
    )
    parser.add_argument("--minutes", type=float, default=600, help="stop after so long, and say how far it came")
    parser.add_argument("--all-rungs", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    with serving() as url:
        ways = {"power": power, "family": family, "odd": odd, "healthy": healthy, "draws": draws}
        good = ways[given.what](url, given)
    print(f"{time.monotonic() - began:.0f} s")
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
        print("| all | | " + " | ".join(format_share(wilson_score(*sums[rate])) for rate in rates) + " | |", flush=True)
    return True


def climbed(url: str, name: str, given: argparse.Namespace, effort: Effort, rungs: Sequence[str]) -> Climbed:
    """Several ladders of one server."""
    noise = f"~{given.noise}" if given.noise else ""
    only = () if given.all_rungs else ("alive", *rungs)
    seeds = range(given.first, given.first + given.climbs)
    ladders = [climb(url, f"{name}{noise}+{seed}", TRIALS[effort], only, seed) for seed in seeds]
    caught = sum(ladder.verdict in ("warn", "fail") for ladder in ladders)
    requests = sum(ladder.requests for ladder in ladders) / len(ladders)
    return Climbed(caught=caught, climbs=given.climbs, requests=requests)


def climb(url: str, name: str, trials: int, only: Sequence[str] = (), seed: int | None = None) -> CheckResults:
    """One ladder."""
    options = VerifyOptions(thinking="yes", trials=trials, deadline_s=20, time_s=300, seed=seed)
    return run_checks(endpoint_from_url(f"{url}/{name}", MODEL), options, only=list(only))


def family(url: str, given: argparse.Namespace) -> bool:
    """Every broken server of the families, and what the whole ladder makes of it."""
    rates = [int(rate) for rate in given.rates.split(",")]
    broken = [
        f"{name}@{rate}" if rate > 1 else name
        for rate in rates
        for family in given.family.split(",")
        for name in wanted(given, FAMILIES[family])
    ]
    missed = []
    for effort in given.effort or ["normal"]:
        for name in broken:
            ladder = climb(url, name, TRIALS[effort])
            reasons = [f"{rung.name}: {rung.reason}" for rung in ladder.rungs if rung.verdict in ("warn", "fail")]
            missed += [name] if ladder.has_passed and ladder.verdict == "pass" else []
            print(
                f"{ladder.verdict:5} {name:28} {ladder.requests:4} requests  {reasons[0][:90] if reasons else ''}",
                flush=True,
            )
    print(
        f"red or yellow: {format_share(wilson_score(len(broken) - len(missed), len(broken)))}; "
        f"missed: {missed or 'none'}"
    )
    return not missed


def draws(url: str, given: argparse.Namespace) -> bool:
    """Every constant fault of the tests with the checks meant for it, under many seeds: none may hang on a draw."""
    meant = {name: ((fault.check,), 4, "fail" if fault.red else "warn") for name, fault in ALL.items() if fault.check}
    meant |= {name: (rungs, trials, "warn") for name, (rungs, trials) in MISSED.items()}
    ends = time.monotonic() + 60 * given.minutes
    missed, tried = [], 0
    for name in wanted(given, meant):
        rungs, trials, least = meant[name]
        if time.monotonic() > ends:
            print(f"out of time before {name}")
            break
        marks = [climb(url, name, trials, rungs, seed).verdict for seed in range(given.climbs)]
        seeds = [seed for seed, mark in enumerate(marks) if mark not in ("fail", least)]
        tried += 1
        if seeds:
            missed.append(name)
            print(f"{name}: missed by the seeds {seeds}", flush=True)
    print(f"{tried} faults, {given.climbs} seeds each; missed by some: {', '.join(missed) or 'none'}")
    return not missed


def wanted(given: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Of these names the ones asked for, or all."""
    asked = [name for name in given.kinds.split(",") if name]
    return [name for name in names if not asked or name in asked]


def told(ladder: CheckResults) -> str:
    """What the first rung that is not green says."""
    wrong = [rung for rung in ladder.rungs if rung.verdict in ("warn", "fail")]
    return f"{wrong[0].name}: {wrong[0].reason}" if wrong else ""


def odd(url: str, given: argparse.Namespace) -> bool:
    """Every odd server that documentation allows, once: none may be red."""
    verdicts = []
    for name in wanted(given, RIGHT):
        ladder = climb(url, name, TRIALS[(given.effort or ["normal"])[0]])
        verdicts.append(ladder.verdict)
        if ladder.verdict != "pass":
            print(f"{ladder.verdict:5} {name:28} {told(ladder)[:120]}", flush=True)
    print(f"{len(verdicts)} odd servers: {verdicts.count('fail')} red, {verdicts.count('warn')} yellow")
    return "fail" not in verdicts


def healthy(url: str, given: argparse.Namespace) -> bool:
    """Right servers, odd ones and such with a model that errs: none may be red."""
    ends = time.monotonic() + 60 * given.minutes
    count: dict[str, Counter[str]] = {"correct": Counter(), "odd": Counter(), "erring model": Counter()}
    for number in range(given.first, given.first + given.climbs):
        name = _healthy(number)
        ladder = climb(url, name, TRIALS[(given.effort or ["normal"])[0]], seed=number)
        sort = "erring model" if "~" in name else "odd" if name.startswith("odd") else "correct"
        count[sort][ladder.verdict] += 1
        if ladder.verdict != "pass":
            print(f"{ladder.verdict:5} {name}, seed {number}: {told(ladder)[:160]}", flush=True)
        if time.monotonic() > ends:
            break
    for sort, verdicts in count.items():
        climbs, red = sum(verdicts.values()), verdicts["fail"]
        print(f"{sort}: {climbs} ladders, {red} red, {verdicts['warn']} yellow; not red {_share(climbs - red, climbs)}")
    return not any(verdicts["fail"] for verdicts in count.values())


def _share(good: int, of: int) -> str:
    return format_share(wilson_score(good, of))


def _healthy(number: int) -> str:
    """The right server and others that are odd or whose model errs, in turn."""
    others = [*RIGHT, "correct~100"]
    return others[number // 2 % len(others)] if number % 2 else "correct"


if __name__ == "__main__":
    sys.exit(main())
