"""How often the ladder is wrong: a correct server climbed many times, and every broken one several times.

    python benchmarks/ladder_soundness.py --correct 200 --broken 5

Prints false reds with their reasons, and breakages that a ladder let through. Fresh questions every time.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.verify.oracle.app import MODEL, serving
from tests.verify.oracle.faults import FAULTS

from moebox.core.endpoint import endpoint_of
from moebox.verify.ladder import verify
from moebox.verify.options import Options
from moebox.verify.score import share_text, wilson


def main() -> int:
    """Climb, count, and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--correct", type=int, default=200)
    parser.add_argument("--broken", type=int, default=5)
    given = parser.parse_args()
    began = time.monotonic()
    with serving() as url:
        red = false_reds(url, given.correct)
        missed, tried = let_through(url, given.broken)
    green = wilson(given.correct - red, given.correct)
    caught = wilson(tried - missed, tried)
    print(f"correct server green: {share_text(green)}")
    print(f"breakages caught by the rung meant for them: {share_text(caught)}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if red or missed else 0


def false_reds(url: str, times: int) -> int:
    """Ladders of the correct server that were not green."""
    red = 0
    for climb in range(times):
        ladder = verify(endpoint_of(f"{url}/correct", MODEL), Options(thinking="yes", seed=climb))
        if ladder.verdict != "pass" or any(rung.verdict != "pass" for rung in ladder.rungs):
            red += 1
            wrong = [(rung.name, rung.reason) for rung in ladder.rungs if rung.verdict != "pass"]
            print(f"false red, seed {climb}: {wrong}", flush=True)
    return red


def let_through(url: str, times: int) -> tuple[int, int]:
    """Breakages that their rung did not see, and how many were tried."""
    missed = tried = 0
    for name, fault in FAULTS.items():
        for climb in range(times if fault.rung else 0):
            options = Options(thinking="yes", deadline_s=20, seed=climb)
            ladder = verify(endpoint_of(f"{url}/{name}", MODEL), options, only=[fault.rung])
            tried += 1
            if ladder.verdict != "fail":
                missed += 1
                print(f"let through: {name}, seed {climb}", flush=True)
    return missed, tried


if __name__ == "__main__":
    sys.exit(main())
