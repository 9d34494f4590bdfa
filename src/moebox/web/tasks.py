"""Jobs of an agent: start them, list the runs that had some, and how many were solved."""

from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from moebox.errors import MoeboxError
from moebox.store import Run, plain, runs_dir
from moebox.tasks.job import LEVELS
from moebox.tasks.result import FamilyScore, load_task_run
from moebox.tasks.score import family_scores, solved_score
from moebox.web.chat import find_endpoint, running_engines
from moebox.web.gate import WebSite
from moebox.web.pages import read_form, render_page
from moebox.web.runs import start_command

MAX_SHOWN = 50  # runs on the page
FILE = "tasks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One run's jobs."""

    run: str
    model: str
    agent: str
    solved: str  # "3 of 4 (30–95%)"
    share: float
    left: int  # jobs that have no result yet
    families: tuple[FamilyScore, ...]


async def list_task_runs(request: Request, *, site: WebSite) -> Response:
    """List the newest runs with jobs."""
    folders = await run_in_threadpool(folders_with_jobs, runs_dir(site.runs))
    rows = await run_in_threadpool(lambda: [row for folder in folders[:MAX_SHOWN] if (row := task_row(folder))])
    engines = await run_in_threadpool(running_engines)
    return render_page(
        "tasks.html", title="Tasks", here="tasks", rows=rows, total=len(folders), engines=engines, levels=LEVELS
    )


async def start_tasks(request: Request, *, site: WebSite) -> Response:
    """Start `moebox task` with a running engine; reply with the run's page."""
    fields = await read_form(request)
    engine = fields.get("engine", "")
    await run_in_threadpool(find_endpoint, engine)
    words = ["task", f"--jobs={fields.get('jobs') or 9}", f"--level={fields.get('level') or 'easy'}", "--", engine]
    return await start_command(words, site)


def folders_with_jobs(home: Path) -> list[Path]:
    """Run folders with results of jobs, newest first, without reading them."""
    if not home.is_dir():
        return []
    return sorted((folder for folder in home.iterdir() if plain.is_plain_file(folder / FILE)), reverse=True)


def task_row(folder: Path) -> TaskRow | None:
    """One run's row, or None if its results cannot be read."""
    try:
        found = load_task_run(Run(folder))
    except MoeboxError:
        return None
    if found is None:
        return None
    results = found.finished_results
    score = solved_score(results)
    return TaskRow(
        run=folder.name,
        model=found.model,
        agent=found.worker_title,
        solved=score.text if results else "none finished",
        share=score.share if results else 0.0,
        left=len(found.unfinished_jobs),
        families=tuple(family_scores(results)),
    )
