"""A worker process: reads a job from its pipe, runs its share, sends the samples back, and waits for the next job.

It sends () when it is ready, then its progress and at last its gauge and samples, or a text if it fails; it reads the
job, the clock's zero, and "stop". The end of the pipe also stops it, so that a worker never outlives its parent.
"""

import contextlib
import gc
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from moebox.bench.generator.job import IDLE_S, LoadJob
from moebox.bench.generator.loop import LoadLoop
from moebox.bench.workloads import open_source
from moebox.errors import ExternalError, MoeboxError, exhausted_limit
from moebox.redact import remember_key


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent receives it too, and sends "stop"
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    pipe = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        while pipe.poll(IDLE_S) and isinstance(job := pipe.recv(), LoadJob):
            if code := run_share(pipe, job):
                return code
    return 0


def run_share(pipe: "Connection[Any, Any]", job: LoadJob) -> int:
    """Run one job and return 0, or the exit code of the worker if it failed."""
    gc.enable()
    gc.unfreeze()
    try:
        for value in job.headers.values():
            remember_key(value.removeprefix("Bearer "))
        source = open_source(job.workload, job.words, job.model, keep_text=job.keeps_text)
        loop = LoadLoop(job, source, report=lambda progress: send_message(pipe, progress))
        loop.open_connections()
        send_message(pipe, ())
        zero, wall = pipe.recv()
        gc.collect()
        gc.freeze()
        gc.disable()
        loop.run(zero, wall, pipe.poll)
    except MoeboxError as problem:
        send_message(pipe, problem.message)
        return problem.exit_code
    except (OSError, MemoryError) as problem:
        limit = exhausted_limit(problem)
        if not limit:
            raise
        send_message(pipe, f"this machine's limits are too low: {limit}")
        return ExternalError.exit_code
    if not (job.keep_text or job.keep_first):
        loop.samples.texts.clear()
    send_message(pipe, (loop.gauge, loop.samples))
    return 0


def send_message(pipe: "Connection[Any, Any]", message: object) -> None:
    """Send one message to the parent, or exit if it is gone."""
    try:
        pipe.send(message)
    except ConnectionError:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
