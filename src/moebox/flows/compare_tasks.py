"""Compare B with A by work: the same seeded jobs on both, in turn, paired by seed."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.flows.answers import SIGNIFICANCE, sign_test
from moebox.flows.compare import CompareTarget, live_endpoint
from moebox.flows.pace import alternate_order
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.reply import ReplySettings
from moebox.tasks.result import JobName, JobResult, load_task_run
from moebox.tasks.runner import JobListener, OwnAgent, TaskOptions

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    job: str
    a: bool
    b: bool
    why_b: str = ""  # what B got wrong in a job that A solved


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """Results of the same jobs on both sides, and the verdict."""

    jobs: int
    solved_a: int
    solved_b: int
    lost: int  # solved on A, not on B
    gained: int
    share: float  # B's share of solved jobs minus A's
    low: float
    high: float
    tokens_a: float  # written per job, mean
    tokens_b: float
    seconds_a: float
    seconds_b: float
    pairs: tuple[TaskPair, ...]
    verdict: str
    as_good: bool
    different: bool


def compare_by_task(
    a: CompareTarget,
    b: CompareTarget,
    names: Sequence[JobName],
    run: Run,
    options: TaskOptions,
    notify: Callable[[str, JobResult], None],
) -> TaskComparison:
    """Run the same jobs on both sides, in the order A B B A."""
    done: dict[str, list[JobResult]] = {"A": [], "B": []}
    for side, endpoint, wanted in _schedule(a, b, names, run, options.parallel):
        done[side] += _run_block(side, endpoint, wanted, run, options, notify)
    return compare_results(done["A"], done["B"])


def find_lost_work(endpoint: Endpoint, mine: Run, before: Run | None, *, jobs: int, seed: int) -> str:
    """Run jobs into `mine`. Return what was lost compared with the jobs in `before`, or "".

    For a climb, in which one engine follows another: the same seed gives both the same jobs.
    """
    options = TaskOptions()
    worker = OwnAgent(ReplySettings(endpoint=endpoint))
    task_run = runner.prepare_task_run(endpoint, runner.job_names([], "easy", jobs, seed), worker, options)
    done = runner.run_jobs(task_run, worker, mine, options, JobListener())
    earlier = load_task_run(before) if before is not None else None
    if earlier is None:
        return ""
    found = compare_results(earlier.finished_results, done.finished_results)
    return "" if found.as_good else f"lost {found.lost} and gained {found.gained} of {found.jobs} jobs"


def _schedule(
    a: CompareTarget, b: CompareTarget, names: Sequence[JobName], run: Run, size: int
) -> Iterator[tuple[str, Endpoint, Sequence[JobName]]]:
    """The order of jobs. Two recipes, of which one engine is up: half of A's, all of B's, the rest of A's."""
    if isinstance(a, Recipe) and isinstance(b, Recipe):
        half = (len(names) + 1) // 2
        for side, target, wanted in (("A", a, names[:half]), ("B", b, names), ("A", a, names[half:])):
            if wanted:
                with live_endpoint(target, side, run) as endpoint:
                    yield side, endpoint, wanted
        return
    with live_endpoint(a, "A", run) as left, live_endpoint(b, "B", run) as right:
        for number, start in enumerate(range(0, len(names), size)):
            wanted = names[start : start + size]
            for side, endpoint in alternate_order(number, (("A", left), ("B", right))):
                yield side, endpoint, wanted


def _run_block(
    side: str,
    endpoint: Endpoint,
    wanted: Sequence[JobName],
    run: Run,
    options: TaskOptions,
    notify: Callable[[str, JobResult], None],
) -> list[JobResult]:
    worker = OwnAgent(ReplySettings(endpoint=endpoint))
    task_run = runner.prepare_task_run(endpoint, wanted, worker, options)
    listener = JobListener(on_end=lambda result: notify(side, result))
    mine = run.make_folder(side)
    before = load_task_run(mine)
    results = runner.run_jobs(task_run, worker, mine, options, listener).results
    if before is not None:
        wanted_before = before.wanted + task_run.wanted
        merged = dataclasses.replace(before, wanted=wanted_before, results=before.results + results)
        runner.save_task_run(merged, mine)
    return list(results)


def compare_results(a: Sequence[JobResult], b: Sequence[JobResult]) -> TaskComparison:
    """Pair jobs by seed and judge. Jobs that one side did not finish do not count."""
    by_id = {result.id: result for result in b}
    on_a = [result for result in a if result.id in by_id]
    on_b = [by_id[result.id] for result in on_a]
    pairs = tuple(
        TaskPair(job=left.id, a=left.solved, b=right.solved, why_b=right.wrong if left.solved > right.solved else "")
        for left, right in zip(on_a, on_b, strict=True)
    )
    lost, gained = sum(pair.a > pair.b for pair in pairs), sum(pair.b > pair.a for pair in pairs)
    count = len(pairs)
    share, low, high = _share_difference(lost, gained, count)
    worse, better = sign_test(lost, gained) <= SIGNIFICANCE, sign_test(gained, lost) <= SIGNIFICANCE
    changed = f"lost {lost} and gained {gained} of {count} jobs"
    if worse or better:
        verdict = f"B is {'worse' if worse else 'better'} at the work: {changed}"
    elif lost or gained:
        verdict = f"no difference: B {changed}"
    else:
        verdict = f"no difference: the same result in all {count} jobs"
    return TaskComparison(
        jobs=count,
        solved_a=sum(pair.a for pair in pairs),
        solved_b=sum(pair.b for pair in pairs),
        lost=lost,
        gained=gained,
        share=share,
        low=low,
        high=high,
        tokens_a=_mean([result.output_tokens for result in on_a]),
        tokens_b=_mean([result.output_tokens for result in on_b]),
        seconds_a=_mean([result.seconds for result in on_a]),
        seconds_b=_mean([result.seconds for result in on_b]),
        pairs=pairs,
        verdict=verdict,
        as_good=not worse,
        different=worse or better,
    )


def _share_difference(lost: int, gained: int, count: int) -> tuple[float, float, float]:
    """B's share minus A's with its 95% interval for pairs (Agresti and Min: one half added to each cell)."""
    if not count:
        return 0.0, -1.0, 1.0
    more, less, of = gained + 0.5, lost + 0.5, count + 2
    middle = (more - less) / of
    reach = Z95 * math.sqrt((more + less) - (more - less) ** 2 / of) / of
    return (gained - lost) / count, max(-1.0, middle - reach), min(1.0, middle + reach)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
