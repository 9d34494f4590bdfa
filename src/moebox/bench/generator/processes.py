"""Worker processes: start them together, follow their progress, collect their samples.

A worker that has done its job is kept for the next one, because starting Python takes longer than many a warm-up.
"""

import atexit
import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from moebox.bench.generator.job import IDLE_S, LoadJob, LoadProgress, WorkerGauge
from moebox.bench.samples import Samples
from moebox.errors import ExternalError

STREAMS_PER_WORKER = 4096  # one core kept 2,048 streams at 50 tok/s each to within the goals (measured 2026-11-15)


@dataclass(slots=True, kw_only=True)
class LoadRun:
    samples: Samples
    gauges: list[WorkerGauge] = field(default_factory=list)
    was_interrupted: bool = False


class WorkerProcess:
    def __init__(self, started_for: object, words: Sequence[str] = ("-m", "moebox.bench.generator.worker")) -> None:
        self.started_for = started_for
        self.pipe, theirs = multiprocessing.Pipe()
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, *words, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
            )
        self.ready = False
        self.samples: Samples | None = None
        self.gauge = WorkerGauge()
        self.idle_since = time.monotonic()

    def send_job(self, job: LoadJob) -> None:
        self.ready, self.samples, self.gauge = False, None, WorkerGauge()
        self.send_message(job)

    def send_message(self, message: object) -> None:
        with contextlib.suppress(ConnectionError):  # the worker reports the reason before it exits
            self.pipe.send(message)

    def read_message(self) -> LoadProgress | None:
        """Read the next message and return it if it is progress. Raise ExternalError if the worker failed."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            raise ExternalError(f"a load generator process ended early (exit code {code})") from None
        if isinstance(message, LoadProgress):
            return message
        if isinstance(message, str):
            raise ExternalError(message)
        self.ready = True
        if message:
            self.gauge, self.samples = message
        return None

    def stop_process(self) -> None:
        self.pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_idle: list[WorkerProcess] = []  # of this process, for its next job


def take_worker(job: LoadJob) -> WorkerProcess:
    """Return a worker that has done an earlier job like this one, or a new one.

    What a worker inherits or keeps has to be the same: the folder, the keys that it hides, and with TLS the
    environment, which may name certificates.
    """
    wanted = (os.getcwd(), job.headers, {**os.environ} if job.address.tls else None)
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            return WorkerProcess(wanted)
        will_wait = time.monotonic() - worker.idle_since < IDLE_S / 2  # it does not end before it gets the job
        if will_wait and worker.process.poll() is None and worker.started_for == wanted:
            return worker
        worker.stop_process()


@atexit.register
def stop_idle_workers() -> None:
    while _idle:
        _idle.pop().stop_process()


def run_job(job: LoadJob, *, watcher: Callable[[list[LoadProgress], float], None] | None = None) -> LoadRun:
    """Run a job in as many processes as it asks for; Ctrl-C stops it and keeps what was measured."""
    workers = job.load.workers
    if not workers:  # one per 4,096 streams, but leave a core free
        connections = job.load.concurrency or 1
        cores = len(os.sched_getaffinity(0)) - 1
        workers = max(1, min(-(-connections // STREAMS_PER_WORKER), cores, connections))
    processes: list[WorkerProcess] = []
    run = None
    try:
        for number in range(workers):
            processes.append(take_worker(job))
            processes[-1].send_job(replace(job, worker=number, workers=workers))
        stop_idle_workers()
        for process in processes:
            while not process.ready:
                process.read_message()
        run = _collect_samples(processes, watcher)
        return run
    finally:
        for process in processes:
            if run and not run.was_interrupted:
                process.idle_since = time.monotonic()
                _idle.append(process)
            else:
                process.stop_process()


def _collect_samples(
    processes: list[WorkerProcess], watcher: Callable[[list[LoadProgress], float], None] | None
) -> LoadRun:
    zero, wall = time.monotonic_ns() + 20_000_000, time.time() + 0.02  # time for all workers to read it
    for process in processes:
        process.send_message((zero, wall))
    run = LoadRun(samples=Samples(zero=zero, wall=wall))
    latest: dict[int, LoadProgress] = {}
    while running := [process for process in processes if process.samples is None]:
        try:
            for process in running if run.was_interrupted else ():
                process.send_message("stop")
            arrived = wait([process.pipe for process in running], 0.5)
            for process in running:
                if process.pipe in arrived and (progress := process.read_message()):
                    latest[progress.worker] = progress
            if watcher:
                watcher(list(latest.values()), (time.monotonic_ns() - zero) / 1e9)
        except KeyboardInterrupt:
            run.was_interrupted = True
    for process in processes:
        if process.samples is not None:
            run.samples.extend(process.samples)
        run.gauges.append(process.gauge)
    return run
