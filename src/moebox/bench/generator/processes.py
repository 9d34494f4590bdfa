"""Worker processes: start them together, follow their progress, collect their samples.

A worker that has done its job is kept for the next one, because starting Python takes longer than many a warm-up.
"""

import atexit
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from typing import IO

from moebox import codec
from moebox.bench.generator.job import IDLE_S, LoadJob, LoadProgress, WorkerGauge
from moebox.bench.samples import Samples, samples_from_bytes
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
        self.process = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        # Not buffered: a selector does not see messages that were read ahead
        self.stdout: FileIO = self.process.stdout.raw  # type: ignore[attr-defined]
        self.ready = False
        self.samples: Samples | None = None
        self.gauge = WorkerGauge()
        self.idle_since = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        """True if it runs and will not end before it gets a job."""
        return time.monotonic() - self.idle_since < IDLE_S / 2 and self.process.poll() is None

    def send_job(self, job: LoadJob) -> None:
        self.ready, self.samples, self.gauge = False, None, WorkerGauge()
        self.send_message(codec.to_plain(job))

    def send_message(self, message: object) -> None:
        try:
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass  # the worker reports the reason before it exits

    def read_message(self) -> LoadProgress | None:
        """Read the next message and return it if it is progress. Raise ExternalError if the worker failed."""
        line = self.stdout.readline()
        if not line:
            raise ExternalError(f"a load generator process ended early (exit code {self.process.wait()})")
        message = json.loads(line)
        kind, data = message["kind"], message["data"]
        if kind == "error":
            raise ExternalError(data["message"])
        if kind == "ready":
            self.ready = True
        elif kind == "progress":
            return codec.decode(LoadProgress, data, where="progress")
        elif kind == "result":
            self.gauge = codec.decode(WorkerGauge, data["gauge"], where="gauge")
            payload = bytearray()
            while len(payload) < data["bytes"] + data["texts"]:
                piece = self.stdout.read(data["bytes"] + data["texts"] - len(payload))
                if not piece:
                    raise ExternalError("a load generator process ended before it sent its samples")
                payload += piece
            self.samples = samples_from_bytes(bytes(payload[: data["bytes"]]))
            self.samples.texts = dict(json.loads(payload[data["bytes"] :]))
        return None

    def stop_process(self) -> None:
        self.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()


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
        if worker.is_waiting and worker.started_for == wanted:
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
        process.send_message({"zero": zero, "wall": wall})
    run = LoadRun(samples=Samples(zero=zero, wall=wall))
    latest: dict[int, LoadProgress] = {}
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ, process)
        while selector.get_map():
            try:
                for process in processes if run.was_interrupted else ():
                    process.send_message("stop")  # again each time: a worker may have read one ahead with another line
                for key, _ in selector.select(0.5):
                    process = key.data
                    if progress := process.read_message():
                        latest[progress.worker] = progress
                    if process.samples is not None:
                        selector.unregister(key.fileobj)
                if watcher:
                    watcher(list(latest.values()), (time.monotonic_ns() - zero) / 1e9)
            except KeyboardInterrupt:
                run.was_interrupted = True
    for process in processes:
        if process.samples is not None:
            run.samples.extend(process.samples)
        run.gauges.append(process.gauge)
    return run
