"""Tune and upgrade from the page: the commands of the terminal, started for a recipe, and those that ran."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.errors import BadInput, refuse_if
from moebox.flows import recipes, switch
from moebox.flows.tune_state import TUNE_FILE, TuneState
from moebox.runs.listing import HistoryRow, list_summaries, recipe_history
from moebox.store import Run, runs_dir
from moebox.web.chat import running_engines
from moebox.web.gate import WebSite
from moebox.web.pages import read_form, render_page
from moebox.web.runs import child_environment, command_error, start_command, with_activity
from moebox.web.trial_view import read_state, upgrade_steps

MAX_SHOWN = 50  # trials on the page
FIELDS = {"tune": ("goal", "budget", "resume"), "upgrade": ("recipe", "to", "by", "source")}  # of the form: options


async def show_trials(request: Request, *, site: WebSite, command: str) -> Response:
    """The form of a command, the tunings or upgrades that ran, and the history of the recipe in question."""
    context = await run_in_threadpool(trial_context, site, command, request.query_params.get("recipe", ""))
    return render_page(f"{command}.html", title=command.title(), here=command, **context)


def trial_context(site: WebSite, command: str, recipe: str) -> dict[str, Any]:
    """What the page of a command shows."""
    home = runs_dir(site.runs)
    serving = [engine.recipe for engine in running_engines() if Path(engine.run).parent == home]  # no engine of a trial
    recipe = recipe or next(iter(serving), "")
    found = [row for row in list_summaries(site.runs) if f"-{command}-" in row.id][:MAX_SHOWN]
    rows = []
    for row in with_activity(site, found):
        run = Run(home / row.run.id)
        tuning, result = read_state(run, TuneState, TUNE_FILE), read_state(run, UpgradeResult, UPGRADE_FILE)
        steps = upgrade_steps(run)
        if tuning if command == "tune" else result or steps:
            rows.append((row, tuning, result, steps))
    names = dict.fromkeys([*serving, *(row.name for row in recipes.list_recipes(site.runs))])
    applied = [journal.name for journal in switch.list_journals("applied")]
    return {"recipe": recipe, "names": names, "rows": rows, "history": read_history(site, recipe), "applied": applied}


def read_history(site: WebSite, recipe: str) -> list[HistoryRow]:
    """What ran of a recipe; nothing if it never did."""
    try:
        return recipe_history(recipe, runs=site.runs)
    except BadInput:
        return []


async def start_trial(request: Request, *, site: WebSite, command: str) -> Response:
    """Start `moebox tune` or `moebox upgrade`; reply with the run's page."""
    fields = {name: value.strip() for name, value in (await read_form(request)).items()}
    words = [command, *["apply"] * (command == "upgrade" and "apply" in fields)]
    words += [f"--{name}={fields[name]}" for name in FIELDS[command] if fields.get(name)]
    if command == "tune" and not fields.get("resume"):
        refuse_if(not fields.get("recipe"), "name a recipe", hint="one of the list, or a file")
        words += ["--", fields["recipe"]]
    return await start_command(words, site)


async def roll_back(request: Request, *, site: WebSite) -> Response:
    """Return from an applied upgrade with `moebox upgrade rollback`; its endpoint may need minutes to start."""
    recipe = (await read_form(request)).get("recipe", "")
    words = [sys.executable, "-m", "moebox", "upgrade", "rollback", f"--recipe={recipe}"]
    env = child_environment(site)
    done = await run_in_threadpool(subprocess.run, words, env=env, capture_output=True, text=True)
    if done.returncode:
        raise command_error(done.stderr, done.returncode)
    return JSONResponse({"good": done.stdout.strip()})
