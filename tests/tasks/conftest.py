"""The scripted model as a process of its own, and jobs done against it."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from moebox.core.endpoint import Endpoint
from moebox.store import Run
from moebox.tasks import runner
from moebox.tasks.reply import ReplySettings, TaskApi
from moebox.tasks.result import JobName, JobResult, Level, TaskRun

ROOT = Path(__file__).parents[2]


@contextmanager
def serving() -> Iterator[str]:
    """Its base URL."""
    words = [sys.executable, "-m", "tests.tasks.agent_server"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """One for all tests but those that kill it."""
    with serving() as url:
        yield url


def do(
    url: str,
    script: str,
    family: str,
    folder: Path,
    *,
    level: Level = "easy",
    seeds: tuple[int, ...] = (0,),
    api: TaskApi = "openai",
    options: runner.TaskOptions | None = None,
    more_tools: Callable[[], Sequence[runner.AgentTool]] | None = None,
    key: str | None = None,
) -> TaskRun:
    """Jobs of one family, done by one script."""
    endpoint = Endpoint(base_url=url, model=script, key=key)
    options = options or runner.TaskOptions(api=api, job_s=60)
    worker = runner.OwnAgent(ReplySettings(endpoint=endpoint, api=api), more_tools)
    wanted = [JobName(family=family, level=level, seed=seed) for seed in seeds]
    run = Run.create("tasks", runs=folder)
    reported = runner.prepare_task_run(endpoint, wanted, worker, options)
    done = runner.run_jobs(reported, worker, run, options, runner.JobListener())
    run.release_lock()
    return done


def one(url: str, script: str, family: str, folder: Path, **more: object) -> JobResult:
    """The result of one job."""
    return do(url, script, family, folder, **more).results[0]  # type: ignore[arg-type]
