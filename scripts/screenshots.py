"""docs/images/*.webp: reports and pages as people see them, by a real Chromium.

python scripts/screenshots.py                    # makes the runs it shows (some minutes), then every picture
python scripts/screenshots.py --runs FOLDER      # shows runs that are there: of each kind the newest
python scripts/screenshots.py --only ui-plan     # pictures whose name begins so
python scripts/screenshots.py --axe axe.min.js   # no pictures: what axe-core (npm install axe-core) finds on every page

axe-core looks at each page in light and dark and in three widths; after `moebox up phantom` also at those of an engine.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from tests.web.chromium import Tab, chromium  # noqa: E402
from tests.web.entry import remember  # noqa: E402

from moebox.report.files import write_report  # noqa: E402
from moebox.runs.listing import list_summaries  # noqa: E402
from moebox.store import Run  # noqa: E402
from moebox.web.engines import running_engines  # noqa: E402
from moebox.web.serve import prepare_server  # noqa: E402

TARGET = ROOT / "docs" / "images"
QUALITY = 72
SHOWN_AT = Path("/tmp/moebox/runs")  # noqa: S108  (paths in the pictures: nobody's home)
# What is shown: kind of run -> the command that makes one.
MADE = {
    "good": ["run", "--yes"],
    "failed": ["run", "kimi-k2.6", "--yes"],
    "tune": ["tune", "phantom", "--budget=1h", "--set=only=max_seqs", "--set=questions=4", "--set=rounds=2"],
    "upgrade": ["upgrade", "phantom", "max_seqs=2", "alive,plain,speed=5%"],
    "simulation": ["run", "kimi-k2.6", "--box=8x-rtx-pro-6000-server", "--twin", "--yes", "--concurrency", "1,8,32"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture: a report (`good#checks` scrolls to a section) or a page of the ui (`/runs`)."""

    name: str
    page: str
    width: int = 1440
    height: int = 1000
    dark: bool = False
    printed: bool = False


SHOTS = (
    Shot(name="report-light-1440", page="good"),
    Shot(name="report-dark-1440", page="good", dark=True),
    Shot(name="report-light-1024", page="good", width=1024),
    Shot(name="report-light-390", page="good", width=390, height=1400),
    Shot(name="report-checks-1440", page="good#checks"),
    Shot(name="report-latency-dark-1024", page="good#performance", width=1024, dark=True),
    Shot(name="report-figures-1440", page="good#figures"),
    Shot(name="report-printed", page="good", width=794, height=1123, printed=True),
    Shot(name="failed-light-1440", page="failed"),
    Shot(name="failed-dark-390", page="failed", width=390, height=1100, dark=True),
    Shot(name="simulation-light-1440", page="simulation"),
    Shot(name="simulation-dark-1024", page="simulation#performance", width=1024, dark=True),
    Shot(name="comparison-light-1440", page="comparison"),
    Shot(name="comparison-light-390", page="comparison", width=390, height=1400),
    Shot(name="comparison-printed", page="comparison", width=794, height=1123, printed=True),
    Shot(name="ui-plan-light-1440", page="/?wait=1"),
    Shot(name="ui-plan-dark-390", page="/?wait=1", width=390, height=1400, dark=True),
    Shot(name="ui-runs-light-1440", page="/runs", height=620),
    Shot(name="ui-runs-dark-390", page="/runs", width=390, height=900, dark=True),
    Shot(name="ui-run-light-1024", page="/runs/{good}/live", width=1024),
    Shot(name="ui-recipe-dark-1024", page="/recipes/kimi-k26-vllm", width=1024, dark=True),
    Shot(name="ui-tasks-light-1024", page="/tasks", width=1024, height=500),
    Shot(name="ui-tune-light-1440", page="/tune", height=420),
    Shot(name="ui-upgrade-light-1024", page="/upgrade?recipe=phantom", width=1024, height=700),
    Shot(name="ui-upgrading-light-390", page="/runs/{upgrade}/live", width=390, height=1100),
    Shot(name="ui-calibrations-light-1024", page="/calibrations", width=1024, height=500),
)


# Looked at with axe as well, in each of WIDTHS; `{engine}` is one that runs.
MORE_PAGES = (
    *(
        "/",
        "/?box=1x-rtx-5090",
        "/?model=kimi-k9",
        "/models?q=kimi",
        "/models?q=nosuch",
        "/engines",
        "/chat",
        "/recipes",
    ),
    *("/recipes/nosuch", "/runs?q=nosuch", "/runs/nosuch", "/nosuch", "/upgrade", "/runs/{tune}/live"),
    *("/runs/{failed}/live", "/runs/{simulation}/live", "/compare?run={good}&run={simulation}"),
    *("/engines/{engine}/watch", "/chat?engine={engine}"),
)
WIDTHS = (390, 1024, 1440)


def make_runs(home: Path) -> None:
    """Every kind of run that is not there yet."""
    for kind, words in MADE.items():
        if kind not in kinds(home):
            print(f"moebox {' '.join(words)}", file=sys.stderr)
            subprocess.run(
                [sys.executable, "-m", "moebox", *words],
                env={**os.environ, "MOEBOX_RUNS": str(home)},
                stdout=subprocess.DEVNULL,
                check=False,  # one of them fails, which is what it shows
            )


def kinds(home: Path) -> dict[str, Run]:
    """The newest run of each kind."""
    found: dict[str, Run] = {}
    for row in list_summaries(home):
        command = next((name for name in ("tune", "upgrade") if f"-{name}-" in row.id), "")
        kind = command or ("simulation" if row.simulation else "failed" if row.failed else "good")
        found.setdefault(kind, Run(home / row.id))
    return found


def reports(home: Path, folder: Path) -> dict[str, Path]:
    """The report of each kind of run, and of published figures side by side."""
    import render  # examples/render.py
    from moebox import codec

    there = {kind: [run] for kind, run in kinds(home).items() if kind not in ("tune", "upgrade")}
    published = codec.load_toml(ROOT / "examples" / "sm120-january.toml")
    there["comparison"] = render.imported(published, folder / "published")
    return {kind: write_report(runs, folder / f"{kind}.html")[0] for kind, runs in there.items()}


@contextmanager
def site(runs: Path) -> Iterator[str]:
    """The ui, served until the pictures are taken."""
    server, listening, printed = prepare_server("127.0.0.1", 0, exact_port=True, runs=runs)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield remember(printed)  # a tab opens it with its token
    finally:
        server.should_exit = True
        thread.join(10)


def take(tab: Tab, shot: Shot, address: str) -> bytes:
    """One picture as WebP."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if shot.dark else "light"}
    tab.call("Emulation.setEmulatedMedia", media="print" if shot.printed else "screen", features=[scheme])
    tab.size(shot.width, shot.height)
    tab.open(address)
    tab.run("document.fonts.ready.then(() => true)")
    _, mark, section = shot.page.partition("#")
    if shot.printed:
        tab.run("document.body.style.padding = '14mm 13mm'")  # the paper's margins
    if mark:
        tab.run(f"document.getElementById('{section}')?.scrollIntoView({{behavior: 'instant'}})")
    time.sleep(0.4)  # a scroll or an entrance that is animated
    wide = tab.run("document.documentElement.scrollWidth")
    if wide > shot.width and not shot.printed:
        raise SystemExit(f"{shot.name}: the page is {wide} pixels wide in a window of {shot.width}")
    picture = tab.call("Page.captureScreenshot", format="webp", quality=QUALITY)
    return base64.b64decode(picture["data"])


def check_access(tab: Tab, axe: str, addresses: dict[str, str]) -> int:
    """Print what axe-core finds on each page with all folds open: rule, impact, element. Return the count."""
    shown = "r.violations.map(v => [v.id, v.impact, v.nodes.length, v.nodes[0].html.slice(0, 200)].join(': '))"
    total = 0
    for page, address in addresses.items():
        tab.open(address, ready="!document.querySelector('.busy') && !document.body.textContent.includes('planning …')")
        tab.run("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        tab.run(f"{axe};1")
        found: dict[str, list[str]] = {}
        for width in WIDTHS:
            tab.size(width, 1000)
            for scheme in ("light", "dark"):
                tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
                time.sleep(0.2)  # the page's own reaction to its new size
                for row in tab.run(f"axe.run(document, {{resultTypes: ['violations']}}).then(r => {shown})"):
                    found.setdefault(row, []).append(f"{scheme} {width}")
                if (wide := tab.run("document.documentElement.scrollWidth")) > width:
                    found.setdefault(f"the page is {wide} pixels wide", []).append(f"{scheme} {width}")
        total += len(found)
        print(page, *(f"{row} ({', '.join(places)})" for row, places in found.items() or ()), sep="\n  ", flush=True)
    return total


def main() -> None:
    """Make what is missing, then take every picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "out" / "screenshot-runs")
    parser.add_argument("--only", default="", help="pictures whose name begins so")
    parser.add_argument("--axe", type=Path, help="axe.min.js: print its findings instead")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    asked = parser.parse_args()
    if asked.runs.resolve() == SHOWN_AT:
        parser.error(f"--runs {asked.runs}: copies are made there, and what is there is removed first")
    make_runs(asked.runs)
    shutil.rmtree(SHOWN_AT, ignore_errors=True)
    shutil.copytree(asked.runs, SHOWN_AT)
    made = reports(SHOWN_AT, SHOWN_AT.parent / "reports")
    names = {kind: run.id for kind, run in kinds(SHOWN_AT).items()}
    total = 0
    with site(SHOWN_AT) as root, chromium() as browser:
        tab = browser.tab()
        shots = [shot for shot in SHOTS if shot.name.startswith(asked.only)]
        pages = [shot.page.partition("#")[0] for shot in shots]
        if asked.axe:
            names |= {"engine": running_engines()[0].id} if running_engines() else {}
            pages += [] if asked.only else [page for page in MORE_PAGES if "{engine}" not in page or "engine" in names]
        address = {
            page: f"{root}{page.format(**names)[1:]}" if page.startswith("/") else made[page].resolve().as_uri()
            for page in pages
        }
        if asked.axe:
            raise SystemExit(1 if check_access(tab, asked.axe.read_text(), address) else 0)
        asked.output.mkdir(parents=True, exist_ok=True)
        for shot in shots:
            picture = take(tab, shot, address[shot.page.partition("#")[0]])
            (asked.output / f"{shot.name}.webp").write_bytes(picture)
            total += len(picture)
            print(f"{shot.name}.webp {len(picture) / 1e3:.0f} kB")
    print(f"{total / 1e6:.2f} MB in all")


if __name__ == "__main__":
    main()
