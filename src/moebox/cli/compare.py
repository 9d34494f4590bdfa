"""`moebox compare`: judge two recipes or two servers against each other."""

import random
from dataclasses import dataclass
from typing import Literal

from rich.text import Text

from moebox import api, codec
from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import make_table
from moebox.cli.flags import AsJson, Names, Settings
from moebox.cli.output import Part, print_lines, print_note, print_parts, print_result, stdout_console
from moebox.cli.signals import interrupt_message
from moebox.cli.target import find_endpoint, warn_simulation
from moebox.cli.task import job_line, parse_families
from moebox.core.endpoint import Endpoint
from moebox.core.setting import Effort, apply_settings
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.flows import recipes
from moebox.flows.compare import CompareEffort, CompareTarget, Comparison, target_names
from moebox.flows.jobs import compare_by_task
from moebox.flows.walk import parse_limit
from moebox.serve.order import require_engine
from moebox.store import Run
from moebox.stream.limits import served_limits
from moebox.tasks import runner
from moebox.tasks.result import JobResult
from moebox.units import format_percent, format_seconds, format_tok_s, plural

OF_JOBS, OF_ANSWERS = ("jobs", "level", "family", "parallel"), ("questions", "rounds", "quality_limit", "reference")


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
    streams = flags.parse_counts("--concurrency", ",".join(concurrency) or "1,4", most=256, like="1,4,16")
    refuse_if(not streams, "--concurrency has no value", hint="write it like 1,4,16")
    usual = EFFORTS[effort]
    chosen = apply_settings(usual, settings)
    for name, least, most in (("rounds", 2, 100), ("questions", 1, 1000), ("jobs", 2, 10_000), ("parallel", 1, 256)):
        refuse_out_of_range(f"--set {name}", getattr(chosen, name), least, most)
    limit = parse_limit(chosen.quality_limit, chosen.reference)
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    changed = {name for name in (*OF_JOBS, *OF_ANSWERS) if getattr(chosen, name) != getattr(usual, name)}
    text, hint = "jobs, level, family and parallel need --by task", "add --by task, or leave them out"
    refuse_if(by != "task" and changed.intersection(OF_JOBS), text, hint=hint)
    if by == "task":
        flags.refuse_unused("--by task judges jobs", concurrency=concurrency)
        text = "--by task judges jobs: it does not take questions, rounds or quality_limit"
        refuse_if(changed.intersection(OF_ANSWERS), text, hint="leave them out")
        families = parse_families(chosen.family)
    a_recipe, b_recipe = recipes.is_recipe(a), recipes.is_recipe(b)
    if a_recipe and b_recipe:
        flags.refuse_unused("a recipe names its model and key", model=model, model_b=model_b, key_env=key_env)
    if b_recipe:
        flags.refuse_unused("B is a recipe, which names its model", model_b=model_b)
    if a_recipe and model_b:
        flags.refuse_unused("A is a recipe, which names its model, and --model-b is B's", model=model)
    left, right = _find_side(a, model, key_env), _find_side(b, model_b or model, key_env)
    twins = [served_limits(side).simulation if isinstance(side, Endpoint) else "" for side in (left, right)]
    one, other = ("A", "B") if twins[0] else ("B", "A")
    refuse_if(not all(twins) and any(twins), f"{one} is a simulation and {other} is not: they cannot be compared")
    refuse_if(twins[0] != twins[1], "A and B are simulations at different speeds: they cannot be compared")
    refuse_if(twins[0] and by == "task", "a simulation does no work", hint="without --by task its speed is compared")
    warn_simulation(twins[0])
    run = Run.create("compare", simulation=bool(twins[0]))
    targets = target_names(left, right)

    def print_job(side: str, result: JobResult) -> None:
        if not json:
            stdout_console().print(Text.assemble(f"{side} ", job_line(result, stdout_console().width - 2)))

    with interrupt_message("a comparison cannot be resumed, and keeps no part of its measurements", [run]):
        print_note(f"run: {run.path}")
        if by == "task":
            names = runner.job_names(families, chosen.level, chosen.jobs, seed)
            options = runner.TaskOptions(parallel=chosen.parallel)
            solved = compare_by_task(left, right, names, run, options, print_job)
            run.write_json("compare.json", {"by_task": solved, "seed": seed, **targets})
            lines = [f"solved: A {solved.solved_a} of {solved.jobs}, B {solved.solved_b} of {solved.jobs}"]
            lines.append(f"B minus A: {solved.share:+.0%} of jobs ({solved.low:+.0%} to {solved.high:+.0%})")
            document = {**codec.to_plain(solved), **targets, "run": str(run.path)}
            return print_result(json, document, lambda: print_lines([*lines, solved.verdict]), good=solved.as_good)
        more = {"concurrency": streams, "seed": seed, "quality_limit": limit}
        more["questions"] = 0 if twins[0] else chosen.questions  # the text of a simulation is made up
        measures = CompareEffort(**{**codec.shared_fields(chosen, CompareEffort), **more})
        found = api.compare(left, right, effort=measures, run=run)
    document = {**codec.to_plain(found), **targets, "run": str(run.path)}
    good = found.as_good and not found.slower
    return print_result(json, document, lambda: _print_comparison(found, targets), good=good)


def _find_side(target: str, model: str, key_env: str) -> CompareTarget:
    """Return a recipe whose engine is installed, or an endpoint."""
    if not recipes.is_recipe(target):
        return find_endpoint(target, model=model, key_env=key_env)
    recipe = recipes.load_recipe(target)
    require_engine(deploy(recipe))
    return recipe


def _print_comparison(found: Comparison, targets: dict[str, str]) -> None:
    """Print both sides' answers and speed, the first differences, and the verdict."""
    answers = found.answers
    rows: list[list[Part]] = []
    for what, name in (("correct answers", "right"), ("valid JSON", "json"), ("valid tool calls", "tools")):
        shares = (getattr(answers, f"{name}_{side}") for side in "ab")
        rows.append([what, *(f"{share.passed} of {share.trials}" for share in shares), ""])
    accepted = (found.acceptance_a, found.acceptance_b)
    if accepted != (None, None):
        texts = ("" if share is None else format_percent(share) for share in accepted)
        rows.append(["draft tokens accepted", *texts, ""])
    for row in found.gains:
        rates = (format_tok_s(rate).replace("tok/s", row.unit) for rate in (row.a_tok_s, row.b_tok_s))
        rows.append([plural(row.concurrency, "stream"), *rates, str(row.gain or "")])
        rows.append(["  first token", format_seconds(row.a_ttft_ms / 1e3), format_seconds(row.b_ttft_ms / 1e3), ""])
    table = make_table(("", "A", "B", "gain"), rows, left_columns=("",), wrapped=("gain",))
    print_parts(f"A: {targets['target_a']}\nB: {targets['target_b']}", table)
    for each in answers.divergences[:3]:
        print_parts(f"{each.family}: differs from {each.unit} {each.at} on: {each.a!r} / {each.b!r}")
    print_parts(found.verdict)
