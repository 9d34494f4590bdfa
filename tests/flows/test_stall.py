"""A server that stands still ends checks and measurements with a reason; a slow one does not."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox.bench.measure import measure_load
from moebox.bench.probe import probe_endpoint
from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.measure import Load, Workload
from moebox.detect.stall import ServerStalled, StallLimits
from moebox.serve.session import EngineSession, engine_session
from moebox.store import Run
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

from ..embedded import phantom_recipe

QUICK = StallLimits(still_s=2.0, interval_s=0.2, reply_s=0.4)
PATIENT = StallLimits(still_s=5.0, interval_s=0.3, reply_s=0.5)
SLOW_SERVER = """
import http.server, json, sys, time
kind, gap = sys.argv[1], float(sys.argv[2])
class Talk(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.endswith("/models"):
            return self.reply({"data": [{"id": "m"}]})
        self.reply({})
    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(6):
            chunk = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
            time.sleep(gap)
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *_): pass
server = {"threads": http.server.ThreadingHTTPServer, "one": http.server.HTTPServer}[kind](("127.0.0.1", 0), Talk)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineSession]:
    """The embedded engine with the phantom; it goes on at the end, so that it can be stopped quickly."""
    run = Run.create("stall", runs=tmp_path / "runs")
    with engine_session(deploy(phantom_recipe()), run, patience_s=120) as session:
        try:
            yield session
        finally:
            os.kill(session.instance.guard_state.engine, signal.SIGCONT)


def freeze(session: EngineSession) -> Callable[..., None]:
    """Return a function that stops the engine as soon as there is progress."""

    def stop(*_: object) -> None:
        os.kill(session.instance.guard_state.engine, signal.SIGSTOP)

    return stop


def test_an_engine_that_is_stopped_during_verify_ends_it(engine: EngineSession) -> None:
    """The check fails with the reason, the others are skipped, and the end of the log is shown."""
    results = run_checks(
        engine.endpoint,
        VerifyOptions(trials=2, context=512),
        only=["alive", "arithmetic", "limits"],
        on_check=freeze(engine),
        stall_limits=QUICK,
    )

    assert [check.verdict for check in results.rungs] == ["pass", "fail", "skip"]
    assert "stands still" in results.stopped
    assert "is stopped (SIGSTOP)" in results.rungs[1].reason
    last = engine.log.read_text(errors="replace").split()[-1]
    assert last in results.notes[-1]
    assert "kill -CONT" in results.notes[-1]


def test_an_engine_that_is_stopped_during_bench_ends_it(engine: EngineSession) -> None:
    """No figure is made of it."""
    probed = probe_endpoint(engine.endpoint)
    load = Load(concurrency=2, requests=8)

    with pytest.raises(ServerStalled, match=r"stands still: nothing came for .* is stopped \(SIGSTOP\)"):
        measure_load(
            probed,
            Workload(input_tokens=32, output_tokens=64),
            load,
            watch=freeze(engine),
            scrape_metrics=False,
            stall_limits=QUICK,
        )


@pytest.fixture
def serve() -> Iterator[Callable[[str, float], Endpoint]]:
    """Start a server that sends a word each `gap` seconds, with a thread for each connection or with one for all."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, gap: float) -> Endpoint:
        words = [sys.executable, "-c", SLOW_SERVER, kind, str(gap)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        return endpoint_from_url(f"127.0.0.1:{process.stdout.readline().strip()}", "m")

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_server_in_a_deadlock_ends_verify(serve: Callable[[str, float], Endpoint]) -> None:
    """It has one thread, which waits for ever: nothing answers, nothing computes."""
    results = run_checks(serve("one", 600.0), only=["alive"], stall_limits=QUICK)

    assert results.rungs[0].verdict == "fail"
    assert "no reply from /health and /metrics, no CPU time" in results.stopped
    assert "py-spy dump --pid" in results.notes[-1]


@pytest.mark.parametrize(("kind", "gap"), [("threads", 7.0), ("one", 1.5)])
def test_a_slow_server_that_lives_is_left_alone(kind: str, gap: float, serve: Callable[[str, float], Endpoint]) -> None:
    """With threads it answers /health between two words, however slow; with one thread a word is a sign of life."""
    results = run_checks(
        serve(kind, gap), VerifyOptions(deadline_s=8.0, time_s=8.0, trials=1), only=["alive"], stall_limits=PATIENT
    )

    assert "stands still" not in results.stopped
