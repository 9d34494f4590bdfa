"""A stuck collective spins: GPUs are busy, /health answers, no token comes. A long prompt is left alone."""

import dataclasses
import http.server
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.detect.stall import StallLimits, StallWatch

LIMITS = StallLimits(still_s=9.0, interval_s=0.02, reply_s=3.0, spin_s=0.4)
IDLE, SPIN, PREFILL = (0, 0, 90.0), (100, 0, 152.0), (100, 35, 640.0)
STILL = "vllm:num_requests_running 1\nvllm:generation_tokens_total 7\n"


class StandInDriver:
    """GPUs of 700 W on which this process computes; `draw` returns use, memory traffic and watts of each."""

    NVMLError = RuntimeError

    def __init__(self, draw: Callable[[], list[tuple[int, int, float]]]) -> None:
        self.draw = draw
        self.looks = 0

    def nvmlDeviceGetCount(self) -> int:
        self.looks += 1
        self.now = self.draw()
        return len(self.now)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.now[handle][0], memory=self.now[handle][1])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=os.getpid())]

    def nvmlDeviceGetPowerUsage(self, handle: int) -> float:
        return 1e3 * self.now[handle][2]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> float:
        return 700e3


@pytest.fixture
def watch_server() -> Iterator[Callable[..., StallWatch]]:
    """Serve pages of /metrics in this process, and watch it until it is reported, or three times as long."""
    servers: list[http.server.HTTPServer] = []

    def watch(pages: Iterator[str], driver: StandInDriver, limits: StallLimits = LIMITS) -> StallWatch:
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = next(pages).encode() if self.path == "/metrics" else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with StallWatch(endpoint_from_url(f"127.0.0.1:{server.server_port}", "m"), limits, nvml=driver) as found:
            found.note_progress(12)
            began = time.monotonic()
            while (driver.looks < 20 or time.monotonic() < began + 3 * LIMITS.spin_s) and not found.problem:
                time.sleep(0.01)
        return found

    yield watch
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("gpus", [[SPIN, SPIN], [SPIN, IDLE]], ids=["all ranks wait", "one did not come"])
def test_a_stuck_collective_is_reported(gpus: list[tuple[int, int, float]], watch_server: Callable[..., StallWatch]):
    """/health and /metrics answer; GPUs are busy without memory traffic at an unchanged power."""
    found = watch_server(itertools.repeat(STILL), StandInDriver(lambda: gpus)).problem
    assert found
    assert "W without memory traffic: a stuck collective spins like this" in found.message
    assert "py-spy dump" in found.hint


@pytest.mark.parametrize(
    ("use", "pages"),
    [
        pytest.param(lambda: [PREFILL], itertools.repeat(STILL), id="a long prompt reads memory"),
        pytest.param(lambda: [SPIN, PREFILL], itertools.repeat(STILL), id="one GPU computes"),
        pytest.param(
            (lambda watts: lambda: [(100, 0, next(watts))])(itertools.cycle([152.0, 230.0])),
            itertools.repeat(STILL),
            id="the power changes",
        ),
        pytest.param(
            lambda: [SPIN],
            (f"{STILL}vllm:iteration_tokens_total_count {step}\n" for step in itertools.count()),
            id="the server counts steps of a prompt",
        ),
        pytest.param(lambda: [IDLE], itertools.repeat("vllm:generation_tokens_total 7\n"), id="an idle server"),
    ],
)
def test_a_silent_server_that_works_is_left_alone(
    use: Callable[[], list[tuple[int, int, float]]], pages: Iterator[str], watch_server: Callable[..., StallWatch]
):
    """Nothing comes for as long as a stuck one would have needed to be reported."""
    assert watch_server(pages, StandInDriver(use)).problem is None


def test_running_requests_without_a_token_are_reported_after_the_longest_prompt(
    watch_server: Callable[..., StallWatch],
):
    """Without a sign from the GPUs the deadline follows from the length of prompts and the speed of reading them."""
    assert LIMITS.for_prompts(100_000, 200.0).silent_s == 1500.0
    assert LIMITS.for_prompts(10).silent_s == 900.0
    limits = dataclasses.replace(LIMITS, silent_s=0.4)
    assert limits.for_prompts(100_000) == limits  # given, not derived
    found = watch_server(itertools.repeat(STILL), StandInDriver(lambda: [PREFILL]), limits).problem
    assert found
    assert "requests run, and the server counts no token" in found.message
