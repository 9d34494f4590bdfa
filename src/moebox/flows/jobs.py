"""Jobs of an agent: those of a pipeline, of a step of a climb, and the same seeded ones on two sides."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.core.verdict import Z95
from moebox.flows.answers import SIGNIFICANCE, sign_test
from moebox.flows.compare import CompareTarget, live_endpoint
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.families import FAMILIES
from moebox.tasks.reply import ReplySettings
from moebox.tasks.result import FILE, JobName, JobResult, TaskRun, load_task_run
from moebox.tasks.runner import JobListener, OwnAgent, TaskOptions

BUDGET_S = 1200.0  # of the jobs of a pipeline
PARALLEL = 2
EACH = 2  # jobs of a family
SHORT_JOBS = 2  # errands, for the phantom
JobNotify = Callable[[str, JobResult], None]  # takes the side and what came of a job


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
    a: CompareTarget, b: CompareTarget, names: Sequence[JobName], run: Run, options: TaskOptions, notify: JobNotify
) -> TaskComparison:
    """Run the same jobs on both sides, in the order A B B A."""
    done: dict[str, TaskRun] = {}
    for side, endpoint, wanted in _schedule(a, b, names, run, options.parallel):
        listener = JobListener(on_end=partial(notify, side))
        done[side] = _run_jobs(endpoint, wanted, run.make_folder(side), options, listener)
    return compare_results(done["A"].results, done["B"].results)


def find_lost_work(endpoint: Endpoint, mine: Run, before: Run | None, *, jobs: int, seed: int) -> str:
    """Run jobs into `mine`. Return what was lost compared with the jobs in `before`, or "".

    For a climb, in which one engine follows another: the same seed gives both the same jobs.
    """
    done = _run_jobs(endpoint, runner.job_names([], "easy", jobs, seed), mine, TaskOptions(), JobListener())
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
            for side, endpoint in (("A", left), ("B", right))[:: -1 if number % 2 else 1]:
                yield side, endpoint, wanted


def run_tasks(endpoint: Endpoint, run: Run, *, short: bool, notify: Notify) -> TaskRun:
    """Do the jobs of a pipeline, or go on with those that it has begun."""
    options = TaskOptions(parallel=PARALLEL, budget_s=60.0 if short else BUDGET_S)
    chosen, count = (["errand"], SHORT_JOBS) if short else (list(FAMILIES), EACH * len(FAMILIES))
    names = () if load_task_run(run) else runner.job_names(chosen, "easy", count, random.randrange(10**6))

    def report_job(result: JobResult) -> None:
        wrong = " ".join(result.wrong.split())[:100]
        how = f"solved in {len(result.turns)} turns" if result.solved else f"not solved ({wrong})"
        notify(f"{result.id}: {how}")

    return _run_jobs(endpoint, names, run, options, JobListener(on_end=report_job))


def _run_jobs(
    endpoint: Endpoint, names: Sequence[JobName], folder: Run, options: TaskOptions, listener: JobListener
) -> TaskRun:
    """Do jobs beside those of a folder, and those that were not finished."""
    worker, before = OwnAgent(ReplySettings(endpoint=endpoint)), load_task_run(folder)
    task_run = runner.prepare_task_run(endpoint, names, worker, options)
    if before is not None:
        task_run = replace(before, url=task_run.url, wanted=tuple(dict.fromkeys((*before.wanted, *names))))
    folder.write_json(FILE, task_run)
    return runner.run_jobs(task_run, worker, folder, options, listener)


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
    # 95% interval of B's share minus A's for pairs (Agresti and Min: one half added to each cell)
    middle = (gained - lost) / (count + 2)
    reach = Z95 * math.sqrt(gained + lost + 1 - (gained - lost) * middle) / (count + 2)
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
        share=(gained - lost) / max(count, 1),
        low=max(-1.0, middle - reach) if count else -1.0,
        high=min(1.0, middle + reach) if count else 1.0,
        tokens_a=sum(result.output_tokens for result in on_a) / max(count, 1),
        tokens_b=sum(result.output_tokens for result in on_b) / max(count, 1),
        seconds_a=sum(result.seconds for result in on_a) / max(count, 1),
        seconds_b=sum(result.seconds for result in on_b) / max(count, 1),
        pairs=pairs,
        verdict=verdict,
        as_good=not worse,
        different=worse or better,
    )
