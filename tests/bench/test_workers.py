"""A process of the load generator does one job after another, and is replaced by a new one where that matters."""

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from moebox.bench.generator import processes
from moebox.bench.measure import measure_load
from moebox.bench.probe import probe_endpoint
from moebox.core.endpoint import endpoint_from_url
from moebox.core.measure import Load, Workload
from tests.bench.server import Server, serving
from tests.bench.test_counts import DONE, FINISH, counted, streaming

REPLY = streaming(4, FINISH, counted(4), DONE)


def worker_of(server: Server, key: str | None = None) -> int:
    """The process that sends a load of two requests, all of which are answered."""
    probed = probe_endpoint(endpoint_from_url(server.url, "m", key=key))
    result = measure_load(probed, Workload(output_tokens=4), Load(concurrency=1, requests=2), warmup=1).result
    assert (result.completed, result.failed) == (2, 0)
    (worker,) = (child for child in psutil.Process().children() if "moebox.bench.generator.worker" in child.cmdline())
    return int(worker.pid)


def test_a_worker_does_several_jobs() -> None:
    """Another server is another job, not another process."""
    with serving(REPLY) as first, serving(REPLY) as second:
        assert worker_of(first) == worker_of(first) == worker_of(second)


def test_another_key_or_folder_gets_another_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker hides the keys that it was given, and finds files in the folder that it was started in."""
    with serving(REPLY) as server:
        workers = [worker_of(server), worker_of(server, "a-key-of-its-own-1")]
        monkeypatch.chdir(tmp_path)
        workers.append(worker_of(server, "a-key-of-its-own-1"))
    assert len({*workers}) == 3


def test_a_worker_that_died_is_replaced() -> None:
    """The next load is sent and measured all the same."""
    with serving(REPLY) as server:
        before = worker_of(server)
        os.kill(before, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(before)] if psutil.pid_exists(before) else [], timeout=30)
        assert worker_of(server) != before


def test_idle_workers_are_stopped() -> None:
    """At the end of moebox, or when its end closes their input."""
    with serving(REPLY) as server:
        worker = worker_of(server)
    processes.stop_idle_workers()
    assert not psutil.pid_exists(worker)


TOGETHER = """
import os, sys
from multiprocessing.connection import Connection
from moebox.bench.generator.job import LoadProgress, WorkerGauge
from moebox.bench.generator.worker import send_message
from moebox.bench.samples import Samples

pipe, messages = Connection(int(sys.argv[1])), os.open("messages", os.O_CREAT | os.O_RDWR)
pipe.recv()
kept = Connection(messages)
figures = dict.fromkeys(["worker", "ended", "failed", "in_flight", "tokens", "ttft_ms", "cpu_share"], 0)
send_message(kept, LoadProgress(**figures))
send_message(kept, (WorkerGauge(), Samples()))
os.write(pipe.fileno(), open("messages", "rb").read())
pipe.recv()
"""


def test_a_result_right_behind_progress_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both come in one read; a worker that is kept then sends nothing more, so waiting for it would take a minute."""
    monkeypatch.chdir(tmp_path)
    worker = processes.WorkerProcess(None, ["-c", TOGETHER])
    watchdog = threading.Timer(30, worker.process.kill)
    watchdog.start()
    try:
        run = processes._collect_samples([worker], None)
        assert not watchdog.finished.wait(0.1), "only its end brought the result"
    finally:
        watchdog.cancel()
        worker.stop_process()
    assert len(run.gauges) == 1
