"""Server-sent events are the same to every part that reads them, whatever their line ends and however they are cut."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.bench.generator.recorder import ReplyRecorder
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.verdict import HttpExchange
from moebox.errors import AnswerIsNo
from moebox.serve.connect import call_as_client
from moebox.stream.exchange import StreamExchange
from moebox.stream.sse import EventParser, parse_events
from moebox.verify.completions import parse_chat_stream
from moebox.web.engines import stream_reply
from moebox_fleet.loss import run_streams

BASE = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TEXT = "Grüße, 世界"


def chunk(finish: str | None = None, **delta: str) -> dict[str, Any]:
    """One piece of a reply."""
    return BASE | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def written(end: str, *, bom: str = "", last: str = "") -> bytes:
    """A reply as a server may write it: comments, other fields, an empty event, data of several lines, no space."""
    pieces = [f"data:{json.dumps(chunk(content=letter), ensure_ascii=False)}\n\n" for letter in TEXT[1:]]
    opening = json.dumps(chunk(role="assistant", content=TEXT[0]), indent=1).replace("\n", "\ndata: ")
    text = f": ping\n\nid: 4\nretry: 3\ndata: {opening}\n\ndata:\n\n" + "".join(pieces)
    text += f"event: x\ndata: {json.dumps(chunk('stop'))}\n\ndata:[DONE]{last}"
    return (bom + text.replace("\n", end)).encode()


WAYS = {
    "LF": written("\n", last="\n\n"),
    "CRLF": written("\r\n", last="\r\n\r\n"),
    "CR": written("\r", last="\r\r"),
    "a BOM": written("\n", bom="\ufeff", last="\n\n"),
    "no blank line at the end": written("\n"),
    "a space after the end": written("\n", last=" \n\n"),
}
each_way = pytest.mark.parametrize("stream", WAYS.values(), ids=WAYS)


@contextlib.contextmanager
def serving(stream: bytes, *, pieces: int = 5, hangs_up: bool = True) -> Iterator[Endpoint]:
    """An endpoint that answers one request with this stream, in pieces that cut characters and line ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):  # the client may hang up early
                peer.recv(65536)
                peer.sendall(HEAD)
                for at in range(0, len(stream), pieces):
                    peer.sendall(stream[at : at + pieces])
                if hangs_up:
                    peer.shutdown(socket.SHUT_WR)
                peer.recv(65536)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield endpoint_from_url(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "m")
        thread.join(10)


@each_way
def test_an_agents_reply(stream: bytes) -> None:
    with serving(stream) as endpoint, StreamExchange(endpoint, {}) as exchange:
        events = [event for _, event in exchange]

    assert ("".join(event.error for event in events), "".join(event.text for event in events)) == ("", TEXT)
    assert (next(event.finish for event in events if event.finish), exchange.done) == ("stop", True)


@each_way
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_reply_under_load(stream: bytes, size: int) -> None:
    """An empty event is ignored, so it is not an error."""
    recorder = ReplyRecorder(keep_text=True)
    data = HEAD + stream
    for at in range(0, len(data), size):
        recorder.record_segment(data[at : at + size], 1)
    recorder.close(2)

    assert (recorder.error, "".join(recorder.texts), recorder.done) == ("", TEXT, True)


@each_way
def test_a_reply_to_a_correctness_check(stream: bytes) -> None:
    seen = HttpExchange(method="POST", url="", status=200, response=stream.decode(), request={"model": "m"})
    answer = parse_chat_stream(seen)

    assert answer.content == TEXT
    assert [violation for violation in answer.violations if violation.kind != "style"] == []


@each_way
def test_a_clients_call(stream: bytes) -> None:
    with serving(stream) as endpoint:
        assert call_as_client("openai", endpoint).evidence == TEXT


@each_way
def test_a_stream_of_a_fleet(stream: bytes) -> None:
    """A reply with an end marker without a space is complete."""
    with serving(stream) as endpoint:
        seen = run_streams(endpoint, streams=1, tokens=4, deadline_s=60)

    assert (seen[0].finished, seen[0].is_lost) == (True, False)
    assert seen[0].chunks == len(TEXT) + 1


@each_way
def test_the_page_gets_every_event_on_one_line(stream: bytes) -> None:
    """So that its script needs to know one form alone."""

    async def sent(endpoint: Endpoint) -> str:
        return b"".join([piece async for piece in stream_reply(endpoint, {})]).decode()

    with serving(stream) as endpoint:
        lines = asyncio.run(sent(endpoint)).split("\n\n")
    documents = [json.loads(line.removeprefix("data: ")) for line in lines if line and "[DONE]" not in line]

    texts = [each["choices"][0]["delta"].get("content", "") for each in documents if "choices" in each]
    assert "".join(texts) == TEXT
    assert "data: [DONE]" in lines
    assert "moebox" in documents[-1]


@given(st.binary(max_size=300) | st.text("\r\n:dataev ", max_size=80).map(str.encode), st.integers(1, 7))
def test_events_do_not_depend_on_how_bytes_arrive(data: bytes, size: int) -> None:
    """The same events from one piece and from many."""
    one, many = EventParser(), EventParser()
    together = one.feed(data) + one.close()
    apart = [event for at in range(0, len(data), size) for event in many.feed(data[at : at + size])] + many.close()

    assert apart == together
    assert one.at_boundary
    assert many.at_boundary


def test_events_as_servers_write_them() -> None:
    """Any line end, a BOM, comments, names, several data lines, empty events, and no empty line at the end."""
    text = "\ufeff: ping\n\nevent: a\ndata: 1\ndata: 2\n\nretry: 3\nid: 4\n\ndata:\n\ndata\n\ndata:3"

    for end in ("\n", "\r", "\r\n"):
        assert parse_events(text.replace("\n", end)) == [("a", "1\n2"), ("", "3")]


@pytest.mark.parametrize("line", [b"data: x", b": x"])
def test_an_event_without_end_is_given_up(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader keeps more of a line than its limit."""
    monkeypatch.setattr("moebox.stream.sse.MAX_EVENT_BYTES", 1000)
    with serving(line * 1000, pieces=500) as endpoint, pytest.raises(Exception, match="more than 1,000 bytes"):
        call_as_client("openai", endpoint)
    with serving(line * 1000, pieces=500) as endpoint:
        seen = run_streams(endpoint, streams=1, tokens=4, deadline_s=60)
    assert "more than 1,000 bytes" in seen[0].error


def test_a_reply_ends_at_its_end_marker_if_the_server_stays_connected() -> None:
    """A client's call waited five minutes for more and then called a good answer a failure."""
    with serving(WAYS["LF"], hangs_up=False) as endpoint:
        assert call_as_client("openai", endpoint, timeout_s=30).evidence == TEXT
    with serving(WAYS["LF"], hangs_up=False) as endpoint:
        seen = run_streams(endpoint, streams=1, tokens=4, deadline_s=30)
    assert (seen[0].finished, seen[0].error) == (True, "")


CALL = {
    "choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "read_file", "arguments": "[" * 100}}]}}]
}
HOSTILE = {
    "an event of nothing but brackets": (b"data: " + b"[" * 100_000 + b"\n\n", "not JSON"),
    "arguments of nothing but brackets": (b"data: %s\n\n" % json.dumps(CALL).encode() * 1_000, "not valid JSON"),
    "events without end": (b"data: {}\n\n" * 100_000, "more than 16,384 events"),
}


@pytest.mark.parametrize(("stream", "message"), HOSTILE.values(), ids=HOSTILE)
def test_an_unusable_reply_is_reported_in_one_line(stream: bytes, message: str) -> None:
    """However deep it is nested, and though it never ends."""
    with serving(stream, pieces=65536) as endpoint, pytest.raises(AnswerIsNo, match=message):
        call_as_client("zed", endpoint)
