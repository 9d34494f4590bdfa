"""A sweep whose figures cannot be trusted is measured again, and marked if that does not help."""

import threading
import time

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.event import LoadRepeated
from moebox.flows.measure import SHORT, measure_loads
from moebox.store import Run
from tests.bench.server import HEAD, Peer, chunk, event, serving


class FirstUse:
    """A server that compiles for a while when it meets a batch size for the first time, and then is fast."""

    def __init__(self) -> None:
        self.running, self.known = 0, set[int]()
        self.served, self.compiled_at = 0, list[int]()
        self.lock = threading.Condition()

    def answer(self, peer: Peer, body: dict[str, object]) -> bool:
        """Eight tokens; a batch of two costs a while, once. Waits for company, so that two sent at once meet."""
        with self.lock:
            self.running += 1
            self.lock.notify_all()
            self.lock.wait_for(lambda: self.running > 1, timeout=1.0)
            is_new = self.running > 1 and self.running not in self.known
            self.known.add(self.running)
            self.served += 1
            if is_new:
                time.sleep(0.2)
                self.compiled_at.append(self.served)
        try:
            peer.send(HEAD)
            for _ in range(8):
                peer.send(chunk(event({"content": "a"})))
            counts = {"prompt_tokens": 96, "completion_tokens": 8}
            peer.send(chunk(event({}, finish="length")), chunk(event(None, usage=counts)))
            peer.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        finally:
            with self.lock:
                self.running -= 1
        return True


def test_compilation_at_first_use_is_over_before_a_load_is_measured() -> None:
    """Each load is warmed up at its own batch size: no measured request waits for the server to compile."""
    server = FirstUse()
    with serving(server.answer) as live:
        target, run = endpoint_from_url(live.url, "m"), Run.create("warm")
        rows = measure_loads(target, run, SHORT, loads=(2,), notify=print, is_dead=lambda: False)
    measured = rows[0].num_prompts
    assert server.compiled_at
    assert max(server.compiled_at) <= server.served - measured
    assert rows[0].warmup >= 4  # two rounds of two


class Crowded:
    """A server that serves one request quickly and several of them very slowly."""

    def __init__(self) -> None:
        self.running = 0
        self.lock = threading.Lock()
        self.alone: list[float] = []  # seconds a token took

    def answer(self, peer: Peer, body: dict[str, object]) -> bool:
        """Sixteen tokens; several times slower in company than they came alone, however busy the machine is."""
        with self.lock:
            self.running += 1
        peer.send(HEAD)
        for _ in range(16):
            began, usual = time.monotonic(), sum(self.alone[-64:]) / max(1, len(self.alone[-64:]))
            time.sleep(max(0.02, 8 * usual) if self.running > 1 else 0.001)
            peer.send(chunk(event({"content": "a"})))
            if self.running == 1:
                self.alone.append(time.monotonic() - began)
        counts = {"prompt_tokens": 96, "completion_tokens": 16}
        peer.send(chunk(event({}, finish="length")), chunk(event(None, usage=counts)))
        peer.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        with self.lock:
            self.running -= 1
        return True


def test_a_sweep_that_is_not_monotone_is_measured_again_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two streams that are slower than one are tried twice; the figure reports it in the file and the terminal."""
    monkeypatch.setenv("MOEBOX_REPEATS", "1")
    run, lines = Run.create("crowded"), list[str]()
    with serving(Crowded().answer) as live:
        target = endpoint_from_url(live.url, "m")
        rows = measure_loads(target, run, SHORT, loads=(1, 2), notify=lines.append, is_dead=lambda: False)
    assert [row.max_concurrency for row in rows] == [1, 2]
    assert any("not steady: slower than with fewer streams" in flag for flag in rows[1].flags)
    repeats = [each for each in run.read_events() if isinstance(each, LoadRepeated) and each.concurrency == 2]
    assert len(repeats) == 2  # measured again once, then kept
    assert any("measured again" in line for line in lines)
    assert any("DO NOT TRUST: not steady" in line for line in lines)
