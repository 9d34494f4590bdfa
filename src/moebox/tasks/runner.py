"""Many jobs: side by side, within a budget, written down as each ends, taken up again where they were left."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from moebox import http, sandbox
from moebox.core.endpoint import Endpoint
from moebox.core.event import TaskBegan, TaskEnded
from moebox.errors import ExternalError
from moebox.store import Run
from moebox.stream.limits import served_limits
from moebox.tasks import agent
from moebox.tasks.agent import AgentWork, WorkLimits
from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.gadget import STATE_FILE
from moebox.tasks.job import AgentJob, Level
from moebox.tasks.reply import ReplySettings, TaskApi
from moebox.tasks.result import END_TITLES, FILE, End, JobName, JobResult, TaskRun, TurnRecord
from moebox.tasks.score import changed_protected_files, run_hidden_checks
from moebox.tasks.tools import AgentTool, Toolbox, ToolServerDied
from moebox.tasks.workspace import Workspace

JOB_S = 1800.0  # the longest one job may take
LEAVING_S = 2.0  # for a thread to notice that it is over
LOOKS, PAUSE_S = 6, 0.5  # at a server that failed a job: one that goes down answers for some seconds more
ANSWER_S = 10.0  # to say anything at all
AWAY = (0, 502, 503, 504)  # no reply, or a proxy's word that there is none behind it


class ServerGone(ExternalError):
    """The server does not answer any more; the jobs that are left are not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How jobs are done."""

    parallel: int = 1
    budget_s: float | None = None
    job_s: float = JOB_S
    api: TaskApi = "openai"
    temperature: float = 0.0
    thinking: bool | None = None


class JobWorker(Protocol):
    """Whoever does the jobs: our own agent, or a real client."""

    name: str
    version: str

    def __call__(self, job: AgentJob, bounds: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> "FinishedWork": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWork:
    """A job that was worked on, before it is scored."""

    work: AgentWork
    files: dict[str, bytes]
    outside: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobListener:
    """Who wants to know: a job begins, a turn is over, a job has its result. Told by the thread that began it all."""

    on_begin: Callable[[JobName], None] = lambda name: None
    on_turn: Callable[[JobName, TurnRecord], None] = lambda name, turn: None
    on_end: Callable[[JobResult], None] = lambda result: None


@dataclass(slots=True)
class OwnAgent:
    """Our own."""

    settings: ReplySettings
    extra_tools: Callable[[], Sequence[AgentTool]] | None = None  # of other servers, asked for before each job
    name: str = "moebox"
    version: str = ""  # of a client that is not ours

    def __call__(self, job: AgentJob, bounds: WorkLimits, on_turn: Callable[[TurnRecord], None]) -> FinishedWork:
        space = Workspace(job.files)
        box = Toolbox(job, space)
        try:
            for tool in self.extra_tools() if self.extra_tools and job.tools else ():
                box.add(tool)
        except ToolServerDied as problem:
            return FinishedWork(work=AgentWork(end="tool", reason=str(problem)), files=dict(space.files))
        done = agent.run_agent(job, self.settings, box, bounds, on_turn=on_turn)
        files = _left_behind(job, box, space, done.text)
        return FinishedWork(work=done, files=files, outside=tuple(space.outside), system=job.system)


def _left_behind(job: AgentJob, box: Toolbox, space: Workspace, text: str) -> dict[str, bytes]:
    """The files as the checks want them: those of the folder, the module that was replied, the store's state."""
    files = dict(space.files)
    if job.reply_file:
        files[job.reply_file] = agent.extract_code_block(text).encode("utf-8", "replace")
    if box.store:
        files[STATE_FILE] = box.store.state_json().encode()
    return files


def job_names(families: Sequence[str], level: Level, jobs: int, seed: int) -> tuple[JobName, ...]:
    """So many jobs, families in turn, each with a seed of its own."""
    chosen = list(families) or list(FAMILIES)
    return tuple(
        JobName(family=chosen[number % len(chosen)], level=level, seed=seed + number // len(chosen))
        for number in range(jobs)
    )


def prepare_task_run(endpoint: Endpoint, wanted: Sequence[JobName], worker: JobWorker, options: TaskOptions) -> TaskRun:
    """What is to be done, before anything is: Outside where there is no sandbox for it."""
    try:
        level = sandbox.strongest_file_level()
    except sandbox.NoSandbox as problem:
        raise ExternalError(
            f"jobs cannot be done here: {problem}", hint="a kernel with user namespaces or Landlock"
        ) from None
    return TaskRun(
        url=endpoint.base_url,
        model=endpoint.model,
        agent=worker.name,
        agent_version=worker.version,
        api=options.api,
        sandbox=level,
        context=served_limits(endpoint).context,
        wanted=tuple(wanted),
    )


def save_task_run(task_run: TaskRun, run: Run) -> None:
    """Into the run folder."""
    run.write_json(FILE, task_run)


@dataclass(slots=True)
class _State:
    """What the threads share."""

    task_run: TaskRun
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    told: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)  # to the listener
    gone: str = ""  # what the server that does not answer any more was last heard to say


def run_jobs(task_run: TaskRun, worker: JobWorker, run: Run, options: TaskOptions, listener: JobListener) -> TaskRun:
    """Do every job that is left. On Ctrl-C the running ones are dropped and what is done stays done.

    ServerGone when the server does not answer any more: its running jobs and the later ones are left.
    """
    state = _State(task_run)
    left: queue.SimpleQueue[JobName] = queue.SimpleQueue()
    for name in task_run.unfinished_jobs:
        left.put(name)
    until = None if options.budget_s is None else time.monotonic() + options.budget_s
    problems: list[BaseException] = []

    def labour() -> None:
        try:
            _labour(state, left, worker, run, options, listener, until)
        except BaseException as problem:  # a bug of ours: raised where the person is
            problems.append(problem)
            state.stopped.set()

    threads = [
        threading.Thread(target=labour, daemon=True)
        for _ in range(min(options.parallel, max(1, len(task_run.unfinished_jobs))))
    ]
    for thread in threads:
        thread.start()
    try:
        _listen(state, threads)
    finally:
        state.stopped.set()
        _let_go(threads)
    if problems:
        raise problems[0]
    if state.gone:
        raise ServerGone(f"{task_run.url} does not answer any more: {state.gone}", hint="is the server up?")
    return state.task_run


def _listen(state: _State, threads: Sequence[threading.Thread]) -> None:
    """Pass on what the threads tell until all are done; in short waits, between which Ctrl-C is heard.

    They print nothing themselves: one that writes to the terminal while Python ends takes it down.
    """
    while any(thread.is_alive() for thread in threads) or not state.told.empty():
        with contextlib.suppress(queue.Empty):
            state.told.get(timeout=0.2)()


def _let_go(threads: Sequence[threading.Thread]) -> None:
    """Give those that were interrupted a moment to end the clients they drive."""
    until = time.monotonic() + LEAVING_S
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))


def _labour(
    state: _State,
    left: "queue.SimpleQueue[JobName]",
    worker: JobWorker,
    run: Run,
    options: TaskOptions,
    listener: JobListener,
    until: float | None,
) -> None:
    """One thread's work: job after job while there are any, and time."""
    while not state.stopped.is_set() and (until is None or time.monotonic() < until):
        try:
            name = left.get_nowait()
        except queue.Empty:
            return
        state.told.put(partial(listener.on_begin, name))
        run.add_event(TaskBegan(job=name.id))
        result = _left_if_gone(_do_job(name, worker, run, options, listener, until, state), state)
        _keep(result, state, run)
        state.told.put(partial(listener.on_end, result))


def _keep(result: JobResult, state: _State, run: Run) -> None:
    """Write a job's result down, in place of an earlier one."""
    with state.lock:
        others = tuple(other for other in state.task_run.results if other.id != result.id)
        state.task_run = replace(state.task_run, results=(*others, result))
        save_task_run(state.task_run, run)
        run.add_event(TaskEnded(job=result.id, solved=result.solved, end=result.end, wrong=result.wrong))


def _left_if_gone(result: JobResult, state: _State) -> JobResult:
    """The result; a job that failed because the server is gone is left, and with it all the others."""
    if result.end not in ("endpoint", "client") or _answers(state.task_run.url):
        return result
    state.gone = result.why or END_TITLES[result.end]
    state.stopped.set()
    return replace(result, end="gone", solved=False)


def _answers(url: str) -> bool:
    """Whether the server still answers anything, a refusal for want of a key included, and goes on to."""
    return all(_answers_after(url, PAUSE_S * min(look, 1)) for look in range(LOOKS))


def _answers_after(url: str, pause_s: float) -> bool:
    time.sleep(pause_s)
    return http.get(f"{url}/models", timeout_s=ANSWER_S).status not in AWAY


def _do_job(
    name: JobName,
    worker: JobWorker,
    run: Run,
    options: TaskOptions,
    listener: JobListener,
    until: float | None,
    state: _State,
) -> JobResult:
    """One job, done and scored."""
    job = make_job(name.family, name.level, name.seed)
    own = time.monotonic() + options.job_s
    late: End = "budget" if until is not None and until < own else "time"
    limit = own if until is None else min(own, until)
    context = state.task_run.context
    bounds = WorkLimits(ends_at=limit, late_end=late, context=context, stop=state.stopped.is_set)
    began = time.monotonic()
    done = worker(job, bounds, lambda turn: state.told.put(partial(listener.on_turn, name, turn)))
    file = f"tasks/{job.id}.jsonl"
    run.write_file(file, agent.transcript_lines(done.system, done.work))
    return score_job(job, done, seconds=time.monotonic() - began, transcript=file)


def score_job(job: AgentJob, done: FinishedWork, *, seconds: float, transcript: str = "") -> JobResult:
    """The result of a job: its hidden checks, and where it went wrong."""
    checks = run_hidden_checks(job, done.files)
    changed = changed_protected_files(job, done.files)
    solved = not changed and all(each.passed == each.of for each in checks)
    first, last = agent.first_and_last_rates(done.work.gaps)
    result = JobResult(
        family=job.family,
        level=job.level,
        seed=job.seed,
        solved=solved,
        end=done.work.end,
        why=done.work.reason[:500],
        checks=checks,
        tampered=changed,
        outside=done.outside[:20],
        seconds=seconds,
        turns=tuple(done.work.turns),
        first_tok_s=first,
        last_tok_s=last,
        transcript=transcript,
    )
    if solved:
        return result
    turn, wrong = find_mistake(result)
    return replace(result, wrong=wrong[:500], wrong_turn=turn)


def find_mistake(result: JobResult) -> tuple[int, str]:
    """The step at which a job that was not solved went wrong, and in words what happened there."""
    last = len(result.turns)
    if result.tampered:
        return _last_write(result), f"changed {', '.join(result.tampered[:3])}, which must stay"
    if result.end != "done":
        return last, f"{END_TITLES[result.end]}{f': {result.why}' if result.why else ''}"
    failed = next(check for check in result.checks if check.passed < check.of)
    text = f"hidden {failed.name}: {failed.passed} of {failed.of} passed; {failed.detail}"
    if last and not _changed_anything(result):
        return last, f"said it was done without writing anything; {text}"
    bad = next(filter(_only_bad_calls, result.turns), None)
    if bad:
        return bad.number, f"a call that no tool takes ({bad.calls[0].error}); {text}"
    return _last_write(result), text


def _last_write(result: JobResult) -> int:
    """The last turn that wrote a file; the last of all where none did."""
    writing = [turn.number for turn in result.turns if any(call.tool in _WRITE for call in turn.calls)]
    return writing[-1] if writing else len(result.turns)


def _changed_anything(result: JobResult) -> bool:
    return any(call.tool in (*_WRITE, "gadget") for call in result.all_calls)


def _only_bad_calls(turn: TurnRecord) -> bool:
    return bool(turn.calls) and not any(call.ok for call in turn.calls)


_WRITE = ("write_file", "edit_file", "run_python")
