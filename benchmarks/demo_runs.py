"""Run the demo (`moebox run` without a model) several times and count what a newcomer would see.

    python benchmarks/demo_runs.py 10                         # on an idle machine of two cores
    taskset -c 0,1 python benchmarks/demo_runs.py 10          # two cores of a larger one
    taskset -c 0,1 python benchmarks/demo_runs.py 20 --hog    # one busy program from a random moment on

Each run has an empty home, so it calibrates anew. With --hog quiet runs come first, and every figure of a disturbed
run that is more than 15 % from theirs must be marked. Records go to out/demo-runs/N.
The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from moebox.assess.figures import PlannedFigure, planned_figures
from moebox.report.expect import with_forecast
from moebox.runs.reader import read_run
from moebox.store import Run

OUT = Path("out/demo-runs")
NEAR = 0.15  # of the quiet figure; also the widest range that counts
FIGURES_GOAL = 10  # of 12 figures in range
HOG_S = (5.0, 150.0)  # when it starts, after the run


def run_demo(number: int, hog: bool) -> Path:
    """Run the demo in a home of its own and return its run folder."""
    home = (OUT / str(number)).resolve()
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "XDG_CACHE_HOME": str(home / "cache")}
    began, spinning = time.monotonic(), []
    timer = threading.Timer(
        random.uniform(*HOG_S),
        lambda: spinning.append(subprocess.Popen([sys.executable, "-c", "while True: pass"])),
    )
    if hog:
        timer.start()
    with (home / "out.txt").open("w") as out:
        command = [str(Path(sys.executable).with_name("moebox")), "run", "--yes"]
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    timer.cancel()
    for process in spinning:
        process.kill()
    print(f"run {number}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return max((home / "data" / "moebox" / "runs").glob("*-run-phantom-*"))


def read_figures(folder: Path) -> list[PlannedFigure]:
    """Every measured figure that has a forecast with a range."""
    record = with_forecast(read_run(Run(folder)))
    return [figure for figure in planned_figures([record]) if figure.expected_range]


def count_faults(folder: Path) -> tuple[int, int, list[str]]:
    """Failed requests, all requests, and the checks that did not pass."""
    rows = [json.loads(path.read_text()) for path in folder.glob("measurements/*.json")]
    checks = json.loads((folder / "verify.json").read_text())["rungs"]
    failed = sum(row["num_prompts"] - row["completed"] for row in rows)
    asked = sum(row["num_prompts"] for row in rows)
    return (
        failed,
        asked,
        [f"{check['name']} {check['verdict']}" for check in checks if check["verdict"] in ("warn", "fail")],
    )


def main() -> int:
    """Run, print a line for each run, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--hog", action="store_true")
    parser.add_argument("--quiet", type=int, default=2, help="quiet runs before the disturbed ones")
    args = parser.parse_args()
    quiet: dict[tuple[str, str], list[float]] = {}
    good = unmarked = failed_requests = 0
    errors: list[float] = []
    for number in range(args.count + args.quiet * args.hog):
        disturbed = args.hog and number >= args.quiet
        folder = run_demo(number, disturbed)
        figures, (failed, asked, yellow) = read_figures(folder), count_faults(folder)
        failed_requests += failed
        widths = [
            (high - low) / 2 / figure.planned for figure in figures for low, high in [figure.expected_range or (0, 0)]
        ]
        inside = [bool(f.in_range) and width <= NEAR for f, width in zip(figures, widths, strict=True)]
        print(f"  {sum(inside)} of {len(figures)} figures in ranges of at most 15 %, widest range {max(widths):.0%}")
        print(f"  {failed} of {asked} requests failed; not green: {', '.join(yellow) or 'none'}")
        for figure in figures:
            key = figure.load.partition(",")[0], figure.what  # counted lengths differ from run to run
            note = ""
            if disturbed:
                away = figure.measured / statistics.median(quiet.get(key, [figure.measured])) - 1
                is_lost = abs(away) > NEAR and figure.is_reliable
                unmarked += is_lost
                note = f", {away:+.0%} from quiet{', NOT MARKED' if is_lost else ''}"
            else:
                quiet.setdefault(key, []).append(figure.measured)
                errors.append(figure.relative_error)
            mark = "" if figure.is_reliable else " (marked)"
            print(
                f"    {figure.load} {figure.what}: {figure.measured:.4g}{mark}, {figure.range_text}{note}", flush=True
            )
        good += sum(inside) >= FIGURES_GOAL
    if errors:
        print(f"quiet runs: measured against forecast {statistics.median(errors):+.1%} in the median")
    if args.hog:
        print(
            f"{unmarked} unmarked figures more than 15 % from the quiet ones in {args.count} disturbed runs (goal: 0)"
        )
        return int(unmarked > 0)
    print(f"{good} of {args.count} runs have {FIGURES_GOAL} figures in range (goal: 9 of 10)")
    print(f"{failed_requests} requests failed (goal: 0)")
    return int(good < 0.9 * args.count or failed_requests > 0)


if __name__ == "__main__":
    raise SystemExit(main())
