"""moebox at the limits of its environment: little memory, few descriptors, a full disk, an old terminal, many runs."""

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox.core.event import CheckDone
from moebox.runs.listing import list_summaries
from moebox.store import Run
from moebox.web.live import RunFeed
from tests.bench.server import good, serving
from tests.report.making import a_run
from tests.sampling import one_in
from tests.serving import live
from tests.verify import conftest as oracle

PLAN = ["plan", "kimi-k2.6", "--box", "8x-h200"]


def moebox(
    *words: str, limit: tuple[int, int] | None = None, stdout: int = subprocess.PIPE, **env: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command as a process of its own, under a resource limit."""
    return subprocess.run(
        [sys.executable, "-m", "moebox", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
        preexec_fn=(lambda: resource.setrlimit(limit[0], (limit[1], limit[1]))) if limit else None,
    )


def test_a_plan_under_a_memory_limit_ends() -> None:
    """Login nodes set `ulimit -v`: the bandwidth of memory stays unknown, and nothing hangs."""
    done = moebox("run", "--until", "plan", "--yes", limit=(resource.RLIMIT_AS, 600_000_000))

    assert done.returncode == 0, done.stderr
    assert "✓ plan" in done.stdout


def test_a_load_with_too_few_descriptors_is_one_line() -> None:
    """The limit is this machine's: no traceback of a worker, and no failed requests of the server's."""
    with serving(good) as server:
        words = ["--model", "m", "--concurrency", "30", "--requests", "60", "--output", "5", "--input", "8"]
        done = moebox("bench", server.url, *words, limit=(resource.RLIMIT_NOFILE, 24))

    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("error: this machine's limits are too low")
    assert "open files (ulimit -n) 24" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", one_in(2, [["models"], PLAN, ["--help"], [*PLAN, "--json"]]))
def test_a_full_disk_behind_stdout_is_one_line(words: list[str]) -> None:
    """As `moebox … > FILE` on a full disk."""
    with open("/dev/full", "wb") as full:
        done = moebox(*words, stdout=full.fileno())

    assert done.returncode == 3
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_an_ascii_terminal_gets_similar_characters() -> None:
    """Text is spelled out; JSON stays the same document."""
    done, whole = moebox(*PLAN, "--all", PYTHONIOENCODING="ascii"), moebox(*PLAN, "--json")
    document = moebox(*PLAN, "--json", PYTHONIOENCODING="ascii")

    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "TP4xPP2" in done.stdout
    assert document.stdout.isascii()
    assert set(json.loads(document.stdout)) == set(json.loads(whole.stdout))


class NastyModels(BaseHTTPRequestHandler):
    """A server whose model name controls terminals."""

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "k2\x1b[2J\x1b]0;owned\x07\u202e"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("client", ["claude-code", "opencode"])
def test_connect_shows_a_servers_escapes_and_does_not_obey_them(client: str) -> None:
    """The model's name is the server's text like any other."""
    with live(ThreadingHTTPServer(("127.0.0.1", 0), NastyModels)) as server:
        done = moebox("connect", client, f"http://127.0.0.1:{server.server_port}")

    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout + done.stderr)
    assert "u001b" in done.stdout


def test_a_new_run_is_listed_with_little_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand new folders should take seconds: what equal files contain is parsed once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = a_run(tmp_path / "runs")
    for number in range(19):
        shutil.copytree(first.path, first.path.with_name(f"{first.id}{number:02d}"))
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    list_summaries(tmp_path / "elsewhere")  # imports
    sys.setprofile(count)
    try:
        rows = list_summaries(tmp_path / "runs")
    finally:
        sys.setprofile(None)

    assert len(rows) == 20
    assert calls / len(rows) < 6000  # about half of what reading every file anew takes


def test_sixty_followers_of_a_run_cost_no_more_than_one(tmp_path: Path) -> None:
    """Each change is rendered once, and every follower gets it."""
    run = a_run(tmp_path / "runs")
    rendered: list[str] = []

    def render(shown: Run) -> str:
        rendered.append(shown.id)
        return f"state {len(rendered)}"

    async def follow_to_second(feed: RunFeed, over: threading.Event, all_have_first: asyncio.Barrier) -> list[str]:
        texts = []
        async for text in feed.follow(over):
            texts += [text] if text else []
            if len(texts) == 2:
                break
            await all_have_first.wait()
        return texts

    async def follow_all(change: Callable[[], None]) -> list[list[str]]:
        feed, over, all_have_first = RunFeed(run, render), threading.Event(), asyncio.Barrier(61)
        tasks = [asyncio.create_task(follow_to_second(feed, over, all_have_first)) for _ in range(60)]
        await all_have_first.wait()
        change()
        return await asyncio.gather(*tasks)

    seen = asyncio.run(follow_all(lambda: run.add_event(CheckDone(name="alive", verdict="pass", reason=""))))

    assert seen == [["state 1", "state 2"]] * 60
    assert len(rendered) == 2


@pytest.mark.parametrize("descriptors", one_in(2, [40, 20]))
def test_few_descriptors_are_not_the_models_fault(descriptors: int) -> None:
    """The sandbox makes do with what there is, or the check is skipped for this machine; it is never red."""
    with oracle.serving() as url:
        words = ["verify", f"{url}/correct", "--only", "alive,code", "--effort", "quick", "--json"]
        done = moebox(*words, limit=(resource.RLIMIT_NOFILE, descriptors))

    checks = {check["name"]: check for check in json.loads(done.stdout)["rungs"]}
    assert checks["alive"]["verdict"] == "pass"
    assert checks["code"]["verdict"] in ("pass", "skip"), checks["code"]["reason"]
    assert checks["code"]["verdict"] == "pass" or "this machine" in checks["code"]["reason"]


def test_a_client_without_descriptors_skips_its_checks() -> None:
    """Twelve descriptors do not suffice for several requests at once: skipped, with the limit as the reason."""
    with oracle.serving() as url:
        words = ["verify", f"{url}/correct", "--only", "concurrency", "--set", "parallel=32", "--effort", "quick"]
        done = moebox(*words, "--json", limit=(resource.RLIMIT_NOFILE, 20))

    check = json.loads(done.stdout)["rungs"][0]
    assert check["verdict"] == "skip", check
    assert "this machine: its limits are too low: open files (ulimit -n) 20" in check["reason"]
