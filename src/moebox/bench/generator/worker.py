"""A worker process: reads its job from stdin, drives its share, writes what it saw to stdout.

Out go lines of JSON ("ready", "progress", then "result" followed by the samples and the texts still to be counted); in
come the job, "go" with the clock's zero, and "stop". The end of stdin is a stop too, so that workers never outlive who
started them.
"""

import gc
import json
import os
import resource
import select
import signal
import sys

from moebox import codec
from moebox.bench.generator.job import LoadJob, LoadProgress
from moebox.bench.generator.loop import LoadLoop
from moebox.bench.workloads import open_source
from moebox.errors import MoeboxError
from moebox.loose import Json
from moebox.redact import remember_key


def main() -> int:
    """Do one job."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # who started us gets it too, and tells us to stop
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        job = codec.decode(LoadJob, json.loads(sys.stdin.buffer.readline()), where="job")
        loop = _connected(job)
    except MoeboxError as problem:
        send_message("error", {"message": problem.message})
        return problem.exit_code
    send_message("ready", {})
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    if order is None:
        return 1
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.run(order["zero"], order["wall"], _stopped)
    texts = json.dumps(list(loop.samples.texts.items()) if job.keep_text or job.keep_first else []).encode()
    payload = loop.samples.to_bytes()
    send_message("result", {"gauge": loop.gauge, "bytes": len(payload), "texts": len(texts)})
    sys.stdout.buffer.write(payload + texts)
    sys.stdout.buffer.flush()
    return 0


def _connected(job: LoadJob) -> LoadLoop:
    """The loop of a job, its connections open."""
    for value in job.headers.values():
        remember_key(value.removeprefix("Bearer "))
    source = open_source(job.workload, job.words, job.model, keep_text=job.keeps_text)
    loop = LoadLoop(job, source, report=lambda progress: send_message("progress", progress))
    loop.open_connections()
    return loop


def send_message(kind: str, data: LoadProgress | Json) -> None:
    """One line to whoever started us; nobody listening is a reason to stop."""
    try:
        sys.stdout.buffer.write(codec.to_json({"kind": kind, "data": data}, indent=None).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)


def _stopped() -> bool:
    return bool(select.select([sys.stdin.buffer], [], [], 0)[0])


if __name__ == "__main__":
    sys.exit(main())
