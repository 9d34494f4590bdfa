"""Worker processes: start them together, listen to them, gather what they saw."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO

from moebox import codec
from moebox.bench.generator.job import LoadJob, LoadProgress, WorkerGauge
from moebox.bench.samples import Samples, samples_from_bytes
from moebox.errors import ExternalError

STREAMS_PER_WORKER = 4096  # one core kept 2,048 streams at 50 tok/s each to within the goals (measured 2026-11-15)


@dataclass(slots=True, kw_only=True)
class LoadRun:
    """What a run left behind."""

    samples: Samples
    gauges: list[WorkerGauge] = field(default_factory=list)
    was_interrupted: bool = False


class WorkerProcess:
    """One process and the lines it says."""

    def __init__(self, job: LoadJob) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moebox.bench.generator.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.ready = False
        self.samples: Samples | None = None
        self.gauge = WorkerGauge()
        self.send_message(codec.to_plain(job))

    def send_message(self, order: object) -> None:
        try:
            self.stdin.write(json.dumps(order).encode() + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass  # it says why on its way out

    def read_message(self) -> LoadProgress | None:
        """Its next line; raises Outside when it failed."""
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
            self.samples = samples_from_bytes(self.stdout.read(data["bytes"]))
            self.samples.texts = dict(json.loads(self.stdout.read(data["texts"])))
        return None

    def stop_process(self) -> None:
        self.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()


def run_job(job: LoadJob, *, watcher: Callable[[list[LoadProgress], float], None] | None = None) -> LoadRun:
    """Run a job over as many workers as it asks for; Ctrl-C stops it and keeps what was measured."""
    workers = job.load.workers or choose_workers(job)
    processes: list[WorkerProcess] = []
    try:
        processes = [WorkerProcess(replace(job, worker=number, workers=workers)) for number in range(workers)]
        for worker in processes:
            while not worker.ready:
                worker.read_message()
        return _gather(processes, watcher or (lambda progress, elapsed: None))
    finally:
        for worker in processes:
            worker.stop_process()


def choose_workers(job: LoadJob) -> int:
    """One process for four thousand streams; never more than the cores it may use less one, or the connections."""
    connections = job.load.concurrency or 1
    return max(1, min(-(-connections // STREAMS_PER_WORKER), len(os.sched_getaffinity(0)) - 1, connections))


def _gather(crew: list[WorkerProcess], watch: Callable[[list[LoadProgress], float], None]) -> LoadRun:
    zero, wall = time.monotonic_ns() + 20_000_000, time.time() + 0.02  # a moment for all to read it
    _order(crew, {"zero": zero, "wall": wall})
    driven = LoadRun(samples=Samples(zero=zero, wall=wall))
    latest: dict[int, LoadProgress] = {}
    with selectors.DefaultSelector() as selector:
        for worker in crew:
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
        while selector.get_map():
            try:
                _hear(selector, latest)
                watch(list(latest.values()), (time.monotonic_ns() - zero) / 1e9)
            except KeyboardInterrupt:
                driven.was_interrupted = True
                _order(crew, "stop")
    for worker in crew:
        if worker.samples is not None:
            driven.samples.extend(worker.samples)
        driven.gauges.append(worker.gauge)
    return driven


def _order(crew: list[WorkerProcess], what: object) -> None:
    for worker in crew:
        worker.send_message(what)


def _hear(selector: selectors.BaseSelector, latest: dict[int, LoadProgress]) -> None:
    """What workers tell, until each has handed over its samples."""
    for key, _ in selector.select(0.5):
        worker: WorkerProcess = key.data
        progress = worker.read_message()
        if progress:
            latest[progress.worker] = progress
        if worker.samples is not None:
            selector.unregister(key.fileobj)
