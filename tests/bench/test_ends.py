"""How a connection ends: with its reply or after it, reported by the kernel or not, no request waits on a dead one."""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence

import pytest

from moebox.bench.generator import requests
from moebox.bench.generator.hot_path import HotPath
from moebox.bench.generator.job import LoadJob, PromptWords
from moebox.bench.generator.loop import LoadLoop
from moebox.bench.samples import COMPLETED, FAILED, Samples
from moebox.bench.workloads import open_source
from moebox.core.measure import Load, Workload
from moebox.stream import sockets
from tests.bench.hostile import OK, SSE, reads_on
from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, serving, tail

EVENTS = event({"content": " a"}) * 3 + event({}, finish="length") + b"data: [DONE]\n\n"
REPLIES = {
    "chunked": HEAD + chunk(event({"content": " a"})) * 3 + tail(3),
    "chunked, and the head says it closes": HEAD[:-2] + b"connection: close\r\n\r\n" + chunk(EVENTS) + b"0\r\n\r\n",
    "of known length": OK + SSE + b"content-length: %d\r\n\r\n" % len(EVENTS) + EVENTS,
    "up to the end of the connection": OK + SSE + b"\r\n" + EVENTS,
    "of one full read": b"",  # see `full`
}


def full() -> bytes:
    """A reply whose bytes are just those of one read, so that whether more is there has to be asked."""
    bare = HEAD + chunk(event({"content": ""})) + tail(3)
    pad = requests.READ_BYTES - len(bare)
    reply = HEAD + chunk(event({"content": "a" * pad})) + tail(3)
    return HEAD + chunk(event({"content": "a" * (pad - len(reply) + requests.READ_BYTES)})) + tail(3)


def at_once(peer: Peer, reply: bytes) -> None:
    """The last bytes and the end in one segment; what still comes is read and answered with nothing, as llama.cpp does.

    A reset would tell the client that its next request is lost; here nothing does.
    """
    peer.sock.send(reply, socket.MSG_MORE)
    reads_on(peer)


def later(peer: Peer, reply: bytes) -> None:
    """The end comes when the next request may be on its way."""
    peer.send(reply)
    time.sleep(0.01)
    reads_on(peer)


def closed(peer: Peer, reply: bytes) -> None:
    """The last bytes and the end in one segment, and what is sent after that is reset."""
    peer.sock.send(reply, socket.MSG_MORE)
    peer.sock.shutdown(socket.SHUT_RDWR)


def reset(peer: Peer, reply: bytes) -> None:
    """A reset instead of an end."""
    peer.send(reply)
    time.sleep(0.01)
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def drive(behaviour: Behaviour, *, timeout_s: float = 20.0) -> Samples:
    """Six requests on two connections, in this process."""
    work = Workload(input_tokens=8, output_tokens=3)
    with serving(behaviour) as server:
        load = Load(concurrency=2, requests=6, timeout_s=timeout_s)
        target, text = sockets.address_from_url(server.url), PromptWords(words=("a", "b"))
        job = LoadJob(address=target, path="/v1/chat/completions", model="m", workload=work, load=load, words=text)
        loop = LoadLoop(job, open_source(work, text, "m", keep_text=job.keeps_text), report=lambda progress: None)
        loop.open_connections()
        loop.run(time.monotonic_ns(), time.time(), lambda: False)
    return loop.samples


def outcomes(samples: Samples) -> list[int]:
    """What became of each request."""
    return list(samples.columns["outcome"])


@pytest.mark.parametrize("end", [at_once, later, closed, reset], ids=lambda end: end.__name__)
@pytest.mark.parametrize("reply", REPLIES)
def test_no_request_waits_on_a_connection_that_has_ended(reply: str, end: object) -> None:
    """The next request gets a connection of its own, whichever way the last one ended."""
    assert callable(end)
    data = REPLIES[reply] or full()

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        end(peer, data)
        return False

    samples = drive(behaviour)

    assert outcomes(samples) == [COMPLETED] * 6, samples.reasons


def test_a_reply_that_says_the_connection_closes_is_the_last_on_it() -> None:
    """Even where it came in one read, and the end of the connection does not come."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(REPLIES["chunked, and the head says it closes"])
        while peer.sock.recv(65536):
            pass
        return False

    assert outcomes(drive(behaviour)) == [COMPLETED] * 6


def test_an_end_in_the_middle_of_a_reply_is_a_failure_at_once() -> None:
    """Nothing waits for the rest of it."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        at_once(peer, HEAD + chunk(event({"content": " a"}))[:20])
        return False

    samples = drive(behaviour)

    assert outcomes(samples) == [FAILED] * 6
    assert "ended before the first token" in samples.reasons


def test_an_unreported_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent connection is read now and then: an event that was missed costs seconds, not the timeout."""
    reported = HotPath.read_ready

    def deaf(self: HotPath, ready: Sequence[tuple[int, int]], now: int) -> int:
        return reported(self, [(fd, mask) for fd, mask in ready if not mask & select.EPOLLRDHUP], now)

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        at_once(peer, REPLIES["chunked"])
        return False

    monkeypatch.setattr(HotPath, "read_ready", deaf)
    monkeypatch.setattr(requests, "SILENCE_CHECK_NS", 0)

    assert outcomes(drive(behaviour)) == [COMPLETED] * 6


def test_the_timeout_ends_what_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deaf and blind: with no event from any socket, connecting or streaming, every request still ends in time."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        with contextlib.suppress(TimeoutError):
            peer.sock.settimeout(20)
            peer.sock.recv(1)
        return False

    monkeypatch.setattr(HotPath, "read_ready", lambda self, ready, now: 0)
    samples = drive(behaviour, timeout_s=0.1)

    assert outcomes(samples) == [FAILED] * 6
    assert "not over after 0.1 s" in samples.reasons
