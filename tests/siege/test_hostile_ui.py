"""The local page over run folders from anybody: every page answers, markup is text, nothing comes from elsewhere."""

import ctypes
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.store import Run
from tests.hangs import no_longer_than
from tests.siege.runs import RUNS, SECRET, good
from tests.web.conftest import serve
from tests.web.entry import cookie

__all__ = ["serve"]

PATIENCE_S = 600  # a hang, not a figure
CAPABILITIES, DAC = 0x20080522, 0b110  # version 3 of the call; CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
Serve = Callable[..., str]


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(PATIENCE_S):
        yield


def get(url: str) -> tuple[int, str]:
    """Status and text of a page; of a stream of events, the first."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Cookie": cookie(url)}), timeout=120) as reply:
            stream = reply.headers.get_content_type() == "text/event-stream"
            return reply.status, (reply.readline() if stream else reply.read()).decode()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.read().decode()


def pages(run: Run, other: Run) -> list[str]:
    """Every page that reads a run folder."""
    name = urllib.parse.quote(run.id)
    both = urllib.parse.urlencode([("run", run.id), ("run", other.id)])
    return ["runs", f"runs/{name}", f"runs/{name}/live", f"runs/{name}/events", f"compare?{both}", "tasks"]


def besiege(name: str, serve: Serve, runs: Path) -> None:
    """A spoilt run beside a good one, on every page."""
    run, other = good(runs), good(runs)
    RUNS[name](run)
    address = serve(runs)
    for page in pages(run, other):
        status, text = get(address + page)
        assert status in (200, 400, 404, 503), (page, status, text[-500:])
        assert SECRET not in text, page
        assert "root:x:" not in text, page
        assert "<script>alert" not in text, page
        assert "\x1b" not in text, page
    assert other.id in get(address + "runs")[1], "the good one is still listed"


SOME = ("a pipe for a lock", "a pipe for a log", "a link for a log", "links for folders", "markup in every text")


@pytest.mark.parametrize("name", SOME)
def test_some_hostile_folders_on_the_page(name: str, serve: Serve, tmp_path: Path) -> None:
    """One of each sort."""
    besiege(name, serve, tmp_path / "runs")


@pytest.mark.siege
@pytest.mark.parametrize("name", [name for name in RUNS if name not in SOME])
def test_every_hostile_folder_on_the_page(name: str, serve: Serve, tmp_path: Path) -> None:
    """All the others."""
    besiege(name, serve, tmp_path / "runs")


@contextmanager
def without_rights() -> Iterator[None]:
    """Of root, only the name: files must allow what is done with them (capabilities(7); new threads inherit it)."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    libc.capget(head, sets)
    before = sets[0]
    sets[0] = before & ~DAC
    libc.capset(head, sets)
    try:
        yield
    finally:
        sets[0] = before
        libc.capset(head, sets)


@pytest.mark.parametrize("what", [".", "measurements", "events.jsonl", "run.json"])
def test_a_folder_that_may_not_be_read_costs_itself_only(
    what: str, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the page and in the list; a report of it ends in one line."""
    runs, own = tmp_path / "runs", tmp_path / "own"
    own.mkdir(mode=0o777)
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(own))
    run, other = good(runs), good(runs)
    closed = run.path / what
    closed.chmod(0)
    try:
        with without_rights():
            address = serve(runs)
            for page in pages(run, other):
                assert get(address + page)[0] in (200, 400, 404, 503), page
            assert other.id in get(address + "runs")[1]
            assert main(["runs", "--runs", str(runs)]) in (0, 2, 3)
            assert main(["runs", "show", str(run.path)]) in (0, 2, 3)
            assert main(["report", str(run.path), "-o", str(own / "report.html")]) in (0, 2, 3)
            assert main(["pack", str(run.path), "-o", str(own / "pack"), "--no-pdf"]) in (0, 2, 3)
    finally:
        closed.chmod(0o755)
    assert "Traceback" not in capsys.readouterr().err
