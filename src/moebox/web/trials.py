"""Tune, upgrade and jobs of an agent from the page: the commands of the terminal, started, and those that ran."""

import contextlib
import subprocess
import sys
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.errors import BadInput, MoeboxError, refuse_if
from moebox.flows import recipes, switch
from moebox.flows.tune_state import TUNE_FILE, TuneState
from moebox.runs.listing import HistoryRow, list_summaries, recipe_history
from moebox.store import Run, plain, runs_dir
from moebox.tasks.result import FILE, LEVELS, load_task_run
from moebox.tasks.score import family_scores, solved_score
from moebox.web.engines import find_endpoint, running_engines
from moebox.web.gate import WebSite
from moebox.web.live import read_state, upgrade_steps
from moebox.web.pages import render_page
from moebox.web.runs import child_environment, command_error, start_command, with_activity

MAX_SHOWN = 50  # trials or runs with jobs on the page
FIELDS = {"tune": ("goal", "budget", "resume"), "upgrade": ("recipe", "to", "by", "source")}  # of the form: options


def show_trials(request: Request, *, site: WebSite, command: str) -> Response:
    """The form of a command, the tunings or upgrades that ran, and the history of the recipe in question."""
    home = runs_dir(site.runs)
    serving = [engine.recipe for engine in running_engines() if Path(engine.run).parent == home]  # no engine of a trial
    recipe = request.query_params.get("recipe", "") or next(iter(serving), "")
    found = [row for row in list_summaries(site.runs) if f"-{command}-" in row.id][:MAX_SHOWN]
    rows = []
    for row, live in with_activity(site, found):
        run = Run(home / row.id)
        tuning, result = read_state(run, TuneState, TUNE_FILE), read_state(run, UpgradeResult, UPGRADE_FILE)
        steps = upgrade_steps(run)
        if tuning if command == "tune" else result or steps:
            rows.append((row, live, tuning, result, steps))
    history: list[HistoryRow] = []
    with contextlib.suppress(BadInput):  # it never ran
        history = recipe_history(recipe, runs=site.runs)
    names = dict.fromkeys([*serving, *(row.name for row in recipes.list_recipes(site.runs))])
    applied = [journal.name for journal in switch.list_journals("applied")]
    context = {"recipe": recipe, "names": names, "rows": rows, "history": history, "applied": applied}
    return render_page(f"{command}.html", title=command.title(), here=command, **context)


def start_trial(command: str, form: dict[str, str], *, site: WebSite) -> Response:
    """Start `moebox tune` or `moebox upgrade`; reply with the run's page."""
    fields = {name: value.strip() for name, value in form.items()}
    words = [command, *["apply"] * (command == "upgrade" and "apply" in fields)]
    words += [f"--{name}={fields[name]}" for name in FIELDS[command] if fields.get(name)]
    if command == "tune" and not fields.get("resume"):
        refuse_if(not fields.get("recipe"), "name a recipe", hint="one of the list, or a file")
        words += ["--", fields["recipe"]]
    return start_command(words, site)


def roll_back(fields: dict[str, str], *, site: WebSite) -> Response:
    """Return from an applied upgrade with `moebox upgrade rollback`; its endpoint may need minutes to start."""
    words = [sys.executable, "-m", "moebox", "upgrade", "rollback", f"--recipe={fields.get('recipe', '')}"]
    done = subprocess.run(words, env=child_environment(site), capture_output=True, text=True, check=False)
    if done.returncode:
        raise command_error(done.stderr, done.returncode)
    return JSONResponse({"good": done.stdout.strip()})


def list_task_runs(request: Request, *, site: WebSite) -> Response:
    """List the newest runs with jobs; those whose results cannot be read are left out."""
    home, rows = runs_dir(site.runs), []
    folders = home.iterdir() if home.is_dir() else ()
    found = sorted((folder for folder in folders if plain.is_plain_file(folder / FILE)), reverse=True)
    for folder in found[:MAX_SHOWN]:
        with contextlib.suppress(MoeboxError):
            if tasks := load_task_run(Run(folder)):
                results = tasks.finished_results
                rows.append((folder.name, tasks, solved_score(results), family_scores(results)))
    context = {"rows": rows, "total": len(found), "engines": running_engines(), "levels": LEVELS}
    return render_page("tasks.html", title="Tasks", here="tasks", **context)


def start_tasks(fields: dict[str, str], *, site: WebSite) -> Response:
    """Start `moebox task` with a running engine; reply with the run's page."""
    engine = fields.get("engine", "")
    find_endpoint(engine)
    words = ["task", f"--jobs={fields.get('jobs') or 9}", f"--level={fields.get('level') or 'easy'}", "--", engine]
    return start_command(words, site)
