"""A worker process: reads a job from stdin, runs its share, writes its samples to stdout, and waits for the next job.

It writes lines of JSON ("ready", "progress", then "result" followed by the samples and the texts still to be counted);
it reads the job, the clock's zero, and "stop". The end of stdin also stops it, so that a worker never outlives its
parent.
"""

import gc
import json
import os
import resource
import select
import signal
import sys

from moebox import codec
from moebox.bench.generator.job import IDLE_S, LoadJob, LoadProgress
from moebox.bench.generator.loop import LoadLoop
from moebox.bench.workloads import open_source
from moebox.errors import ExternalError, MoeboxError, exhausted_limit
from moebox.loose import Json
from moebox.redact import remember_key


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent receives it too, and sends "stop"
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    while select.select([sys.stdin.buffer], [], [], IDLE_S)[0] and (line := sys.stdin.buffer.readline()):
        if code := run_share(line):
            return code
    return 0


def run_share(line: bytes) -> int:
    """Run the job of a line and return 0, or the exit code of the worker if it failed."""
    gc.enable()
    gc.unfreeze()
    try:
        job = codec.decode(LoadJob, json.loads(line), where="job")
        for value in job.headers.values():
            remember_key(value.removeprefix("Bearer "))
        source = open_source(job.workload, job.words, job.model, keep_text=job.keeps_text)
        loop = LoadLoop(job, source, report=lambda progress: send_message("progress", progress))
        loop.open_connections()
        send_message("ready", {})
        start = json.loads(sys.stdin.buffer.readline() or b"null")
        if start is None:
            return 1
        gc.collect()
        gc.freeze()
        gc.disable()
        loop.run(start["zero"], start["wall"], lambda: bool(select.select([sys.stdin.buffer], [], [], 0)[0]))
    except MoeboxError as problem:
        send_message("error", {"message": problem.message})
        return problem.exit_code
    except (OSError, MemoryError) as problem:
        limit = exhausted_limit(problem)
        if not limit:
            raise
        send_message("error", {"message": f"this machine's limits are too low: {limit}"})
        return ExternalError.exit_code
    texts = json.dumps(list(loop.samples.texts.items()) if job.keep_text or job.keep_first else []).encode()
    payload = loop.samples.to_bytes()
    send_message("result", {"gauge": loop.gauge, "bytes": len(payload), "texts": len(texts)})
    sys.stdout.buffer.write(payload + texts)
    sys.stdout.buffer.flush()
    return 0


def send_message(kind: str, data: LoadProgress | Json) -> None:
    """Write one line to the parent, or exit if it is gone."""
    try:
        sys.stdout.buffer.write(codec.to_json({"kind": kind, "data": data}, indent=None).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
