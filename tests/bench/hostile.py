"""Servers that misbehave, each in one way: what no client should hang on, crash over or make figures of.

`SERVERS` maps a name to a behaviour and to what must become of every request: "completed", "failed" (with truncated and
empty ones), or "either" where that hangs on timing.
"""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator

from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, tail

TOKEN = chunk(event({"content": " a"}))
DONE = chunk(b"data: [DONE]\n\n")
LAST = b"0\r\n\r\n"
FINISH = chunk(event({}, finish="length"))
OK = b"HTTP/1.1 200 OK\r\n"
SSE = b"content-type: text/event-stream\r\n"
MEGABYTE = 2**20


def counted(**counts: object) -> bytes:
    """The event that counts, with whatever is given in it."""
    return chunk(event(None, usage=counts))


def says(*pieces: bytes, close: bool = False) -> Behaviour:
    """The same to everybody; `close` hangs up after it."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(*pieces)
        return not close

    return behaviour


def forever(*pieces: bytes, first: bytes = b"", pause_s: float = 0.0) -> Behaviour:
    """The same over and over until the other side hangs up."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(first)
        while True:
            for piece in pieces:
                peer.send(piece)
                time.sleep(pause_s)

    return behaviour


def drips(data: bytes, pause_s: float = 0.02) -> Behaviour:
    """One byte at a time, and then the last one again without end."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        for byte in data:
            peer.send(bytes([byte]))
            time.sleep(pause_s)
        while True:
            peer.send(data[-1:])
            time.sleep(pause_s)

    return behaviour


def silent(*pieces: bytes) -> Behaviour:
    """Say this much and no more, but stay."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(*pieces)
        peer.sock.settimeout(20)
        peer.sock.recv(1)
        return False

    return behaviour


def resets(*pieces: bytes) -> Behaviour:
    """Say this and reset the connection."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(*pieces)
        time.sleep(0.02)
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()
        return False

    return behaviour


def reads_on(peer: Peer) -> None:
    """End our side of the connection, and read what still comes until the other side ends too."""
    peer.sock.shutdown(socket.SHUT_WR)
    peer.sock.settimeout(60)
    while peer.sock.recv(65536):
        pass


def ends_with(reply: bytes) -> Behaviour:
    """Say this with the end of the connection in the same segment, and answer nothing that comes after."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.sock.send(reply, socket.MSG_MORE)
        reads_on(peer)
        return False

    return behaviour


def with_usage(counts: dict[str, object], tokens: int = 8) -> Behaviour:
    """A good stream with these counts."""
    return says(HEAD, TOKEN * tokens, FINISH, counted(**counts), DONE + LAST)


def with_event(data: bytes) -> Behaviour:
    """A good stream with this event in the middle."""
    return says(HEAD, TOKEN, TOKEN, chunk(b"data: " + data + b"\n\n"), TOKEN, tail(4))


def big_event(size: int) -> Behaviour:
    """One event of so many bytes, and the end."""

    def behaviour(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(HEAD, chunk(event({"content": "x" * size})), tail(1))
        return True

    return behaviour


def whole(status: bytes, data: bytes, *headers: bytes) -> Behaviour:
    """A response of known length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    return says(b"HTTP/1.1 " + status + b"\r\n" + lines + b"content-length: %d\r\n\r\n" % len(data) + data)


def unasked(peer: Peer, body: dict[str, object]) -> bool:
    """A good reply, and another one that was not asked for."""
    reply = HEAD + TOKEN * 8 + tail(8)
    peer.send(reply + reply)
    time.sleep(0.05)
    peer.send(reply)
    return True


def end_inside(peer: Peer, body: dict[str, object]) -> bool:
    """Send what looks like the end of the response inside a chunk, and then more of the stream.

    The client reads up to that point before the rest is sent, however busy the machine is.
    """
    fake = b"data: [DONE]\n\n\r\n0\r\n\r\n"
    inside = fake + b"data: {}\n\n" * 9
    peer.send(HEAD, TOKEN)
    peer.wait_until_read()
    peer.send(b"%x\r\n" % len(inside) + fake)
    peer.wait_until_read()
    peer.send(inside[len(fake) :] + b"\r\n", TOKEN * 3, tail(4))
    return True


def late_tokens(peer: Peer, body: dict[str, object]) -> bool:
    """Tokens after the finish."""
    peer.send(HEAD, TOKEN * 4, FINISH, TOKEN * 4, counted(prompt_tokens=9, completion_tokens=8), DONE + LAST)
    return True


def disobedient(peer: Peer, body: dict[str, object]) -> bool:
    """Three times as many tokens as asked for, honestly counted."""
    words = [chunk(event({"content": " word" + "s" * (i % 3)})) for i in range(24)]
    peer.send(HEAD, *words, tail(24))
    return True


NESTED = b"[" * 100_000
ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202egone\r\nerror: forged"

SERVERS: dict[str, tuple[Behaviour, str]] = {
    # Never done.
    "endless tokens, as fast as they go": (forever(TOKEN * 50, first=HEAD), "failed"),
    "endless tokens, slowly": (forever(TOKEN, first=HEAD, pause_s=0.02), "failed"),
    "endless empty deltas": (forever(chunk(event({})) * 50, first=HEAD), "failed"),
    "endless comments": (forever(chunk(b": ping\n\n") * 50, first=HEAD), "failed"),
    "endless 100 Continue, fast": (forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), "failed"),
    "endless 100 Continue, slowly": (forever(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.05), "failed"),
    "endless headers": (forever(b"x-a: b\r\n" * 50, first=OK), "failed"),
    "endless trailers": (forever(b"x-a: b\r\n" * 50, first=HEAD + TOKEN + b"0\r\n"), "failed"),
    "an endless line": (forever(chunk(b"x" * 16000), first=HEAD + chunk(b"data: ")), "failed"),
    "an endless event of many lines": (forever(chunk(b"data: x\n" * 2000), first=HEAD), "failed"),
    "an endless error page": (forever(b"x" * 16000, first=b"HTTP/1.1 500 No\r\n\r\n"), "failed"),
    "a head, one byte at a time": (drips(OK + SSE + b"x-pad: y"), "failed"),
    "a stream, one byte at a time": (drips(HEAD + TOKEN), "failed"),
    "silence": (silent(), "failed"),
    "silence after the head": (silent(HEAD), "failed"),
    "silence after a token": (silent(HEAD, TOKEN), "failed"),
    "silence after [DONE]": (
        silent(HEAD, TOKEN * 8, FINISH, counted(prompt_tokens=9, completion_tokens=8), DONE),
        "completed",
    ),
    "silence in the middle of an event": (silent(HEAD, TOKEN, TOKEN[:20]), "failed"),
    # Gone.
    "hangs up at once": (says(close=True), "failed"),
    "hangs up after the head": (says(HEAD, close=True), "failed"),
    "hangs up in a token": (says(HEAD, TOKEN, TOKEN[:30], close=True), "failed"),
    "hangs up after each reply": (says(HEAD, TOKEN * 8, tail(8), close=True), "completed"),
    "hangs up with the last byte, and reads on": (ends_with(HEAD + TOKEN * 8 + tail(8)), "completed"),
    "hangs up with half a token, and reads on": (ends_with(HEAD + TOKEN + TOKEN[:30]), "failed"),
    "resets at once": (resets(), "failed"),
    "resets after a token": (resets(HEAD, TOKEN), "failed"),
    # Not the protocol.
    "speaks TLS": (says(b"\x15\x03\x01\x00\x02\x02\x46", close=True), "failed"),
    "speaks HTTP/2": (says(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03", close=True), "failed"),
    "speaks SSH": (says(b"SSH-2.0-OpenSSH_9.6\r\n", close=True), "failed"),
    "random bytes": (says(bytes(range(256)) * 40, close=True), "failed"),
    "a status that is no number": (says(b"HTTP/1.1 abc OK\r\n\r\n", close=True), "failed"),
    "a head of a megabyte": (says(OK + b"x: " + b"y" * MEGABYTE + b"\r\n\r\n", close=True), "failed"),
    "headers without colons, and NULs": (says(OK + SSE + b"nonsense\r\n\0\0: \0\r\n\r\n", close=True), "failed"),
    "a content-length below zero": (says(OK + SSE + b"content-length: -5\r\n\r\n", close=True), "failed"),
    "a content-length of petabytes": (
        says(OK + SSE + b"content-length: 99999999999999999\r\n\r\n", close=True),
        "failed",
    ),
    "a body shorter than its length": (
        says(OK + SSE + b"content-length: 99999\r\n\r\n" + event({"content": " a"}) + b"data: [DONE]\n\n", close=True),
        "failed",
    ),
    "a chunk below zero": (says(HEAD + b"-5\r\nhello\r\n0\r\n\r\n"), "failed"),
    "a chunk in Python's own hex": (says(HEAD + b"0x1_0\r\n" + b"x" * 16 + b"\r\n0\r\n\r\n"), "failed"),
    "a chunk of 2^100 bytes": (says(HEAD + b"1" + b"0" * 25 + b"\r\nhello", close=True), "failed"),
    "a chunk longer than its size": (says(HEAD + b"5\r\nhello world\r\n0\r\n\r\n"), "failed"),
    "a chunk extension without end": (says(HEAD + b"5;" + b"x" * 9999, close=True), "failed"),
    "a compressed stream": (says(OK + SSE + b"content-encoding: gzip\r\n\r\n\x1f\x8b\x08\x00", close=True), "failed"),
    "an end inside a chunk": (end_inside, "failed"),
    "counts and no other event": (
        says(HEAD, counted(prompt_tokens=9, completion_tokens=5), DONE + LAST),
        "failed",
    ),
    "replies that were not asked for": (unasked, "completed"),
    "plain JSON": (whole(b"200 OK", b'{"choices":[{"message":{"content":"a"}}]}'), "failed"),
    "a page of HTML": (whole(b"200 OK", b"<html><h1>It works!", b"content-type: text/html"), "failed"),
    "nothing at all": (whole(b"200 OK", b""), "failed"),
    "events called text": (says(OK + b"\r\n" + event({"content": " a"}) + b"data: [DONE]\n\n", close=True), "failed"),
    "a redirect to itself": (whole(b"302 Found", b"", b"location: /v1/chat/completions"), "failed"),
    # No.
    "not found": (whole(b"404 Not Found", b'{"detail":"Not Found"}'), "failed"),
    "too many requests": (whole(b"429 Slow", b"{}", b"retry-after: 0"), "failed"),
    "too many requests for thirty years": (whole(b"429 Slow", b"{}", b"retry-after: 999999999"), "failed"),
    "too many requests until yesterday": (
        whole(b"503 Busy", b"{}", b"retry-after: Fri, 31 Dec 1999 23:59:59 GMT"),
        "failed",
    ),
    "too many requests until whenever": (whole(b"503 Busy", b"{}", b"retry-after: \xff\xfe soon"), "failed"),
    "an error that moves the cursor": (
        whole(b"500 No", json.dumps({"error": {"message": ESCAPES}}).encode()),
        "failed",
    ),
    "an error of a megabyte": (whole(b"500 No", b"x" * MEGABYTE), "failed"),
    "an error that is a number": (whole(b"500 No", b'{"error": 7}'), "failed"),
    "an error in the stream": (with_event(json.dumps({"error": ESCAPES}).encode()), "failed"),
    # Events.
    "one byte that is not UTF-8": (with_event(b'{"choices":[{"delta":{"content":" \xff"}}]}'), "failed"),
    "one byte that is not UTF-8, like the others": (
        says(HEAD, TOKEN, TOKEN, TOKEN.replace(b" a", b"\xffa"), TOKEN, tail(4)),
        "failed",
    ),
    "half a surrogate": (with_event(b'{"choices":[{"delta":{"content":"\\ud800"}}]}'), "either"),
    "an event of 15 MiB": (big_event(15 * MEGABYTE), "completed"),
    "an event of 17 MiB": (big_event(17 * MEGABYTE), "failed"),
    "a hundred thousand brackets": (with_event(NESTED), "failed"),
    "half JSON": (with_event(b'{"choices":['), "failed"),
    "JSON that is no object": (with_event(b"[1, 2]"), "failed"),
    "numbers beyond all bounds": (with_event(b'{"choices":[],"x":1' + b"0" * 400 + b',"y":-1e999}'), "either"),
    "choices that are none": (with_event(b'{"choices":7}'), "completed"),
    "a choice that is a number": (with_event(b'{"choices":[7]}'), "completed"),
    "a delta that is a list": (with_event(b'{"choices":[{"delta":[1]}]}'), "completed"),
    "content that is an object": (with_event(b'{"choices":[{"delta":{"content":{"a":1}}}]}'), "completed"),
    "tool calls that are none": (with_event(b'{"choices":[{"delta":{"tool_calls":{"x":[]}}}]}'), "completed"),
    "no event but the end": (says(HEAD, DONE + LAST), "failed"),
    "an end without [DONE] or finish": (says(HEAD, TOKEN * 8, LAST), "failed"),
    "tokens after the finish": (late_tokens, "completed"),
    "three times as many tokens as asked": (disobedient, "completed"),
    "[DONE] ten times": (
        says(HEAD, TOKEN * 8, FINISH, counted(prompt_tokens=9, completion_tokens=8), DONE * 10 + LAST),
        "completed",
    ),
    # Counts.
    "10^9 tokens": (with_usage({"prompt_tokens": 9, "completion_tokens": 10**9}), "failed"),
    "10^30 tokens": (with_usage({"prompt_tokens": 9, "completion_tokens": 10**30}), "failed"),
    "a prompt of 10^9 tokens": (with_usage({"prompt_tokens": 10**9, "completion_tokens": 8}), "failed"),
    "no tokens": (with_usage({"prompt_tokens": 0, "completion_tokens": 0}), "failed"),
    "minus a million tokens": (with_usage({"prompt_tokens": -(10**6), "completion_tokens": -(10**6)}), "completed"),
    "counts that are words": (with_usage({"prompt_tokens": "many", "completion_tokens": [8]}), "completed"),
    "more cached than asked": (
        with_usage({"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 10**9}}),
        "completed",
    ),
    "counts that fall": (
        says(
            HEAD,
            *(
                chunk(event({"content": " a"}, usage={"prompt_tokens": 9, "completion_tokens": 8 - i}))
                for i in range(8)
            ),
            DONE + LAST,
        ),
        "completed",
    ),
}

# What /metrics, /tokenize and /v1/models may say instead.
ASIDE: dict[str, Behaviour] = {
    "silence": silent(),
    "one byte at a time": drips(OK + b"x: y"),
    "endless 100 Continue": forever(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.01),
    "an endless body": forever(b"x" * 4000, first=OK + b"\r\n", pause_s=0.001),
    "tokens without number": whole(b"200 OK", b'{"tokens": 7, "data": 7}'),
    "no tokens": whole(b"200 OK", b'{"tokens": [], "data": []}'),
    "brackets": whole(b"200 OK", NESTED),
    "metrics of nonsense": whole(
        b"200 OK",
        b"vllm:prefix_cache_queries_total -5\nvllm:prefix_cache_hits_total 1e308\nvllm:kv_cache_usage_perc NaN\n",
    ),
    "a name that moves the cursor": whole(b"200 OK", json.dumps({"data": [{"id": ESCAPES}], "tokens": [1]}).encode()),
}


def behaviours() -> Iterator[tuple[str, Callable[[Peer, dict[str, object]], bool], str]]:
    """Every server with what must become of its requests."""
    for name, (behaviour, outcome) in SERVERS.items():
        yield name, behaviour, outcome
