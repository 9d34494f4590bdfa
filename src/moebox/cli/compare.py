"""`moebox compare`: judge two recipes or two servers against each other."""

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from moebox import api
from moebox.cli import flags
from moebox.cli.flags import AsJson, Names, Settings
from moebox.cli.output import exit_code, print_lines, print_result, stderr_console, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.cli.target import find_endpoint
from moebox.core.endpoint import Endpoint
from moebox.core.setting import Effort, apply_settings
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.stream.limits import is_twin
from moebox.units import format_percent, format_seconds, format_tok_s, plural

if TYPE_CHECKING:
    from moebox.flows.compare import CompareTarget, Comparison
    from moebox.tasks.result import JobName, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """How much is asked, measured and done."""

    questions: int = 200  # shows a loss of 3%; 30 miss one of 20%
    rounds: int = 6  # measurements at each concurrency
    seed: int | None = None  # of questions and jobs; None draws one
    quality_limit: float = 0.0  # nats; 0 if quality is not judged
    reference: str = ""
    jobs: int = 20
    level: Literal["easy", "medium", "hard"] = "easy"
    family: tuple[str, ...] = ()
    parallel: int = 1  # jobs at the same time on one side


EFFORTS: dict[Effort, CompareSettings] = {
    "quick": CompareSettings(questions=30, rounds=3, jobs=8),
    "normal": CompareSettings(),
    "thorough": CompareSettings(questions=500, rounds=12, jobs=60),
}


def compare(
    a: str,
    b: str,
    /,
    *,
    by: Literal["answers", "task"] = "answers",
    concurrency: Names = (),
    effort: Effort = "normal",
    settings: Settings = (),
    model: str = "",
    model_b: str = "",
    key_env: str = "",
    json: AsJson = False,
) -> int:
    """Ask two servers the same questions at temperature 0 and measure both: is B as correct, and is it faster?

    Both are asked and measured in turn, A B B A. Two recipes are started one after the other (A, B, A) and stopped
    again; URLs are used as they are. Gains come with an interval, and "no difference" is an answer. With `--by task`
    both do the same seeded jobs, paired by seed: does B solve fewer? Exit code 1 if B answers or solves less, or is
    certainly slower by more than 2%.

    Args:
        a: A recipe, or the URL of a running server.
        b: A recipe or URL; B is judged against A.
        by: Judge by answers and speed, or by jobs solved (task).
        concurrency: Concurrent requests to measure at, like 1,4,16. Default: 1,4.
        effort: quick asks 30 questions and measures each concurrency 3 times, normal 200 and 6, thorough 500 and 12;
            with --by task quick does 8 jobs, normal 20, thorough 60.
        settings: Another value, repeatable: questions=30, rounds=6, seed=1 of questions and jobs; quality_limit=0.02
            also compares log-probabilities: B is worse if it is more nats from A, or that much farther than A from
            reference=FILE (`moebox quality --save`); with --by task jobs=20, level=hard, family=repair,clean,
            parallel=2 jobs at the same time on one side.
        model: The served model name, if a URL serves several.
        model_b: The served model name at B, if it differs.
        key_env: The environment variable that holds the key of a URL.
    """
    from moebox.flows.effort import parse_limit
    from moebox.flows.recipes import is_recipe

    words = flags.split_names(*(concurrency or ("1,4",)))
    limits = "--concurrency must be from 1 to 256, like 1,4,16"
    refuse_if(not words, limits)
    wrong = f"--concurrency {','.join(words)}: write it like 1,4,16"
    streams = flags.parse_numbers(words, int, lambda count: 1 <= count <= 256, not_numbers=wrong, out_of_range=limits)
    usual = EFFORTS[effort]
    chosen = apply_settings(usual, settings)
    refuse_out_of_range("--set rounds", chosen.rounds, 2, 100)
    refuse_out_of_range("--set questions", chosen.questions, 1, 1000)
    refuse_out_of_range("--set jobs", chosen.jobs, 2, 10_000)
    refuse_out_of_range("--set parallel", chosen.parallel, 1, 256)
    limit = parse_limit(chosen.quality_limit, chosen.reference)
    if by == "task":
        flags.refuse_unused("--by task judges jobs", concurrency=concurrency)
        asked = (chosen.questions, chosen.rounds, limit) != (usual.questions, usual.rounds, 0.0)
        text = "--by task judges jobs: it does not take questions, rounds or quality_limit"
        refuse_if(asked, text, hint="leave them out")
    else:
        same = replace(usual, questions=chosen.questions, rounds=chosen.rounds, seed=chosen.seed)
        needs = replace(same, quality_limit=chosen.quality_limit, reference=chosen.reference) != chosen
        refuse_if(needs, "jobs, level, family and parallel need --by task", hint="add --by task, or leave them out")
    a_recipe, b_recipe = is_recipe(a), is_recipe(b)
    if a_recipe and b_recipe:
        flags.refuse_unused("a recipe names its model and key", model=model, model_b=model_b, key_env=key_env)
    if b_recipe:
        flags.refuse_unused("B is a recipe, which names its model", model_b=model_b)
    if a_recipe and model_b:
        flags.refuse_unused("A is a recipe, which names its model, and --model-b is B's", model=model)
    left, right = _find_side(a, model, key_env), _find_side(b, model_b or model, key_env)
    number = random.randrange(10**6) if chosen.seed is None else chosen.seed
    if by == "task":
        from moebox.cli.task.command import parse_families
        from moebox.tasks import runner

        names = runner.job_names(parse_families(chosen.family), chosen.level, chosen.jobs, number)
        return _compare_jobs(left, right, names, chosen.parallel, number, json=json)
    from moebox import codec
    from moebox.flows.compare import CompareEffort, target_names
    from moebox.store import Run

    measures = CompareEffort(
        concurrency=streams,
        questions=chosen.questions,
        rounds=chosen.rounds,
        seed=number,
        quality_limit=limit,
        reference=chosen.reference,
    )
    run = Run.create("compare", simulation=_are_simulations(left, right))
    with interrupt_message(f"a comparison cannot be resumed; its results so far are in {run.path}"):
        stderr_console().print(f"run: {run.path}", soft_wrap=True)
        found = api.compare(left, right, effort=measures, run=run)
    targets = target_names(left, right)
    document = {**codec.to_plain(found), **targets, "run": str(run.path)}
    print_result(json, document, lambda: _print_comparison(found, targets))
    return exit_code(found.as_good and not found.slower)


def _find_side(target: str, model: str, key_env: str) -> "CompareTarget":
    """Return a recipe whose engine is installed, or an endpoint."""
    from moebox.checkpoint import deploy
    from moebox.flows import recipes
    from moebox.serve.order import require_engine

    if not recipes.is_recipe(target):
        return find_endpoint(target, model=model, key_env=key_env)
    recipe = recipes.load_recipe(target)
    require_engine(deploy(recipe))
    return recipe


def _are_simulations(left: "CompareTarget", right: "CompareTarget") -> bool:
    """Return whether both sides are simulations; BadInput if only one is."""
    twins = [isinstance(side, Endpoint) and is_twin(side) for side in (left, right)]
    names = ("A", "B") if twins[0] else ("B", "A")
    mixed = "{} is a simulation and {} is not: they cannot be compared".format(*names)
    refuse_if(twins[0] != twins[1], mixed)
    return twins[0]


def _compare_jobs(
    left: "CompareTarget", right: "CompareTarget", names: "tuple[JobName, ...]", parallel: int, seed: int, *, json: bool
) -> int:
    """Do the same jobs on both sides."""
    from rich.text import Text

    from moebox import codec
    from moebox.cli.task.view import job_line
    from moebox.flows.compare import target_names
    from moebox.flows.compare_tasks import compare_by_task
    from moebox.store import Run
    from moebox.tasks import runner

    run = Run.create("compare", simulation=_are_simulations(left, right))

    def notify(side: str, result: "JobResult") -> None:
        if not json:
            stdout_console().print(Text(f"{side} ") + job_line(result, stdout_console().width - 2))

    options = runner.TaskOptions(parallel=parallel)
    with interrupt_message(f"a comparison cannot be resumed; its results so far are in {run.path}"):
        stderr_console().print(f"run: {run.path}", soft_wrap=True)
        found = compare_by_task(left, right, names, run, options, notify)
    targets = target_names(left, right)
    run.write_json("compare.json", {"by_task": found, "seed": seed, **targets})
    lines = [
        f"solved: A {found.solved_a} of {found.jobs}, B {found.solved_b} of {found.jobs}",
        f"B minus A: {found.share:+.0%} of jobs ({found.low:+.0%} to {found.high:+.0%})",
        found.verdict,
    ]
    print_result(json, {**codec.to_plain(found), **targets, "run": str(run.path)}, lambda: print_lines(lines))
    return exit_code(found.as_good)


def _print_comparison(found: "Comparison", targets: dict[str, str]) -> None:
    """Print both sides' answers and speed, the first differences, and the verdict."""
    from rich.markup import escape
    from rich.table import Table

    out, answers = stdout_console(), found.answers
    out.print(escape(f"A: {targets['target_a']}\nB: {targets['target_b']}"))
    table = Table("", "A", "B", "", box=None, pad_edge=False)
    for what, left, right in (
        ("correct answers", answers.right_a, answers.right_b),
        ("valid JSON", answers.json_a, answers.json_b),
        ("valid tool calls", answers.tools_a, answers.tools_b),
    ):
        table.add_row(what, f"{left.passed} of {left.trials}", f"{right.passed} of {right.trials}", "")
    accepted = (found.acceptance_a, found.acceptance_b)
    if accepted != (None, None):
        shares = ("" if share is None else format_percent(share) for share in accepted)
        table.add_row("draft tokens accepted", *shares, "")
    for row in found.gains:
        rates = (format_tok_s(row.a_tok_s), format_tok_s(row.b_tok_s))
        table.add_row(plural(row.concurrency, "stream"), *rates, escape(str(row.gain or "")))
        table.add_row("  first token", format_seconds(row.a_ttft_ms / 1e3), format_seconds(row.b_ttft_ms / 1e3), "")
    out.print(table)
    for parting in answers.divergences[:3]:
        where = f"{parting.family}: differs from {parting.unit} {parting.at} on"
        out.print(escape(f"{where}: {parting.a!r} / {parting.b!r}"))
    out.print(escape(found.verdict))
