"""The jobs of a `moebox run`: a few of each family, within a budget, resumed after an interruption."""

import random

from moebox.core.endpoint import Endpoint
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.families import FAMILIES
from moebox.tasks.reply import ReplySettings
from moebox.tasks.result import JobResult, TaskRun, load_task_run

BUDGET_S = 1200.0
PARALLEL = 2
EACH = 2  # jobs of a family
SHORT_JOBS = 2  # errands, for the phantom


def run_tasks(endpoint: Endpoint, run: Run, *, short: bool, notify: Notify) -> TaskRun:
    """Run the jobs that have no result yet."""
    options = runner.TaskOptions(parallel=PARALLEL, budget_s=60.0 if short else BUDGET_S)
    worker = runner.OwnAgent(ReplySettings(endpoint=endpoint))
    task_run = load_task_run(run)
    if task_run is None:
        chosen, count = (["errand"], SHORT_JOBS) if short else (list(FAMILIES), EACH * len(FAMILIES))
        wanted = runner.job_names(chosen, "easy", count, random.randrange(10**6))
        task_run = runner.prepare_task_run(endpoint, wanted, worker, options)
        runner.save_task_run(task_run, run)

    def report_job(result: JobResult) -> None:
        wrong = " ".join(result.wrong.split())[:100]
        how = f"solved in {len(result.turns)} turns" if result.solved else f"not solved ({wrong})"
        notify(f"{result.id}: {how}")

    return runner.run_jobs(task_run, worker, run, options, runner.JobListener(on_end=report_job))
