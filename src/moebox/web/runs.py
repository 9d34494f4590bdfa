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
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from moebox import files
from moebox.core.pipeline import STEPS
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.report.files import make_page
from moebox.report.page import render_html
from moebox.runs.listing import RunSummary, list_summaries
from moebox.serve import state
from moebox.store import Run, runs_dir
from moebox.web import live
from moebox.web.gate import WebSite
from moebox.web.pages import NO_STORE, NotFound, render_page, render_part

NAME = re.compile(r"[A-Za-z0-9._+-]{1,200}")
MAX_SHOWN = 200  # rows of the list
START_TIMEOUT_S = 30.0  # until a new run has its folder


def list_runs(request: Request, *, site: WebSite) -> Response:
    """List the newest runs whose row contains every word of the filter."""
    words, found = request.query_params.get("q", "").lower().split(), []
    for row in list_summaries(site.runs):
        marks = ("simulated" if row.simulation else "", "interrupted" if row.unfinished_part else "")
        text = " ".join((row.id, row.model, row.engine, row.box, row.verdict, row.failed, *marks)).lower()
        if all(word in text for word in words):
            found.append(row)
    context = {"rows": with_activity(site, found[:MAX_SHOWN]), "total": len(found), "query": " ".join(words)}
    return render_page("runs.html", title="Runs", here="runs", steps=STEPS[::-1], **context)


def with_activity(site: WebSite, rows: Sequence[RunSummary]) -> list[tuple[RunSummary, bool]]:
    """Rows, each with whether a process works on the run or its engine is alive."""
    engines, home = state.live_run_folders(), runs_dir(site.runs)
    return [(row, state.is_run_active(Run(home / row.id), engines, unfinished_step=row.left_in)) for row in rows]


def find_run(name: str, site: WebSite) -> Run:
    """Find a run by name; only folders of the list, never a path."""
    home = runs_dir(site.runs)
    folder = home / name
    if not NAME.fullmatch(name) or name.startswith(".") or not folder.is_dir() or folder.is_symlink():
        raise NotFound(f"no run called {name!r}", hint="the list of runs names them all")
    return Run.open(name, runs=home)


def show_report(request: Request, *, site: WebSite) -> Response:
    """Show a run's report, made now."""
    run = find_run(request.path_params["name"], site)
    return HTMLResponse(render_html(make_page([run]), home="/runs"), headers=NO_STORE)


def compare_runs(request: Request, *, site: WebSite) -> Response:
    """Show several runs side by side; the report states if they must not be compared."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    refuse_if(not 2 <= len(names) <= 20, "tick 2 to 20 runs to compare", hint="the boxes before their names")
    chosen = [find_run(name, site) for name in names]
    return HTMLResponse(render_html(make_page(chosen), home="/runs"), headers=NO_STORE)


def follow_run(request: Request, *, site: WebSite) -> Response:
    run = find_run(request.path_params["name"], site)
    return render_page("live.html", title=run.id, here="runs", name=run.id, body=live_fragment(run))


def live_fragment(run: Run) -> Markup:
    return render_part("live_part.html", view=live.live_view(run))


def stream_events(request: Request, *, site: WebSite) -> Response:
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

    return StreamingResponse(stream_states(), media_type="text/event-stream", headers=NO_STORE)


def start_run(fields: dict[str, str], *, site: WebSite) -> Response:
    return start_command(run_command(fields), site)


def start_command(words: list[str], site: WebSite) -> Response:
    """Start `moebox` with these words; reply with the page of its run."""
    name = begin_run([sys.executable, "-m", "moebox", *words], site)
    return JSONResponse({"go": f"/runs/{name}/live"}, 201)


def run_command(fields: dict[str, str]) -> list[str]:
    """The command line of `moebox run` for a form; values cannot become options."""
    given = {name: fields.get(name, "").strip() for name in ("box", "until", "recipe", "ram")}
    words = ["run", "--yes", *(f"--{name}={value}" for name, value in given.items() if value)]
    words += [f"--{name}" for name in ("twin", "keep") if fields.get(name)]
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


def stop_run(request: Request, *, site: WebSite) -> Response:
    """Interrupt a run as Ctrl-C does: the engine is stopped, what was measured is kept.

    The process that gets the signal must hold the run's lock, since a stored pid may be reused.
    """
    run = find_run(request.path_params["name"], site)
    refuse_if(not run.is_locked, f"{run.id} is not running")
    path = run.path / ".lock"
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        if any(os.readlink(link) == str(path.resolve()) for link in Path(f"/proc/{pid}/fd").iterdir()):
            os.kill(pid, signal.SIGINT)
            return JSONResponse({"stopped": run.id})
    raise ExternalError(f"the process of {run.id} is not on this machine", hint="stop it where it was started")
