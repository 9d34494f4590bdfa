"""The score of a job: what its files do, compared with what the reference solution's files do.

Both run in the sandbox, one after the other, in processes of their own; only values are compared, outside. So code that
prints PASS, ends the process or writes to the pipe of its results gains nothing.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from moebox.core.verdict import Score, wilson_score
from moebox.escape import clip_text
from moebox.loose import is_number
from moebox.sandbox import start as sandbox
from moebox.sandbox.start import SandboxLimits
from moebox.tasks.families import make_job
from moebox.tasks.result import AgentJob, FamilyScore, HiddenCheckResult, JobResult

LIMITS = SandboxLimits(time_s=20.0, cpu_s=3, memory_bytes=768 * 2**20)


def run_hidden_checks(job: AgentJob, files: Mapping[str, bytes]) -> tuple[HiddenCheckResult, ...]:
    """Run every hidden check, all in one process. Protected files are restored first."""
    restored = dict(files) | {name: job.files[name].encode() for name in job.protected}
    outcome = sandbox.run_snippets(restored, job.snippets, limits=LIMITS)
    values, wanted = iter(outcome.values), iter(expected_values(job.family, job.level, job.seed))
    results = []
    for check in job.checks:
        size = len(check.snippets)
        mine, right = list(itertools.islice(values, size)), list(itertools.islice(wanted, size))
        equal = list(itertools.starmap(values_equal, zip(mine, right, strict=False)))
        place = equal.index(False) if False in equal else len(equal)  # the first that is wrong or missing
        detail = ""
        if place < len(right):
            shown = _shorten(mine[place]) if place < len(mine) else outcome.error or "nothing"
            detail = f"test {place + 1}: {shown}"
        results.append(HiddenCheckResult(name=check.name, passed=sum(equal), of=size, detail=detail))
    return tuple(results)


def changed_protected_files(job: AgentJob, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Protected files that are not as they were."""
    return tuple(name for name in job.protected if files.get(name) != job.files[name].encode())


@lru_cache(maxsize=512)
def expected_values(family: str, level: Any, seed: int) -> tuple[Any, ...]:
    """Values of the reference solution for each snippet of every check of a job."""
    job = make_job(family, level, seed)
    files = {name: text.encode() for name, text in {**job.files, **job.solution}.items()}
    return sandbox.run_snippets(files, job.snippets, limits=LIMITS).values


def values_equal(value: Any, wanted: Any) -> bool:
    """Equal as JSON, numbers to nine digits; True is not 1."""
    if is_number(value) and is_number(wanted):
        return math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if type(value) is not type(wanted):
        return False
    if isinstance(value, list):
        return len(value) == len(wanted) and all(map(values_equal, value, wanted))
    if isinstance(value, dict):
        return value.keys() == wanted.keys() and all(values_equal(value[key], wanted[key]) for key in value)
    return bool(value == wanted)


def _shorten(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"!"}:
        return str(value["!"])[-160:]
    return clip_text(repr(value), 120)


def solved_score(results: Sequence[JobResult]) -> Score:
    return wilson_score(sum(result.solved for result in results), len(results))


def family_scores(results: Sequence[JobResult]) -> list[FamilyScore]:
    """Scores by family and level, in the order in which they occur."""
    groups: dict[tuple[str, str], list[JobResult]] = {}
    for result in results:
        groups.setdefault((result.family, result.level), []).append(result)
    scores = []
    for group in groups.values():
        calls = [call for result in group for call in result.all_calls]
        passed, hidden = map(sum, zip(*(result.hidden_tests for result in group), strict=True))
        turns = itertools.chain.from_iterable(result.turns for result in group)
        timed = [(turn.completion_tokens, turn.tok_s) for turn in turns if turn.completion_tokens and turn.tok_s]
        writing_s = sum(tokens / rate for tokens, rate in timed)
        new_score = FamilyScore(
            family=group[0].family,
            level=group[0].level,
            solved=solved_score(group),
            hidden=wilson_score(passed, hidden),
            valid_calls=wilson_score(sum(call.ok for call in calls), len(calls)),
            repaired_calls=sum(call.repaired for call in calls),
            turns=statistics.fmean(len(result.turns) for result in group),
            output_tokens=statistics.fmean(result.output_tokens for result in group),
            seconds=statistics.fmean(result.seconds for result in group),
            tok_s=sum(tokens for tokens, _ in timed) / writing_s if timed else None,
            ends=dict(Counter(result.end for result in group)),
        )
        scores.append(new_score)
    return scores
