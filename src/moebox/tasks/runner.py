"""Runs many jobs: in parallel, within a budget, saved as each ends, resumable."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.event import TaskBegan, TaskEnded
from moebox.errors import ExternalError
from moebox.sandbox import start as sandbox
from moebox.store import Run
from moebox.stream.limits import served_limits
from moebox.tasks import agent
from moebox.tasks.agent import AgentWork, WorkLimits
from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.gadget import STATE_FILE
from moebox.tasks.reply import ReplySettings, TaskApi
from moebox.tasks.result import END_TITLES, FILE, AgentJob, End, JobName, JobResult, Level, TaskRun, TurnRecord
from moebox.tasks.score import changed_protected_files, run_hidden_checks
from moebox.tasks.tools import AgentTool, Toolbox, ToolServerDied, Workspace

JOB_S = 1800.0  # longest time of one job
LEAVING_S = 2.0  # for threads to end the clients they drive
ALIVE_CHECKS, CHECK_PAUSE_S = 6, 0.5  # of a server that failed a job: one that goes down answers for some seconds more
ANSWER_S = 10.0  # for any reply at all
DEAD_STATUSES = (0, 502, 503, 504)  # no reply, or a proxy without a server behind it
WRITING_TOOLS = ("write_file", "edit_file", "run_python")


class ServerGone(ExternalError):
    """The server no longer answers; unfinished jobs can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    parallel: int = 1
    budget_s: float | None = None
    job_s: float = JOB_S
    api: TaskApi = "openai"
    temperature: float = 0.0
    thinking: bool | None = None


class JobWorker(Protocol):
    """Does jobs: moebox's own agent, or a real client."""

    name: str
    version: str

    def __call__(self, job: AgentJob, limits: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> AgentWork: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListener:
    """Callbacks for progress, called in the thread that runs `run_jobs`."""

    on_begin: Callable[[JobName], None] = lambda name: None
    on_turn: Callable[[JobName, TurnRecord], None] = lambda name, turn: None
    on_end: Callable[[JobResult], None] = lambda result: None


@dataclass(slots=True)
class OwnAgent:
    """moebox's own agent as a worker."""

    settings: ReplySettings
    extra_tools: Callable[[], Sequence[AgentTool]] | None = None  # of other servers, requested before each job
    name: str = "moebox"
    version: str = ""

    def __call__(self, job: AgentJob, limits: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> AgentWork:
        workspace = Workspace(job.files)
        toolbox = Toolbox(job, workspace)
        try:
            for tool in self.extra_tools() if self.extra_tools and job.tools else ():
                toolbox.add(tool)
        except ToolServerDied as problem:
            return AgentWork(end="tool", reason=str(problem), files=workspace.files)
        work = agent.run_agent(job, self.settings, toolbox, limits, on_turn=on_turn)
        work.files, work.outside, work.system = workspace.files, tuple(workspace.outside), job.system
        if job.reply_file:
            work.files[job.reply_file] = agent.extract_code_block(work.text).encode("utf-8", "replace")
        if toolbox.store:
            work.files[STATE_FILE] = toolbox.store.state_json().encode()
        return work


def job_names(families: Sequence[str], level: Level, jobs: int, seed: int) -> tuple[JobName, ...]:
    """Names of `jobs` jobs, families in turn, each with a seed of its own."""
    chosen = list(families) or list(FAMILIES)
    return tuple(
        JobName(family=chosen[number % len(chosen)], level=level, seed=seed + number // len(chosen))
        for number in range(jobs)
    )


def prepare_task_run(endpoint: Endpoint, wanted: Sequence[JobName], worker: JobWorker, options: TaskOptions) -> TaskRun:
    """A task run before its first job. Raise ExternalError if there is no sandbox for it."""
    try:
        level = sandbox.strongest_file_level()
    except sandbox.NoSandbox as problem:
        hint = "a kernel with user namespaces or Landlock"
        raise ExternalError(f"jobs cannot be done here: {problem}", hint=hint) from None
    return TaskRun(
        url=endpoint.base_url,
        model=endpoint.model,
        key_env=endpoint.key_env,
        agent=worker.name,
        agent_version=worker.version,
        api=options.api,
        sandbox=level,
        context=served_limits(endpoint).context,
        wanted=tuple(wanted),
    )


@dataclass(slots=True, kw_only=True)
class _JobPool:
    """The jobs that threads work on, and what they share."""

    task_run: TaskRun
    worker: JobWorker
    run: Run
    options: TaskOptions
    listener: JobListener
    ends_at: float | None
    left: "queue.SimpleQueue[JobName]" = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    callbacks: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)
    gone: str = ""  # last problem of a server that no longer answers
    errors: list[BaseException] = field(default_factory=list)

    def work(self) -> None:
        """One thread: job after job while there are jobs and time."""
        try:
            while not self.stopped.is_set() and (self.ends_at is None or time.monotonic() < self.ends_at):
                try:
                    name = self.left.get_nowait()
                except queue.Empty:
                    return
                self.callbacks.put(partial(self.listener.on_begin, name))
                self.run.add_event(TaskBegan(job=name.id))
                result = self._do_job(name)
                if result.end in ("endpoint", "client") and not _is_alive(self.task_run.url):
                    self.gone = result.why or END_TITLES[result.end]
                    self.stopped.set()
                    result = replace(result, end="gone", solved=False)
                with self.lock:
                    others = tuple(other for other in self.task_run.results if other.id != result.id)
                    self.task_run = replace(self.task_run, results=(*others, result))
                    self.run.write_json(FILE, self.task_run)
                    event = TaskEnded(job=result.id, solved=result.solved, end=result.end, wrong=result.wrong)
                    self.run.add_event(event)
                self.callbacks.put(partial(self.listener.on_end, result))
        except BaseException as problem:  # a bug of moebox: raised in the calling thread
            self.errors.append(problem)
            self.stopped.set()

    def _do_job(self, name: JobName) -> JobResult:
        job = make_job(name.family, name.level, name.seed)
        began = time.monotonic()
        own_end = began + self.options.job_s
        late: End = "budget" if self.ends_at is not None and self.ends_at < own_end else "time"
        limits = WorkLimits(
            ends_at=own_end if self.ends_at is None else min(own_end, self.ends_at),
            late_end=late,
            context=self.task_run.context,
            stop=self.stopped.is_set,
        )
        work = self.worker(job, limits, lambda turn: self.callbacks.put(partial(self.listener.on_turn, name, turn)))
        file = f"tasks/{job.id}.jsonl"
        rows = [{"role": "system", "content": work.system}, *work.messages]
        self.run.write_file(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return score_job(job, work, seconds=time.monotonic() - began, transcript=file)


def run_jobs(task_run: TaskRun, worker: JobWorker, run: Run, options: TaskOptions, listener: JobListener) -> TaskRun:
    """Do every unfinished job. On Ctrl-C the running ones are dropped; finished ones are kept.

    Raise ServerGone if the server no longer answers: the running and later jobs stay unfinished.
    """
    ends_at = None if options.budget_s is None else time.monotonic() + options.budget_s
    pool = _JobPool(task_run=task_run, worker=worker, run=run, options=options, listener=listener, ends_at=ends_at)
    unfinished = task_run.unfinished_jobs
    for name in unfinished:
        pool.left.put(name)
    number = min(options.parallel, max(1, len(unfinished)))
    threads = [threading.Thread(target=pool.work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        # Threads print nothing: one that writes to the terminal while Python ends makes it crash. Short waits, so that
        # Ctrl-C is noticed.
        while any(thread.is_alive() for thread in threads) or not pool.callbacks.empty():
            with contextlib.suppress(queue.Empty):
                pool.callbacks.get(timeout=0.2)()
    finally:
        pool.stopped.set()
        leave_at = time.monotonic() + LEAVING_S
        for thread in threads:
            thread.join(max(leave_at - time.monotonic(), 0))
    if pool.errors:
        raise pool.errors[0]
    if pool.gone:
        raise ServerGone(f"{task_run.url} does not answer any more: {pool.gone}", hint="is the server up?")
    return pool.task_run


def _is_alive(url: str) -> bool:
    """True if the server answers several times in a row, a rejection for lack of a key included."""
    for attempt in range(ALIVE_CHECKS):
        time.sleep(CHECK_PAUSE_S if attempt else 0)
        if http.get(f"{url}/models", timeout_s=ANSWER_S).status in DEAD_STATUSES:
            return False
    return True


def score_job(job: AgentJob, work: AgentWork, *, seconds: float, transcript: str = "") -> JobResult:
    """Result of a job: its hidden checks, and where it went wrong."""
    checks = run_hidden_checks(job, work.files)
    changed = changed_protected_files(job, work.files)
    solved = not changed and all(check.passed == check.of for check in checks)
    first, last = agent.first_and_last_rates(work.gaps)
    result = JobResult(
        family=job.family,
        level=job.level,
        seed=job.seed,
        solved=solved,
        end=work.end,
        why=work.reason[:500],
        checks=checks,
        tampered=changed,
        outside=work.outside[:20],
        seconds=seconds,
        turns=tuple(work.turns),
        first_tok_s=first,
        last_tok_s=last,
        transcript=transcript,
    )
    if solved:
        return result
    turn, wrong = _find_mistake(result)
    return replace(result, wrong=wrong[:500], wrong_turn=turn)


def _find_mistake(result: JobResult) -> tuple[int, str]:
    """The turn at which an unsolved job went wrong, and what happened there."""
    last = len(result.turns)
    writes = [turn.number for turn in result.turns if any(call.tool in WRITING_TOOLS for call in turn.calls)]
    last_write = writes[-1] if writes else last
    if result.tampered:
        return last_write, f"changed {', '.join(result.tampered[:3])}, which must stay"
    if result.end != "done":
        return last, f"{END_TITLES[result.end]}{f': {result.why}' if result.why else ''}"
    failed = next(check for check in result.checks if check.passed < check.of)
    text = f"hidden {failed.name}: {failed.passed} of {failed.of} passed; {failed.detail}"
    if last and not any(call.tool in (*WRITING_TOOLS, "gadget") for call in result.all_calls):
        return last, f"reported done without writing anything; {text}"
    for turn in result.turns:
        if turn.calls and not any(call.ok for call in turn.calls):
            return turn.number, f"a call that no tool takes ({turn.calls[0].error}); {text}"
    return last_write, text
