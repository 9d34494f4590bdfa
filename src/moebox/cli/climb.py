"""`moebox climb`: one setting at a time, keeping what is verified and better."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape

from moebox.cli import flags
from moebox.cli.output import check_writable, print_result, stderr_console, stdout_console, write_file
from moebox.cli.signals import interrupt_message
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.loose import Json
from moebox.units import format_count, format_seconds, format_tok_s

if TYPE_CHECKING:
    from moebox.core.recipe import Recipe
    from moebox.core.verdict import CheckVerdict
    from moebox.flows.climb import ClimbResult
    from moebox.flows.effort import ClimbEffort
    from moebox.flows.walk import ClimbTrial
    from moebox.store import Run

JOBS = 20  # with --by task
_MARKS = {"pass": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]", "skip": "[dim]–[/]"}


def climb(
    recipe: str = "",
    /,
    *,
    resume: str = "",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    concurrency: int | None = None,
    rounds: int | None = None,
    questions: int | None = None,
    by: Literal["answers", "task"] | None = None,
    jobs: int | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Try one setting at a time: context, then speculative decoding, then what the recipe's [climb] table lists.

    Every step restarts the engine, makes the checks that the change can break, asks the same questions again and
    measures; a change that fails, changes the answers or gains nothing is rolled back.

    Args:
        recipe: The recipe to begin with.
        resume: Go on with the climb in this run folder.
        output: Write the best verified recipe here too.
        concurrency: Concurrent requests in the measurement of each step, 4 when left out.
        rounds: Measurements of each step, 5 when left out; more make the interval narrower.
        questions: Questions asked at temperature 0 to see whether a step changes the answers, 20 when left out.
        by: With task, an agent also does the same jobs at each step; a step that loses solved jobs is rolled back.
        jobs: Number of jobs, with --by task; 20 when left out.
        json: Print JSON.
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
    chosen, run = _begun(recipe) if recipe else _resumed(resume)
    given = {"concurrency": concurrency, "rounds": rounds, "questions": questions, "by": by, "jobs": jobs}
    effort = _effort(run, {flag: value for flag, value in given.items() if value is not None})
    stderr_console().print(f"run: {run.path}", soft_wrap=True)
    with interrupt_message(f"go on with: moebox climb --resume {run.id}"):
        summit = flow.climb(
            chosen, run, effort=effort, notify=_silent if json else _tell, box=detect_machine(measure=False)
        )
    best = summit.best
    assert best is not None  # AnswerIsNo was raised otherwise
    if output:
        write_file(output, codec.to_toml(best.recipe))
    print_result(
        json,
        {**run.read_json(flow.TABLE_FILE), "recipe": codec.to_plain(best.recipe), "run": str(run.path)},
        lambda: _show(summit, output or run.path / flow.BEST_FILE),
    )
    return 0


def _begun(name: str) -> "tuple[Recipe, Run]":
    """A new climb; what cannot be meant, and an engine that is not installed, is named before a folder is made."""
    from moebox.checkpoint import deploy
    from moebox.flows import recipes, settings
    from moebox.serve.order import require_engine
    from moebox.store import Run

    recipe = recipes.load_recipe(name)
    settings.check_climb_settings(recipe)
    require_engine(deploy(recipe))
    return recipe, Run.create(f"climb-{recipe.name}")


def _resumed(name: str) -> "tuple[Recipe, Run]":
    """A climb to go on with, held against any other moebox."""
    from moebox.flows import climb as flow
    from moebox.store import Run

    run = Run.open(name)
    recipe = flow.climb_recipe(run)
    refuse_if(not run.acquire_lock(), f"{run.path} is being climbed by another moebox")
    return recipe, run


def _effort(run: "Run", given: Json) -> "ClimbEffort":
    """As the climb was begun, for its steps are compared; by the flags where it is new, or does not say."""
    from moebox.flows import effort as efforts

    kept = efforts.load_effort(run)
    if kept is None:
        if given.get("by") != "task":
            flags.refuse_without("--by task", jobs=given.get("jobs"))
        return efforts.effort_from(_measures(**given), where="climb")
    efforts.refuse_contradiction(kept, given, run)
    return kept


def _measures(by: object = "answers", jobs: object = JOBS, **others: object) -> Json:
    return {**others, "jobs": jobs if by == "task" else 0}


def _silent(kind: str, news: Any) -> None:
    """JSON stands alone."""


def _tell(kind: str, news: Any) -> None:
    """Progress, line by line."""
    stderr_console().print(_LINES[kind](news))


def _rung(check: "CheckVerdict") -> str:
    reason = f" {escape(check.reason)}" if check.reason else ""
    return f"  {_MARKS[check.verdict]} {check.name} [dim]{format_seconds(check.seconds)}[/]{reason}"


_LINES: dict[str, Callable[[Any], str]] = {
    "try": lambda step: f"[bold]{escape(step.change)}[/] …",
    "news": lambda line: f"  {escape(line)}",
    "check": _rung,
    "done": lambda trial: f"  {'kept' if trial.kept else 'dropped'}: {escape(trial.why)}",
}


def _show(summit: "ClimbResult", best: Path) -> None:
    """The table of every step."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("change", "verdict", "tok/s", "TTFT", "KV tokens", "", "why"):
        table.add_column(title, justify="right" if title in ("tok/s", "TTFT", "KV tokens") else "left")
    for trial in summit.trials:
        table.add_row(*_cells(trial))
    for change, why in summit.passed_over.items():
        table.add_row(escape(change), "[dim]not tried[/]", "", "", "", "", escape(why))
    stdout_console().print(table)
    stdout_console().print(f"best verified recipe: {escape(str(best))}", soft_wrap=True)


def _cells(trial: "ClimbTrial") -> list[str]:
    measured = trial.output_tok_s > 0
    return [
        escape(trial.change),
        f"{_MARKS[trial.verdict]} {trial.verdict}",
        format_tok_s(trial.output_tok_s).removesuffix(" tok/s") if measured else "",
        format_seconds(trial.ttft_ms / 1e3) if measured else "",
        format_count(trial.kv_tokens) if trial.kv_tokens else "",
        "[green]kept[/]" if trial.kept else "dropped",
        escape(trial.why),
    ]
