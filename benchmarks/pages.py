"""How heavy the pages are: the list of 1,000 runs, the first paint of a report of 20, and that of the local page.

python benchmarks/pages.py            # some seconds; needs a Chromium for the first paint
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from tests.report.making import a_run  # noqa: E402
from tests.web.chromium import chromium  # noqa: E402

from moebox.report.files import write_report  # noqa: E402

RUNS, COMPARED, TRIES = 1000, 20, 5
LISTED = """
import sys, time
from pathlib import Path
from starlette.requests import Request
from moebox.web import runs
from moebox.web.gate import WebSite
site = WebSite(runs=Path(sys.argv[1]))
request = Request({"type": "http", "query_string": b"", "headers": [], "method": "GET", "path": "/runs"})
for _ in range(2):
    began = time.process_time()
    page = runs.list_runs(request, site=site)
    print(round((time.process_time() - began) * 1e3), len(page.body))
"""


def fill(home: Path) -> None:
    """One run that is whole, and copies of it under other names."""
    first = a_run(home)
    for number in range(1, RUNS):
        folder = home / f"20260101-{number:06d}-k26-{number:04x}"
        subprocess.run(["cp", "-r", first.path, folder], check=True)


def listed(home: Path) -> tuple[int, int]:
    """Milliseconds of CPU for the list: read for the first time, and again."""
    cache = {**os.environ, "XDG_CACHE_HOME": str(home.parent / "cache")}
    done = subprocess.run([sys.executable, "-c", LISTED, home], env=cache, capture_output=True, text=True, check=True)
    first, again = (int(line.split()[0]) for line in done.stdout.splitlines())
    return first, again


def painted(page: str) -> list[float]:
    """Milliseconds until the browser shows anything of the page, some times over."""
    with chromium() as browser:
        tab = browser.tab()
        tab.size(1440, 1000)
        times = []
        for _ in range(TRIES):
            tab.open(page)
            time.sleep(0.5)
            times.append(tab.run("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    return times


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "runs"
        fill(home)
        first, again = listed(home)
        print(f"list of {RUNS:,} runs: {first} ms of CPU when none was listed before, {again} ms after")
        few = [a_run(Path(folder) / "few", name=f"run{number}", factor=1 + number / 10) for number in range(COMPARED)]
        began = time.process_time()
        page = write_report(few, Path(folder) / "report.html")[0]
        spent = time.process_time() - began
        size = page.stat().st_size / 1e6
        paints = painted(page.as_uri())
        print(f"report of {COMPARED} runs: made in {spent:.1f} s of CPU, {size:.2f} MB")
        print(f"first paint: {statistics.median(paints):.0f} ms (median of {TRIES}, at most {max(paints):.0f})")
        command = [sys.executable, "-m", "moebox", "ui"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ui:
            assert ui.stdout
            paints = painted(ui.stdout.readline().strip())
            ui.terminate()
        print(f"local page, Plan: {statistics.median(paints):.0f} ms (median of {TRIES}, at most {max(paints):.0f})")
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
