"""`moebox climb`: try one setting at a time, and keep what is verified and better."""

from typing import TYPE_CHECKING, Any

from moebox.cli.display import VERDICT_MARKS
from moebox.cli.flags import AsJson, OutputPath, Settings
from moebox.cli.output import check_writable, print_lines, print_result, stderr_console, stdout_console, write_file
from moebox.cli.signals import interrupt_message
from moebox.errors import refuse_if
from moebox.units import format_count, format_seconds, format_tok_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moebox.core.recipe import Recipe
    from moebox.flows.walk import ClimbTrial
    from moebox.store import Run


def climb(
    recipe: str = "", /, *, resume: str = "", output: OutputPath = None, settings: Settings = (), json: AsJson = False
) -> int:
    """Try one setting at a time: context, then speculative decoding, then what the recipe's [climb] table lists.

    Every step restarts the engine, runs the checks that the change can break, asks the same questions again and
    measures; a change that fails, changes the answers or gains nothing is rolled back.

    Args:
        recipe: The recipe to begin with.
        resume: Resume the climb in this run folder.
        output: Write the best verified recipe to this file too.
        settings: Another value, repeatable: concurrency=4 requests at once in the measurement of each step, rounds=5
            measurements, questions=20 at temperature 0; with jobs=20 an agent also does as many jobs at each step, and
            a step that loses solved jobs is rolled back; with quality_limit=0.02 a step must keep within as many nats
            of the first one, or of reference=FILE (`moebox quality --save`) as the first one does.
    """
    from moebox import codec
    from moebox.detect.machine import detect_machine
    from moebox.flows import trials
    from moebox.flows.effort import parse_effort

    which = "name a recipe, or a run with --resume"
    refuse_if(bool(recipe) == bool(resume), which, hint="`moebox climb recipe.toml`")
    parse_effort(settings)
    check_writable(output)
    start, run = begin_trials("climb", recipe, resume)
    effort = parse_effort(settings, run)
    stderr_console().print(f"run: {run.path}", soft_wrap=True)
    notify = (lambda kind, news: None) if json else print_news
    with interrupt_message(f"resume with: moebox climb --resume {run.id}"):
        result = trials.climb(start, run, effort=effort, notify=notify, box=detect_machine(measure=False))
    best = result.best
    assert best is not None  # AnswerIsNo was raised otherwise
    if output:
        write_file(output, codec.to_toml(best.recipe))

    def print_table() -> None:
        print_steps(result.trials, result.passed_over)
        print_lines([f"best verified recipe: {output or run.path / trials.BEST_FILE}"])

    document = {**run.read_json(trials.TABLE_FILE), "recipe": codec.to_plain(best.recipe), "run": str(run.path)}
    return print_result(json, document, print_table)


def begin_trials(command: str, name: str, resume: str) -> "tuple[Recipe, Run]":
    """Return the recipe and run of a new climb or tuning, or of one to resume; errors come before a folder is made."""
    from moebox.checkpoint import deploy
    from moebox.flows import recipes, settings
    from moebox.flows.trials import load_start
    from moebox.serve.order import require_engine
    from moebox.store import Run

    if resume:
        run = Run.open(resume)
        recipe = load_start(run, command)
        refuse_if(not run.acquire_lock(), f"{run.path} is used by another moebox process")
        return recipe, run
    recipe = recipes.load_recipe(name)
    settings.check_climb_settings(recipe)
    require_engine(deploy(recipe))
    return recipe, Run.create(f"{command}-{recipe.name}")


def print_news(kind: str, news: Any) -> None:
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


def print_steps(trials: "Sequence[ClimbTrial]", passed_over: "Mapping[str, str]") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("change", "verdict", "tok/s", "TTFT", "KV tokens", "", "why", box=None, pad_edge=False)
    for trial in trials:
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
    for change, reason in passed_over.items():
        table.add_row(escape(change), "[dim]not tried[/]", "", "", "", "", escape(reason))
    stdout_console().print(table)
