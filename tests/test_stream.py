"""One streamed reply: the same bytes in any pieces give the same record."""

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.bench.generator.job import Conversation
from moebox.bench.generator.recorder import ReplyRecorder
from moebox.bench.generator.running import RunningRequest
from moebox.bench.samples import Samples
from moebox.core.endpoint import endpoint_from_url
from moebox.errors import ExternalError
from moebox.stream.events import CONTENT, ESTIMATED_TIME, REASONING, TOOL, decode_event, tokens_by_chunk
from moebox.stream.exchange import StreamExchange, ToolCall, join_tool_calls

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*pieces: bytes) -> bytes:
    """HTTP chunks, one for each piece, and the last one."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def event(delta: dict[str, object] | None = None, *, end: bytes = b"\n\n", **more: object) -> bytes:
    """One event as servers write them."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish", None)}]
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, **more}
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + end


def usage(completion: int, prompt: int = 7) -> dict[str, object]:
    """Counts as servers give them."""
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}}


def record(stream: bytes, cuts: list[int], *, keep: bool = False, batch: int = 1) -> tuple[object, ...]:
    """Everything a recorder reports about `stream` cut at `cuts`, all at time 5."""
    edges = [0, *sorted(set(cuts)), len(stream)]
    segments = [stream[a:b] for a, b in itertools.pairwise(edges) if a < b]
    recorder = ReplyRecorder(keep_text=keep)
    for at in range(0, len(segments), batch):
        part = segments[at : at + batch]
        for segment in part:
            recorder.record_segment(segment, 5)
    recorder.close(5)
    return (
        list(recorder.times),
        list(recorder.kinds),
        list(recorder.sizes),
        list(recorder.tokens_by_event()),
        recorder.finish_reason,
        recorder.error,
        recorder.done,
        recorder.body.is_complete,
        recorder.completion_tokens,
        recorder.prompt_tokens,
        recorder.texts,
        recorder.body.keep_alive,
    )


WORDS = st.sampled_from(["a", " the", "日本", "é🙂", "data: {", "\\n\n\n", '"delta":{"content":"', "[DONE]", "x" * 300])
DELTAS = st.one_of(
    WORDS.map(lambda text: {"content": text}),
    WORDS.map(lambda text: {"reasoning_content": text}),
    WORDS.map(lambda text: {"reasoning": text, "content": ""}),
    WORDS.map(lambda text: {"reasoning": text, "content": text}),
    st.just({"role": "assistant", "content": ""}),
    WORDS.map(lambda text: {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
)
PIECES = st.one_of(
    DELTAS.map(event),
    DELTAS.map(lambda delta: event(delta, end=b"\r\n\r\n")),
    DELTAS.map(lambda delta: event(delta, **usage(3))),
    DELTAS.map(lambda delta: event(delta, finish="stop")),
    st.sampled_from(
        [
            b": ping\n\n",
            b":\n",
            b"event: message\nid: 4\n",
            b"retry: 10\r\n\r\n",
            b'data: {"error":{"message":"out of memory"}}\n\n',
            b"data: {half\n\n",
            b"data:[DONE]\n\n",
        ]
    ),
)


@pytest.mark.parametrize("finish_first", [True, False])
def test_last_bytes_alike_do_not_make_replies_end_alike(finish_first: bool) -> None:
    """A reply with an earlier finish reason keeps it; another that ends in the same bytes does not get it."""
    last = event({"role": "assistant", "content": ""}, id=f"finish first: {finish_first}")
    stop, empty = (HEAD + chunked(first, last) for first in (event({"content": "a"}, finish="stop"), last))
    ends = len(chunked(last))
    found = {}
    for stream in (stop, empty) if finish_first else (empty, stop):
        found[stream] = record(stream, [len(stream) - ends])[4]
    assert found == {stop: "stop", empty: ""}


def test_an_ending_seen_before_is_recorded_as_it_was() -> None:
    """Several events in the last chunk and a comment, which is none."""
    last = event({"role": "assistant", "content": ""}, id="twice") * 2 + b": ping\n\n"
    stream = HEAD + chunked(event({"content": "a"}), last)
    first, again = (record(stream, [len(stream) - len(chunked(last))]) for _ in range(2))
    assert (first, first[0]) == (again, [5])


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=12),
    joints=st.lists(st.integers(0, 4000), max_size=6),
    cuts=st.lists(st.integers(1, 8000), max_size=40),
    batch=st.integers(1, 9),
    framing=st.sampled_from(["chunked", "close", "length"]),
    lost=st.integers(0, 200),
)
def test_any_split_of_the_same_bytes_gives_the_same_record(
    pieces: list[bytes], joints: list[int], cuts: list[int], batch: int, framing: str, lost: int
) -> None:
    """Packets, HTTP chunks and events need not line up, and a stream may stop anywhere."""
    body = b"".join([*pieces, event(None, **usage(len(pieces))), b"data: [DONE]\n\n"])
    if framing == "chunked":
        edges = [0, *sorted({joint for joint in joints if joint < len(body)}), len(body)]
        parts = pieces if len(joints) % 2 else [body[a:b] for a, b in itertools.pairwise(edges)]
        stream = HEAD + chunked(*[part for part in parts if part])
    elif framing == "length":
        stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    else:
        stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body
    stream = stream[: len(stream) - lost] if lost > 100 else stream
    whole = record(stream, [])

    assert record(stream, cuts, batch=batch) == whole
    assert record(stream, list(range(len(stream)))) == whole  # one byte in each packet
    assert record(stream, cuts, keep=True)[:4] == whole[:4]  # decoding every event agrees with looking at its bytes


def test_each_kind_of_delta_counts_and_the_role_does_not() -> None:
    """Reasoning, content and tool calls are tokens; the role chunk, the finish and the usage are none."""
    stream = HEAD + chunked(
        event({"role": "assistant", "content": ""}),
        event({"reasoning_content": "hm"}),
        event({"reasoning": "so"}),
        event({"content": "yes"}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        event({}, finish="tool_calls"),
        event(None, **usage(4)),
        b"data: [DONE]\n\n",
    )
    recorder = ReplyRecorder()
    recorder.record_segment(stream, 1)

    assert list(recorder.kinds) == [REASONING, REASONING, CONTENT, TOOL]
    assert (recorder.completion_tokens, recorder.finish_reason, recorder.done, recorder.body.is_complete) == (
        4,
        "tool_calls",
        True,
        True,
    )


def test_a_hundred_events_in_one_packet_are_a_hundred_tokens() -> None:
    """A proxy that gathers events loses no token."""
    recorder = ReplyRecorder()
    recorder.record_segment(HEAD + chunked(*[event({"content": "x"})] * 100, b"data: [DONE]\n\n"), 9)

    assert list(recorder.times) == [9] * 100


def test_text_completions_count_too() -> None:
    """The older API puts its text beside the index."""
    piece = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'
    stream = HEAD + chunked(piece, piece, piece.replace(b'" a"', b'""'))

    assert record(stream, [])[1] == [CONTENT, CONTENT]
    assert record(stream, [len(HEAD), len(HEAD) + len(piece) + 6])[1] == [CONTENT, CONTENT]


@pytest.mark.parametrize(
    ("sizes", "counts", "total", "expected"),
    [
        ([9, 9, 9], [], 3, [1, 1, 1]),
        ([9, 9, 9], [], -1, [1, 1, 1]),
        ([9, 9, 9], [2, 5, 6], 6, [2, 3, 1]),
        ([9, 9, 9], [], 9, [3, 3, 3]),
        ([100, 104, 108], [], 6, [1, 2, 3]),
        ([9, 9, 9, 9], [], 2, [1, 0, 1, 0]),
        ([9], [], 40, [40]),
        ([], [], 5, []),
    ],
)
def test_tokens_are_shared_out_over_events(
    sizes: list[int], counts: list[int], total: int, expected: list[int]
) -> None:
    """One each if that fits the count, by bytes if an event has several, else as the server counts."""
    assert list(tokens_by_chunk(sizes, counts, total)) == expected


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=50), total=st.integers(1, 500))
def test_shared_out_tokens_sum_to_the_servers_count(sizes: list[int], total: int) -> None:
    """Nothing is lost to rounding, and the first event always carries a token."""
    tokens = tokens_by_chunk(sizes, [], total)

    assert sum(tokens) == total
    assert tokens[0] >= 1


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", "HTTP 503: busy"),
        (b'HTTP/1.1 400 B\r\ncontent-length: 27\r\n\r\n{"error":{"message":"long"}}'[:-1] + b"}", "HTTP 400"),
        (b'HTTP/1.1 422 U\r\ncontent-length: 17\r\n\r\n{"detail": "nope"', "HTTP 422"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not an HTTP/1.1 response"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", "a chunk of size"),
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", "neither events nor JSON"),
    ],
)
def test_what_is_not_a_stream_is_named(stream: bytes, error: str) -> None:
    """An HTTP error, another protocol or silence each leave one line."""
    recorder = ReplyRecorder()
    recorder.record_segment(stream, 1)
    recorder.close(1)

    assert error in recorder.error
    assert not recorder.times


def test_an_answer_that_did_not_stream_is_a_failure() -> None:
    """The times of the tokens of a whole JSON reply are unknown."""
    body = json.dumps({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], **usage(5)}).encode()
    recorder = ReplyRecorder()
    recorder.record_segment(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), 3)

    assert (list(recorder.times), recorder.error) == ([], "a whole JSON reply came instead of a stream")


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A loopback server that reads one request and then does `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                answer(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join(10)


def test_ask_reads_a_whole_reply_over_a_real_socket() -> None:
    """Text, reasoning, a tool call in pieces, counts and times come back."""
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a":'}}
    more = {"index": 0, "function": {"arguments": "1}"}}
    stream = HEAD + chunked(
        event({"reasoning_content": "hm"}),
        event({"content": "he"}),
        event({"content": "llo"}),
        event({"tool_calls": [call]}),
        event({"tool_calls": [more]}),
        event({}, finish="tool_calls", **usage(5)),
        b"data: [DONE]\n\n",
    )
    with (
        serving(lambda peer: peer.sendall(stream)) as url,
        StreamExchange(endpoint_from_url(url, "m"), {"model": "m", "messages": []}) as exchange,
    ):
        events = [read for _, read in exchange]
    text, reasoning = ("".join(read.text for read in events if read.kind == kind) for kind in (CONTENT, REASONING))
    assert (exchange.status, text, reasoning, exchange.done) == (200, "hello", "hm", True)
    assert join_tool_calls(read.data for read in events) == (ToolCall(id="c1", name="add", arguments='{"a":1}'),)
    assert events[-1].finish == "tool_calls"

    with serving(lambda peer: peer.sendall(stream)) as url:
        reply = StreamExchange(endpoint_from_url(url, "m"), {"model": "m", "messages": []}).read_reply()
    assert (reply.status, reply.error, reply.completion_tokens, reply.prompt_tokens) == (200, "", 5, 7)
    assert len(reply.times_s) == 5
    assert reply.times_s[0] >= 0
    assert list(reply.times_s) == sorted(reply.times_s)


def test_ask_reports_an_http_error_and_a_hang_up() -> None:
    """A refusal is a reply with an error; a server that sends nothing raises."""
    refusal = b'HTTP/1.1 404 Not Found\r\ncontent-length: 35\r\n\r\n{"error":{"message":"no such mode"}}'[:-1] + b"}"
    with serving(lambda peer: peer.sendall(refusal)) as url:
        reply = StreamExchange(endpoint_from_url(url, "m"), {}).read_reply()
    assert reply.status == 404
    assert "no such mode" in reply.error or "HTTP 404" in reply.error

    with serving(lambda peer: None) as url, pytest.raises(ExternalError, match="without a reply"):
        StreamExchange(endpoint_from_url(url, "m"), {}).read_reply()


def test_leaving_an_exchange_early_hangs_up() -> None:
    """The server sees the connection close: that is how a stream is cancelled."""
    closed = threading.Event()

    def answer(peer: socket.socket) -> None:
        peer.sendall(HEAD + b"%x\r\n%s\r\n" % (len(event({"content": "x"})), event({"content": "x"})))
        peer.settimeout(10)
        if peer.recv(1) == b"":
            closed.set()

    with serving(answer) as url, StreamExchange(endpoint_from_url(url, "m"), {}) as exchange:
        _, first = next(iter(exchange))
        exchange.close()
        assert first.text == "x"
        assert closed.wait(10)


def test_tokens_a_late_reader_found_together_get_even_gaps() -> None:
    """The last one's time is known, the others lie between it and the token before, and are marked as estimated."""
    piece = chunked(event({"content": "x"}))[:-5]
    recorder = ReplyRecorder()
    recorder.record_segment(HEAD + piece, 100)

    assert recorder.take_fast(piece * 2, 140, since=90)
    assert recorder.take_fast(piece * 2, 150)
    recorder.record_segment(piece * 3, 180, since=165)
    recorder.record_segment(piece, 200, since=190)
    assert list(recorder.times) == [100, 120, 140, 150, 150, 165, 170, 180, 200]
    assert [i for i, kind in enumerate(recorder.kinds) if kind & ESTIMATED_TIME] == [1, 5, 6]
    assert recorder.estimated_count == 3


def test_first_tokens_that_were_read_late_are_placed_by_the_gaps_that_follow() -> None:
    """Three came in one late read, then one every 20: those were 20 apart too, but none came before the request."""
    piece = chunked(event({"content": "x"}))[:-5]
    recorder = ReplyRecorder(sent_at=970)
    recorder.record_segment(HEAD + piece * 3, 1000, since=400)
    for time in (1020, 1040, 1060):
        recorder.record_segment(piece, time)
    assert recorder.estimated_count == 2
    samples = Samples()
    finished = RunningRequest(Conversation(0, 6, lambda replies: b""), 0, 0, 0, recorder, 970, 1060, 99)
    recorder.record_segment(chunked(event({}, finish="stop"), b"data: [DONE]\n\n"), 1060)
    finished.add_to_samples(samples)

    assert list(samples.time) == [970, 980, 1000, 1020, 1040, 1060]


def test_no_token_comes_before_its_request() -> None:
    """However long the connection was not read before."""
    piece = chunked(event({"content": "x"}))[:-5]
    recorder = ReplyRecorder(sent_at=900)
    recorder.record_segment(HEAD + piece * 4, 1000, since=100)

    assert min(recorder.times) >= 900


def test_tokens_after_the_end_belong_to_no_reply() -> None:
    """Neither those read one by one nor those like the one before."""
    recorder = ReplyRecorder()
    token = event({"content": " a"})
    first, done, more = (chunked(*pieces)[:-5] for pieces in ((token, token), (b"data: [DONE]\n\n",), (token, token)))
    for time, segment in enumerate([HEAD + first, done, more, chunked(event({}, finish="stop"))]):
        recorder.record_segment(segment, time)

    assert (len(recorder.times), recorder.finish_reason, recorder.done) == (2, "", True)


def test_true_is_not_a_count() -> None:
    """JSON's true is 1 to Python: one token was counted for a reply of eight."""
    found = decode_event(b'{"choices":[],"usage":{"prompt_tokens":true,"completion_tokens":false}}')

    assert found is not None
    assert found.usage == (-1, -1, -1)
