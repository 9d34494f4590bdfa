"""Runs on the page: list, compare, start, follow and stop them.

The page starts the same `moebox run` as a user would, in a process and a session of its own: it survives the page, and
is stopped with the signal of Ctrl-C.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from moebox import files
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.report.files import make_page
from moebox.report.page import render_html
from moebox.runs.listing import RunSummary, list_summaries
from moebox.serve import state
from moebox.store import Run, runs_dir
from moebox.web import live
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, read_form, render_page, render_part

NAME = re.compile(r"[A-Za-z0-9._+-]{1,200}")
MAX_SHOWN = 200  # rows of the list
START_TIMEOUT_S = 30.0  # until a new run has its folder
STEPS = ("report", "task", "bench", "climb", "verify", "up", "rehearse", "doctor", "plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of the list, and whether it is active."""

    run: RunSummary
    live: bool


async def list_runs(request: Request, *, site: WebSite) -> Response:
    """List the newest runs that match the filter."""
    words = request.query_params.get("q", "").lower().split()
    rows = await run_in_threadpool(matching_runs, site, words)
    shown = await run_in_threadpool(with_activity, site, rows[:MAX_SHOWN])
    return render_page(
        "runs.html", title="Runs", here="runs", rows=shown, total=len(rows), query=" ".join(words), steps=STEPS
    )


def with_activity(site: WebSite, rows: list[RunSummary]) -> list[RunRow]:
    """Rows, each with whether a process works on the run or its engine is alive."""
    engines = state.live_run_folders()
    home = runs_dir(site.runs)
    return [
        RunRow(run=row, live=state.is_run_active(Run(home / row.id), engines, unfinished_step=row.left_in))
        for row in rows
    ]


def matching_runs(site: WebSite, words: list[str]) -> list[RunSummary]:
    """Runs whose row contains every word."""
    rows = list_summaries(site.runs)
    found = []
    for row in rows:
        marks = ("simulated" if row.simulation else "", "interrupted" if row.unfinished_part else "")
        text = " ".join((row.id, row.model, row.engine, row.box, row.verdict, row.failed, *marks)).lower()
        if all(word in text for word in words):
            found.append(row)
    return found


def find_run(name: str, site: WebSite) -> Run:
    """Find a run by name; only folders of the list, never a path."""
    home = runs_dir(site.runs)
    folder = home / name
    if not NAME.fullmatch(name) or name.startswith(".") or not folder.is_dir() or folder.is_symlink():
        raise NotFound(f"no run called {name!r}", hint="the list of runs names them all")
    return Run.open(name, runs=home)


async def show_report(request: Request, *, site: WebSite) -> Response:
    """Show a run's report, made now."""
    run = find_run(request.path_params["name"], site)
    text = await run_in_threadpool(lambda: render_html(make_page([run]), home="/runs"))
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


async def compare_runs(request: Request, *, site: WebSite) -> Response:
    """Show several runs side by side; the report states if they must not be compared."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    refuse_if(not 2 <= len(names) <= 20, "tick 2 to 20 runs to compare", hint="the boxes before their names")
    chosen = [find_run(name, site) for name in names]
    text = await run_in_threadpool(lambda: render_html(make_page(chosen), home="/runs"))
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})


async def follow_run(request: Request, *, site: WebSite) -> Response:
    """Show a run as it happens."""
    run = find_run(request.path_params["name"], site)
    body = await run_in_threadpool(live_fragment, run)
    return render_page("live.html", title=run.id, here="runs", name=run.id, body=body)


def live_fragment(run: Run) -> Markup:
    """The current state of a run as HTML."""
    return render_part("live_part.html", view=live.live_view(run))


async def stream_events(request: Request, *, site: WebSite) -> Response:
    """Send the run's state whenever its folder changes, as server-sent events."""
    run = find_run(request.path_params["name"], site)

    async def stream_states() -> AsyncIterator[str]:
        feed = site.feeds.setdefault(run.id, live.RunFeed(run, live_fragment))
        feed.followers += 1
        try:
            with contextlib.suppress(FileNotFoundError):  # the run was removed
                async for text in feed.follow(site.stopping):
                    yield f"data: {json.dumps(text)}\n\n" if text else ": still here\n\n"
        finally:
            feed.followers -= 1
            if not feed.followers:
                site.feeds.pop(run.id, None)

    return StreamingResponse(stream_states(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def start_run(request: Request, *, site: WebSite) -> Response:
    """Start `moebox run` and reply with its page."""
    return await start_command(run_command(await read_form(request)), site)


async def start_command(words: list[str], site: WebSite) -> Response:
    """Start `moebox` with these words; reply with the page of its run."""
    name = await run_in_threadpool(begin_run, [sys.executable, "-m", "moebox", *words], site)
    return JSONResponse({"go": f"/runs/{name}/live"}, 201)


def run_command(fields: dict[str, str]) -> list[str]:
    """The command line of `moebox run` for a form; values cannot become options."""
    words = ["run", "--yes"]
    for field, option in (("box", "--box"), ("until", "--until"), ("recipe", "--recipe"), ("ram", "--ram")):
        value = fields.get(field, "").strip()
        if value:
            words.append(f"{option}={value}")
    words += ["--twin"] if fields.get("twin") else []
    words += ["--keep"] if fields.get("keep") else []
    model = fields.get("model", "").strip()
    refuse_if(model.startswith("-"), f"model {model!r}: a name, a folder or a .gguf file")
    return [*words, model] if model else words


def begin_run(words: list[str], site: WebSite) -> str:
    """Start a command and wait for its run's folder, which its first line names. Return the folder's name.

    What it prints goes on in command.log of that folder, for the run's page.
    """
    home = runs_dir(site.runs)
    is_new, log = not home.exists(), home / f".ui-{os.getpid()}-{time.monotonic_ns()}.log"
    files.make_private_folder(home)
    env = child_environment(site)
    with open(log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = child.poll()
        text = log.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^run:? (.+)$", text, re.MULTILINE):
            os.replace(log, Path(found[1]) / live.COMMAND_LOG)
            return Path(found[1]).name
        if ended is not None:
            log.unlink(missing_ok=True)
            if is_new:
                home.rmdir()
            raise command_error(text, ended)
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    raise ExternalError("the run did not begin", hint=f"its output is in {log}")


def child_environment(site: WebSite) -> dict[str, str]:
    """Return the environment of a command, which uses the same runs as the page."""
    return {**os.environ, **({"MOEBOX_RUNS": str(site.runs)} if site.runs else {})}


def command_error(text: str, code: int) -> BadInput:
    error, hint = (re.search(rf"^{word}: (.+)$", text, re.MULTILINE) for word in ("error", "hint"))
    return BadInput(error[1] if error else f"moebox ended with {code}", hint=hint[1] if hint else None)


async def stop_run(request: Request, *, site: WebSite) -> Response:
    """Interrupt a run as Ctrl-C does: the engine is stopped, what was measured is kept."""
    run = find_run(request.path_params["name"], site)
    await run_in_threadpool(interrupt_run, run)
    return JSONResponse({"stopped": run.id})


def interrupt_run(run: Run) -> None:
    """Send SIGINT to the process that works on the run; it must hold the lock, since a stored pid may be reused."""
    refuse_if(not run.is_locked, f"{run.id} is not running")
    path = run.path / ".lock"
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        if any(os.readlink(link) == str(path.resolve()) for link in Path(f"/proc/{pid}/fd").iterdir()):
            os.kill(pid, signal.SIGINT)
            return
    raise ExternalError(f"the process of {run.id} is not on this machine", hint="stop it where it was started")
