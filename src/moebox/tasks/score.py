"""The score of a job: what the files do afterwards, beside what the reference solution's do.

Both are run in the sandbox, one after the other, in processes of their own; only values are compared, here outside. So
code that prints PASS, ends the process or writes to the pipe of its results gains nothing by it.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from moebox import sandbox
from moebox.core.verdict import Score, wilson_score
from moebox.escape import clip_text
from moebox.loose import is_number
from moebox.sandbox import SandboxLimits
from moebox.tasks.families import make_job
from moebox.tasks.job import AgentJob, HiddenCheck
from moebox.tasks.result import FamilyScore, HiddenCheckResult, JobResult

LIMITS = SandboxLimits(time_s=20.0, cpu_s=3, memory_bytes=768 * 2**20)


def run_hidden_checks(job: AgentJob, files: Mapping[str, bytes]) -> tuple[HiddenCheckResult, ...]:
    """Every hidden check. Protected files are put back first: what the agent made of them counts for nothing."""
    laid = dict(files) | {name: job.files[name].encode() for name in job.protected}
    outcome = sandbox.run_snippets(laid, _snippets(job), limits=LIMITS)
    values = list(outcome.values)
    wanted = list(expected_values(job))
    seen = []
    for each in job.checks:
        size = len(each.snippets)
        seen.append(_compare(each, values[:size], wanted[:size], outcome.error))
        values, wanted = values[size:], wanted[size:]
    return tuple(seen)


def _snippets(job: AgentJob) -> list[str]:
    """Of all checks, in one process: starting one costs more than most checks."""
    return [snippet for each in job.checks for snippet in each.snippets]


def changed_protected_files(job: AgentJob, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Protected files that are not as they were."""
    return tuple(name for name in job.protected if files.get(name) != job.files[name].encode())


def expected_values(job: AgentJob) -> tuple[Any, ...]:
    """What the reference solution gives for each snippet of every check."""
    return _expected(job.family, job.level, job.seed)


@lru_cache(maxsize=512)
def _expected(family: str, level: Any, seed: int) -> tuple[Any, ...]:
    job = make_job(family, level, seed)
    files = {name: text.encode() for name, text in {**job.files, **job.solution}.items()}
    return sandbox.run_snippets(files, _snippets(job), limits=LIMITS).values


def _compare(each: HiddenCheck, values: Sequence[Any], wanted: Sequence[Any], error: str) -> HiddenCheckResult:
    right = [values_equal(value, right) for value, right in zip(values, wanted, strict=False)]
    place = right.index(False) if False in right else len(right)  # the first that is wrong or missing
    detail = ""
    if place < len(wanted):
        came = _short(values[place]) if place < len(values) else error or "nothing"
        detail = f"test {place + 1}: {came}"
    return HiddenCheckResult(name=each.name, passed=sum(right), of=len(each.snippets), detail=detail)


def values_equal(value: Any, wanted: Any) -> bool:
    """Equal as JSON is, numbers to nine digits; True is not 1."""
    if is_number(value) and is_number(wanted):
        return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if type(value) is not type(wanted):
        return False
    if isinstance(value, list):
        return len(value) == len(wanted) and all(map(values_equal, value, wanted))
    if isinstance(value, dict):
        return value.keys() == wanted.keys() and all(values_equal(value[key], wanted[key]) for key in value)
    return bool(value == wanted)


def _short(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"!"}:
        return str(value["!"])[-160:]
    return clip_text(repr(value), 120)


def solved_score(results: Sequence[JobResult]) -> Score:
    """How many of the jobs were solved."""
    return wilson_score(sum(result.solved for result in results), len(results))


def family_scores(results: Sequence[JobResult]) -> list[FamilyScore]:
    """Scores by family and level, in the order met."""
    groups: dict[tuple[str, str], list[JobResult]] = {}
    for result in results:
        groups.setdefault((result.family, result.level), []).append(result)
    return [_family(group) for group in groups.values()]


def _family(results: list[JobResult]) -> FamilyScore:
    first = results[0]
    calls = [call for result in results for call in result.all_calls]
    passed, hidden = (sum(counts) for counts in zip(*(result.hidden_tests for result in results), strict=True))
    return FamilyScore(
        family=first.family,
        level=first.level,
        solved=solved_score(results),
        hidden=wilson_score(passed, hidden),
        valid_calls=wilson_score(sum(call.ok for call in calls), len(calls)),
        repaired_calls=sum(call.repaired for call in calls),
        turns=_mean(results, lambda result: len(result.turns)),
        output_tokens=_mean(results, lambda result: result.output_tokens),
        seconds=_mean(results, lambda result: result.seconds),
        tok_s=_speed(results),
        ends=dict(Counter(result.end for result in results)),
    )


def _mean(results: Sequence[JobResult], figure: Callable[[JobResult], float]) -> float:
    return statistics.fmean(map(figure, results))


def _speed(results: Sequence[JobResult]) -> float | None:
    """Tokens a second while writing, over all turns."""
    turns = [turn for result in results for turn in result.turns]
    timed = [(turn.completion_tokens, turn.tok_s) for turn in turns if turn.completion_tokens and turn.tok_s]
    if not timed:
        return None
    return sum(tokens for tokens, _ in timed) / sum(tokens / rate for tokens, rate in timed)
