"""`moebox climb`: try one setting at a time, and keep what is verified and better."""

from typing import TYPE_CHECKING, Any, Literal

from moebox.cli import flags
from moebox.cli.display import VERDICT_MARKS
from moebox.cli.flags import AsJson, OutputPath
from moebox.cli.output import check_writable, print_result, stderr_console, stdout_console, write_file
from moebox.cli.signals import interrupt_message
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.loose import Json
from moebox.units import format_count, format_seconds, format_tok_s

if TYPE_CHECKING:
    from pathlib import Path

    from moebox.core.recipe import Recipe
    from moebox.flows.climb import ClimbResult
    from moebox.flows.effort import ClimbEffort
    from moebox.store import Run

DEFAULT_JOBS = 20  # with --by task


def climb(
    recipe: str = "",
    /,
    *,
    resume: str = "",
    output: OutputPath = None,
    concurrency: int | None = None,
    rounds: int | None = None,
    questions: int | None = None,
    by: Literal["answers", "task"] | None = None,
    jobs: int | None = None,
    json: AsJson = False,
) -> int:
    """Try one setting at a time: context, then speculative decoding, then what the recipe's [climb] table lists.

    Every step restarts the engine, runs the checks that the change can break, asks the same questions again and
    measures; a change that fails, changes the answers or gains nothing is rolled back.

    Args:
        recipe: The recipe to begin with.
        resume: Resume the climb in this run folder.
        output: Write the best verified recipe to this file too.
        concurrency: Concurrent requests in the measurement of each step. Default: 4.
        rounds: Measurements of each step; more make the interval narrower. Default: 5.
        questions: Questions asked at temperature 0 to see whether a step changes the answers. Default: 20.
        by: With task, an agent also does the same jobs at each step; a step that loses solved jobs is rolled back.
        jobs: Number of jobs, with --by task. Default: 20.
    """
    from moebox import codec
    from moebox.detect.machine import detect_machine
    from moebox.flows import climb as flow

    which = "name a recipe, or a run with --resume"
    refuse_if(bool(recipe) == bool(resume), which, hint="`moebox climb recipe.toml`")
    refuse_out_of_range("--concurrency", concurrency, 1, 256)
    refuse_out_of_range("--rounds", rounds, 2, 100)
    refuse_out_of_range("--questions", questions, 0, 1000)
    refuse_out_of_range("--jobs", jobs, 1, 1000)
    if recipe and by != "task":
        flags.refuse_without("--by task", jobs=jobs)
    check_writable(output)
    start, run = _start_climb(recipe, resume)
    given = {"concurrency": concurrency, "rounds": rounds, "questions": questions, "by": by, "jobs": jobs}
    effort = _climb_effort(run, {flag: value for flag, value in given.items() if value is not None})
    stderr_console().print(f"run: {run.path}", soft_wrap=True)
    notify = (lambda kind, news: None) if json else _print_news
    with interrupt_message(f"resume with: moebox climb --resume {run.id}"):
        result = flow.climb(start, run, effort=effort, notify=notify, box=detect_machine(measure=False))
    best = result.best
    assert best is not None  # AnswerIsNo was raised otherwise
    if output:
        write_file(output, codec.to_toml(best.recipe))
    print_result(
        json,
        {**run.read_json(flow.TABLE_FILE), "recipe": codec.to_plain(best.recipe), "run": str(run.path)},
        lambda: _print_steps(result, output or run.path / flow.BEST_FILE),
    )
    return 0


def _start_climb(name: str, resume: str) -> "tuple[Recipe, Run]":
    """Return the recipe and run of a new climb, or of one to resume; errors come before a folder is made."""
    from moebox.checkpoint import deploy
    from moebox.flows import climb as flow
    from moebox.flows import recipes, settings
    from moebox.serve.order import require_engine
    from moebox.store import Run

    if resume:
        run = Run.open(resume)
        recipe = flow.climb_recipe(run)
        refuse_if(not run.acquire_lock(), f"{run.path} is used by another moebox process")
        return recipe, run
    recipe = recipes.load_recipe(name)
    settings.check_climb_settings(recipe)
    require_engine(deploy(recipe))
    return recipe, Run.create(f"climb-{recipe.name}")


def _climb_effort(run: "Run", given: Json) -> "ClimbEffort":
    """Return the effort of the flags; a climb that is resumed keeps its own, because its steps are compared."""
    from moebox.flows import effort as efforts

    stored = efforts.load_effort(run)
    if stored is not None:
        efforts.refuse_contradiction(stored, given, run)
        return stored
    by_task = given.get("by") == "task"
    if not by_task:
        flags.refuse_without("--by task", jobs=given.get("jobs"))
    measures = {name: value for name, value in given.items() if name != "by"}
    return efforts.effort_from({"jobs": DEFAULT_JOBS if by_task else 0, **measures}, where="climb")


def _print_news(kind: str, news: Any) -> None:
    """Print progress line by line."""
    from rich.markup import escape

    if kind == "try":
        line = f"[bold]{escape(news.change)}[/] …"
    elif kind == "check":
        reason = f" {escape(news.reason)}" if news.reason else ""
        line = f"  {VERDICT_MARKS[news.verdict]} {news.name} [dim]{format_seconds(news.seconds)}[/]{reason}"
    elif kind == "done":
        line = f"  {'kept' if news.kept else 'dropped'}: {escape(news.why)}"
    else:
        line = f"  {escape(news)}"
    stderr_console().print(line)


def _print_steps(result: "ClimbResult", best: "Path") -> None:
    """Print a table of every step, and the path of the best recipe."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("change", "verdict", "tok/s", "TTFT", "KV tokens", "", "why"):
        table.add_column(title, justify="right" if title in ("tok/s", "TTFT", "KV tokens") else "left")
    for trial in result.trials:
        measured = trial.output_tok_s > 0
        table.add_row(
            escape(trial.change),
            f"{VERDICT_MARKS[trial.verdict]} {trial.verdict}",
            format_tok_s(trial.output_tok_s).removesuffix(" tok/s") if measured else "",
            format_seconds(trial.ttft_ms / 1e3) if measured else "",
            format_count(trial.kv_tokens) if trial.kv_tokens else "",
            "[green]kept[/]" if trial.kept else "dropped",
            escape(trial.why),
        )
    for change, reason in result.passed_over.items():
        table.add_row(escape(change), "[dim]not tried[/]", "", "", "", "", escape(reason))
    stdout_console().print(table)
    stdout_console().print(f"best verified recipe: {escape(str(best))}", soft_wrap=True)
