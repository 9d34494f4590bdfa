"""Time in suspend: found on the clocks, and left out of every figure."""

import socket
import struct
import time

import pytest

from moebox.bench.generator.job import WorkerGauge
from moebox.stream import sockets
from moebox.stream.awake import AwakeClock

HOUR = 3600.0


class Clocks:
    """CLOCK_MONOTONIC and CLOCK_BOOTTIME of a machine that the test puts to sleep."""

    def __init__(self) -> None:
        self.monotonic = self.boot = 100.0
        self.cpu = 0.0

    def awake(self) -> AwakeClock:
        return AwakeClock(monotonic=lambda: self.monotonic, boot=lambda: self.boot, cpu=lambda: self.cpu)

    def run(self, seconds: float) -> None:
        """Time goes by on both."""
        self.monotonic += seconds
        self.boot += seconds


def test_a_suspended_machine_is_noticed_and_its_time_not_counted():
    """The lid is closed for an hour: only CLOCK_BOOTTIME goes on."""
    clocks = Clocks()
    awake = clocks.awake()
    clocks.run(0.25)
    assert awake.away_s == 0
    clocks.boot += HOUR
    clocks.run(0.25)
    assert awake.away_s == pytest.approx(HOUR)
    assert awake.active_now() == pytest.approx(100.5)


def test_stopped_processes_are_noticed_and_their_time_not_counted():
    """SIGSTOP for an hour: CLOCK_MONOTONIC jumps between two looks, and `now` does not."""
    clocks = Clocks()
    awake = clocks.awake()
    clocks.run(0.25)
    assert awake.active_now() == pytest.approx(100.25)
    clocks.run(HOUR)
    assert awake.away_s == pytest.approx(HOUR)
    clocks.run(0.25)
    assert awake.active_now() == pytest.approx(100.5)
    assert awake.away_s == pytest.approx(HOUR)


def test_lateness_alone_is_not_suspend():
    """A look that comes half a second late on a busy machine, any number of times."""
    clocks = Clocks()
    awake = clocks.awake()
    for _ in range(100):
        clocks.run(0.75)
        assert awake.away_s == 0
    assert awake.active_now() == pytest.approx(175.0)


def test_a_computation_that_keeps_the_interpreter_lock_is_not_a_stop():
    """Three seconds without a look, two of them computed by this process: a plan, not Ctrl-Z."""
    clocks = Clocks()
    awake = clocks.awake()
    clocks.cpu += 2.0
    clocks.run(3.0)
    assert awake.away_s == 0
    assert awake.active_now() == pytest.approx(103.0)
    clocks.run(3.0)  # the same gap without CPU
    assert awake.away_s == pytest.approx(3.0)


def ancillary(wall_ns: int) -> list[tuple[int, int, bytes]]:
    """A kernel's receive stamp."""
    return [(socket.SOL_SOCKET, sockets.SO_TIMESTAMPNS, struct.pack("=qq", *divmod(wall_ns, 1_000_000_000)))]


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR, 0.0])
def test_a_wall_clock_that_jumps_moves_no_token(jump_s: float):
    """Kernel stamps follow the wall clock; one from before the request or from the future is not believed."""
    sent = time.monotonic_ns()
    offset = sockets.clock_offset()
    came = sockets.receive_time(ancillary(time.time_ns() + int(jump_s * 1e9)), offset, sent)
    assert sent <= came <= time.monotonic_ns()


def test_the_load_generator_notes_a_clock_that_was_set():
    """A step either way is added up; the jitter of reading two clocks is not."""
    gauge = WorkerGauge()
    for drift in (200, -5_000, 1_000_000):
        gauge.add_clock_drift(drift)
    assert gauge.clock_step_s == 0
    gauge.add_clock_drift(int(HOUR * 1e9))
    gauge.add_clock_drift(int(-HOUR * 1e9))
    assert gauge.clock_step_s == 2 * HOUR
