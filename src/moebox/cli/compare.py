"""`moebox compare`: two recipes, or two servers, side by side and with judgement."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.core.endpoint import Endpoint
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.stream.limits import is_twin
from moebox.units import format_percent, format_seconds, format_tok_s, plural

if TYPE_CHECKING:
    from rich.table import Table

    from moebox.flows.compare import CompareTarget, Comparison
    from moebox.flows.compare_tasks import TaskComparison
    from moebox.store import Run
    from moebox.tasks.job import Level
    from moebox.tasks.result import JobResult

Words = Annotated[list[str] | None, Parameter(negative=())]
QUESTIONS, ROUNDS, JOBS = 30, 6, 20


def compare(
    a: str,
    b: str,
    /,
    *,
    by: Literal["answers", "task"] = "answers",
    concurrency: Words = None,
    questions: int | None = None,
    rounds: int | None = None,
    family: Words = None,
    level: Literal["easy", "medium", "hard"] | None = None,
    jobs: int | None = None,
    parallel: int | None = None,
    seed: int | None = None,
    model: str = "",
    model_b: str = "",
    key_env: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Ask two servers the same questions at temperature 0 and measure both: is B as right, and is it faster?

    Both are asked and measured in turn, A B B A. Two recipes are started one after the other (A, B, A) and stopped
    again; URLs are taken as they are. Gains come with an interval, and "no difference" is an answer. With `--by task`
    both do the same seeded jobs, paired by seed: does B solve fewer? Exit code 1 when B answers or solves less, or is
    slower by more than 2% wherever in the interval the truth lies.

    Args:
        a: A recipe, or the URL of a running server.
        b: The same; B is judged against A.
        by: Judge by answers and speed, or by jobs solved (task).
        concurrency: Concurrent requests to measure at, like 1,4,16; 1,4 when left out.
        questions: Questions asked of both, 30 when left out.
        rounds: Measurements at each concurrency, 6 when left out.
        family: With --by task, only these families of jobs.
        level: With --by task, how hard the jobs are; easy when left out.
        jobs: With --by task, how many jobs; 20 when left out.
        parallel: With --by task, jobs at the same time on one side; 1 when left out.
        seed: Seed of questions and jobs; a fresh one is drawn when left out.
        model: The served name, where a URL serves several.
        model_b: The served name at B, where it is another.
        key_env: The environment variable that holds the key of a URL.
        json: Print JSON.
    """
    from moebox import codec
    from moebox.store import Run

    first = random.randrange(10**6) if seed is None else seed
    streams = _streams(concurrency)
    refuse_out_of_range("--rounds", rounds, 2, 100)
    refuse_out_of_range("--questions", questions, 1, 1000)
    refuse_out_of_range("--jobs", jobs, 2, 10_000)
    refuse_out_of_range("--parallel", parallel, 1, 256)
    if by == "task":
        flags.refuse_unused("--by task judges jobs", concurrency=concurrency, questions=questions, rounds=rounds)
    else:
        flags.refuse_without("--by task", family=family, level=level, jobs=jobs, parallel=parallel)
    _refuse_for_recipes(a, b, model=model, model_b=model_b, key_env=key_env)
    left, right = _target(a, model, key_env), _target(b, model_b or model, key_env)
    if by == "task":
        return _by_task(left, right, family, level or "easy", jobs or JOBS, parallel or 1, first, json)
    from moebox.flows.compare import CompareEffort, compare_targets
    from moebox.flows.compare import compare_sides as judged

    effort = CompareEffort(concurrency=streams, questions=questions or QUESTIONS, rounds=rounds or ROUNDS, seed=first)
    run = Run.create("compare", simulation=_simulated(left, right))
    with interrupt_message(_not_resumed(run)):
        stderr_console().print(f"run: {run.path}", soft_wrap=True)
        sides = compare_targets(left, right, run, effort)
    found = judged(*sides)
    names = _names(left, right)
    run.write_json("compare.json", {"comparison": found, "sides": sides, "seed": first, **names})
    print_result(json, {**codec.to_plain(found), **names, "run": str(run.path)}, lambda: _show(found, names))
    return exit_code(found.as_good and not found.slower)


def _refuse_for_recipes(a: str, b: str, *, model: str, model_b: str, key_env: str) -> None:
    """BadInput for what is said of a server where a recipe says it itself."""
    from moebox.flows.recipes import is_recipe

    of_a, of_b = is_recipe(a), is_recipe(b)
    if of_a and of_b:
        flags.refuse_unused("a recipe names its model and key", model=model, model_b=model_b, key_env=key_env)
    if of_b:
        flags.refuse_unused("B is a recipe, which names its model", model_b=model_b)
    if of_a and model_b:
        flags.refuse_unused("A is a recipe, which names its model, and --model-b is B's", model=model)


def _names(a: "CompareTarget", b: "CompareTarget") -> dict[str, str]:
    """What A and B are."""
    return {"target_a": _name(a), "target_b": _name(b)}


def _name(side: "CompareTarget") -> str:
    """The URL of a server, the name of a recipe."""
    return side.base_url if isinstance(side, Endpoint) else side.name


def _simulated(left: "CompareTarget", right: "CompareTarget") -> bool:
    """Whether both are; BadInput where only one is: a forecast and a measurement say nothing about each other."""
    twins = [isinstance(side, Endpoint) and is_twin(side) for side in (left, right)]
    names = ("A", "B") if twins[0] else ("B", "A")
    refuse_if(twins[0] != twins[1], "{} is a simulation, and {} is not: nothing would be learned".format(*names))
    return twins[0]


def _not_resumed(run: "Run") -> str:
    return f"a comparison cannot be resumed; what was written so far is in {run.path}"


def _streams(given: list[str] | None) -> tuple[int, ...]:
    words = flags.split_names(*(given or ("1,4",)))
    limits = "--concurrency is 1 to 256, like 1,4,16"
    refuse_if(not words, limits)
    wrong = f"--concurrency {','.join(words)}: write it like 1,4,16"
    return flags.parse_numbers(words, int, lambda number: 1 <= number <= 256, not_numbers=wrong, out_of_range=limits)


def _target(target: str, model: str, key_env: str) -> "CompareTarget":
    from moebox.cli import target as targets
    from moebox.flows import recipes

    if recipes.is_recipe(target):
        from moebox.checkpoint import deploy
        from moebox.serve.order import require_engine

        recipe = recipes.load_recipe(target)
        require_engine(deploy(recipe))
        return recipe
    return targets.find_endpoint(target, model=model, key_env=key_env)


def _by_task(
    a: "CompareTarget",
    b: "CompareTarget",
    family: list[str] | None,
    level: "Level",
    jobs: int,
    parallel: int,
    seed: int,
    json: bool,
) -> int:
    """The same jobs on both sides."""
    from rich.text import Text

    from moebox import codec
    from moebox.cli.task import parse_families
    from moebox.cli.task_view import job_line
    from moebox.flows.compare_tasks import compare_by_task
    from moebox.store import Run
    from moebox.tasks import runner

    names = runner.job_names(parse_families(family), level, jobs, seed)
    run = Run.create("compare", simulation=_simulated(a, b))
    stderr_console().print(f"run: {run.path}", soft_wrap=True)

    def tell(side: str, result: "JobResult") -> None:
        if not json:
            stdout_console().print(Text(f"{side} ") + job_line(result, stdout_console().width - 2))

    with interrupt_message(_not_resumed(run)):
        found = compare_by_task(a, b, names, run, runner.TaskOptions(parallel=parallel), tell)
    targets = _names(a, b)
    run.write_json("compare.json", {"by_task": found, "seed": seed, **targets})
    print_result(json, {**codec.to_plain(found), **targets, "run": str(run.path)}, lambda: _show_jobs(found))
    return exit_code(found.as_good)


def _show_jobs(found: "TaskComparison") -> None:
    stdout_console().print(f"solved: A {found.solved_a} of {found.jobs}, B {found.solved_b} of {found.jobs}")
    stdout_console().print(f"B less A: {found.share:+.0%} of jobs ({found.low:+.0%} to {found.high:+.0%})")
    stdout_console().print(found.verdict, markup=False)


def _show(found: "Comparison", names: dict[str, str]) -> None:
    """What both said, how fast, and the verdict."""
    from rich.markup import escape

    stdout_console().print(escape(f"A: {names['target_a']}\nB: {names['target_b']}"))
    stdout_console().print(_table(found))
    for parting in found.answers.divergences[:3]:
        where = f"{parting.family}: differs from {parting.unit} {parting.at} on"
        stdout_console().print(escape(f"{where}: {parting.a!r} / {parting.b!r}"))
    stdout_console().print(escape(found.verdict))


def _table(found: "Comparison") -> "Table":
    """Both sides, a row for each kind of answer and for each load."""
    from rich.table import Table

    table = Table("", "A", "B", "", box=None, pad_edge=False)
    for row in (*_answer_rows(found), *_speed_rows(found)):
        table.add_row(*row)
    return table


def _answer_rows(found: "Comparison") -> Iterator[tuple[str, ...]]:
    """How right each was, and how often its drafts were taken."""
    answers = found.answers
    for what, left, right in (
        ("right answers", answers.right_a, answers.right_b),
        ("valid JSON", answers.json_a, answers.json_b),
        ("valid tool calls", answers.tools_a, answers.tools_b),
    ):
        yield what, f"{left.passed} of {left.trials}", f"{right.passed} of {right.trials}", ""
    accepted = (found.acceptance_a, found.acceptance_b)
    if accepted != (None, None):
        yield "draft tokens accepted", *map(_share, accepted), ""


def _share(share: float | None) -> str:
    return "" if share is None else format_percent(share)


def _speed_rows(found: "Comparison") -> Iterator[tuple[str, ...]]:
    """Tokens a second and first token at each load."""
    from rich.markup import escape

    for row in found.gains:
        yield (
            plural(row.concurrency, "stream"),
            format_tok_s(row.a_tok_s),
            format_tok_s(row.b_tok_s),
            escape(str(row.gain or "")),
        )
        yield "  first token", format_seconds(row.a_ttft_ms / 1e3), format_seconds(row.b_ttft_ms / 1e3), ""
