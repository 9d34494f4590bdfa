"""A against B by work: the same seeded jobs done on both, in turn, and paired by seed."""

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
from moebox.tasks.result import JobName, JobResult, TaskRun, load_task_run
from moebox.tasks.runner import JobListener, OwnAgent, TaskOptions

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """One job on both sides."""

    job: str
    a: bool
    b: bool
    why_b: str = ""  # where B went wrong on a job that A solved

    @property
    def is_lost(self) -> bool:
        """Solved on A, not on B."""
        return self.a and not self.b

    @property
    def is_gained(self) -> bool:
        """Solved on B, not on A."""
        return self.b and not self.a


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """Both sides' work, and the verdict."""

    jobs: int
    solved_a: int
    solved_b: int
    lost: int  # solved on A, not on B
    gained: int
    share: float  # B's share of solved jobs less A's
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
    """The same jobs on both, in the order A B B A."""
    done: dict[str, list[JobResult]] = {"A": [], "B": []}
    for side, endpoint, wanted in _blocks(a, b, names, run, options.parallel):
        done[side] += _work(side, endpoint, wanted, run, options, notify)
    return compare_results(done["A"], done["B"])


def find_lost_work(endpoint: Endpoint, mine: Run, before: Run | None, *, jobs: int, seed: int) -> str:
    """Do jobs and keep them in `mine`; what was lost of the work that `before` holds, or nothing.

    For a climb, where one engine follows another: the same seed gives both the same jobs.
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


def _blocks(
    a: CompareTarget, b: CompareTarget, names: Sequence[JobName], run: Run, size: int
) -> Iterator[tuple[str, Endpoint, Sequence[JobName]]]:
    """Who does which jobs when. Two recipes: half of A's, all of B's, the rest of A's, so that one engine is up."""
    if isinstance(a, Recipe) and isinstance(b, Recipe):
        yield from _engine_by_engine(a, b, names, run)
        return
    with live_endpoint(a, "A", run) as left, live_endpoint(b, "B", run) as right:
        for number, start in enumerate(range(0, len(names), size)):
            wanted = names[start : start + size]
            for side, endpoint in alternate_order(number, (("A", left), ("B", right))):
                yield side, endpoint, wanted


def _engine_by_engine(
    a: Recipe, b: Recipe, names: Sequence[JobName], run: Run
) -> Iterator[tuple[str, Endpoint, Sequence[JobName]]]:
    half = (len(names) + 1) // 2
    for side, target, wanted in (("A", a, names[:half]), ("B", b, names), ("A", a, names[half:])):
        if wanted:
            with live_endpoint(target, side, run) as endpoint:
                yield side, endpoint, wanted


def _work(
    side: str,
    endpoint: Endpoint,
    wanted: Sequence[JobName],
    run: Run,
    options: TaskOptions,
    notify: Callable[[str, JobResult], None],
) -> list[JobResult]:
    folder = run.path / side
    folder.mkdir(exist_ok=True)
    worker = OwnAgent(
        ReplySettings(endpoint=endpoint, api=options.api, temperature=options.temperature, thinking=options.thinking)
    )
    task_run = runner.prepare_task_run(endpoint, wanted, worker, options)
    listener = JobListener(on_end=lambda result: notify(side, result))
    mine = Run(folder)
    before = load_task_run(mine)
    results = runner.run_jobs(task_run, worker, mine, options, listener).results
    if before is not None:
        runner.save_task_run(_together(before, task_run, results), mine)
    return list(results)


def _together(before: TaskRun, task_run: TaskRun, results: tuple[JobResult, ...]) -> TaskRun:
    wanted, done = before.wanted + task_run.wanted, before.results + results
    return dataclasses.replace(before, wanted=wanted, results=done)


def compare_results(a: Sequence[JobResult], b: Sequence[JobResult]) -> TaskComparison:
    """Pair by seed and judge; jobs that one side did not finish count on neither."""
    on_a, on_b = _on_both(a, b)
    pairs = tuple(map(_pair, on_a, on_b))
    lost = sum(pair.is_lost for pair in pairs)
    gained = sum(pair.is_gained for pair in pairs)
    count = len(pairs)
    share, low, high = _difference(lost, gained, count)
    worse, better = sign_test(lost, gained) <= SIGNIFICANCE, sign_test(gained, lost) <= SIGNIFICANCE
    return TaskComparison(
        jobs=count,
        solved_a=sum(pair.a for pair in pairs),
        solved_b=sum(pair.b for pair in pairs),
        lost=lost,
        gained=gained,
        share=share,
        low=low,
        high=high,
        tokens_a=_tokens(on_a),
        tokens_b=_tokens(on_b),
        seconds_a=_seconds(on_a),
        seconds_b=_seconds(on_b),
        pairs=pairs,
        verdict=_sentence(lost, gained, count, worse=worse, better=better),
        as_good=not worse,
        different=worse or better,
    )


def _on_both(a: Sequence[JobResult], b: Sequence[JobResult]) -> tuple[list[JobResult], list[JobResult]]:
    """The jobs that both sides finished, in the same order."""
    by_id = {result.id: result for result in b}
    on_a = [result for result in a if result.id in by_id]
    return on_a, [by_id[result.id] for result in on_a]


def _pair(a: JobResult, b: JobResult) -> TaskPair:
    pair = TaskPair(job=a.id, a=a.solved, b=b.solved)
    return dataclasses.replace(pair, why_b=b.wrong) if pair.is_lost else pair


def _tokens(results: Sequence[JobResult]) -> float:
    return _mean([result.output_tokens for result in results])


def _seconds(results: Sequence[JobResult]) -> float:
    return _mean([result.seconds for result in results])


def _difference(lost: int, gained: int, count: int) -> tuple[float, float, float]:
    """B's share less A's with its 95% interval for pairs (Agresti and Min: one half added to each cell)."""
    if not count:
        return 0.0, -1.0, 1.0
    more, less, of = gained + 0.5, lost + 0.5, count + 2
    middle = (more - less) / of
    reach = Z95 * math.sqrt((more + less) - (more - less) ** 2 / of) / of
    return (gained - lost) / count, max(-1.0, middle - reach), min(1.0, middle + reach)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _sentence(lost: int, gained: int, count: int, *, worse: bool, better: bool) -> str:
    changed = f"lost {lost} and gained {gained} of {count} jobs"
    if worse:
        return f"B is worse at the work: {changed}"
    if better:
        return f"B is better at the work: {changed}"
    return f"no difference: B {changed}" if lost or gained else f"no difference: the same result in all {count} jobs"
