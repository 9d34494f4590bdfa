"""More servers that misbehave, written without knowledge of the client: framing, heads, events, counts."""

import gzip
import time

from tests.bench.hostile import DONE, FINISH, LAST, MEGABYTE, OK, SSE, TOKEN, counted, forever, says, silent, whole
from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, tail

GOOD = TOKEN * 8 + tail(8)
CHUNKED = b"transfer-encoding: chunked\r\n"
PLAIN = event({"content": " a"}) * 8 + event({}, finish="length")
PLAIN += event(None, usage={"prompt_tokens": 9, "completion_tokens": 8}) + b"data: [DONE]\n\n"
BOMB = gzip.compress(b"data: ") + gzip.compress(b"x" * MEGABYTE) * 64 + gzip.compress(b"\n\n")


def resized(data: bytes, form: bytes) -> bytes:
    """A chunk whose size line is written in this form."""
    return form % len(data) + b"\r\n" + data + b"\r\n"


def written(form: bytes) -> Behaviour:
    """A good stream with every size written so."""
    events = [event({"content": " a"})] * 8 + [event({}, finish="length")]
    events += [event(None, usage={"prompt_tokens": 9, "completion_tokens": 8}), b"data: [DONE]\n\n"]
    return says(HEAD, b"".join(resized(each, form) for each in events) + LAST)


def headed(*lines: bytes, body: bytes = GOOD, close: bool = False) -> Behaviour:
    """A stream behind these headers."""
    return says(OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n", body, close=close)


def counting(**usage: object) -> Behaviour:
    """Eight tokens and these counts."""
    return says(HEAD, TOKEN * 8, FINISH, counted(**usage), DONE + LAST)


def raw_usage(text: bytes) -> Behaviour:
    """Eight tokens and counts that json.dumps would not write."""
    return says(HEAD, TOKEN * 8, FINISH, chunk(b'data: {"choices":[],"usage":' + text + b"}\n\n"), DONE + LAST)


def greets(peer: Peer, body: dict[str, object]) -> bool:
    """A good reply, and a while later half of the next one before it was asked for."""
    peer.send(HEAD, GOOD)
    time.sleep(0.02)
    peer.send(HEAD, TOKEN)
    return True


def choices(*indices: int) -> bytes:
    """One event with a token for each of these choices."""
    items = [{"index": index, "delta": {"content": " a"}, "finish_reason": None} for index in indices]
    return chunk(event(None, choices=items))


def comment(megabytes: int) -> list[bytes]:
    """One comment of this size, in chunks of a megabyte."""
    return [chunk(b": "), *[chunk(b"x" * MEGABYTE)] * megabytes, chunk(b"\n\n")]


FLOOD = [b"x-%d: y" % number for number in range(10_000)]
SPLIT = event({"content": " a"}).replace(b',"choices"', b'\ndata: ,"choices"')
CRLF = b"event: message\r\nid: 7\r\nretry: 10\r\n" + event({"content": " a"}).replace(b"\n\n", b"\r\n\r\n")
NO_SPACE = event({"content": " a"}).replace(b"data: ", b"data:")

MORE: dict[str, tuple[Behaviour, str]] = {
    # Framing.
    "sizes with leading zeros": (written(b"0000%x"), "completed"),
    "sizes in capitals": (written(b"%X"), "completed"),
    "sizes with extensions": (written(b'%x;a="b;c";d'), "completed"),
    "sizes with spaces around": (written(b" %x  "), "either"),
    "sizes with a plus": (written(b"+%x"), "failed"),
    "one byte a chunk": (says(HEAD, b"".join(b"1\r\n%c\r\n" % byte for byte in PLAIN) + LAST), "completed"),
    "an empty chunk in the middle": (says(HEAD, TOKEN * 4, LAST, TOKEN * 4, tail(8)), "failed"),
    "trailers": (says(HEAD, TOKEN * 8, tail(8)[:-2] + b"x-checksum: 7\r\nserver-timing: a\r\n\r\n"), "completed"),
    "a length and chunks": (headed(b"content-length: 5", SSE.strip(), CHUNKED.strip()), "completed"),
    "two lengths": (
        headed(SSE.strip(), b"content-length: 10", b"content-length: 99999", body=PLAIN, close=True),
        "failed",
    ),
    "chunked twice over": (headed(SSE.strip(), b"transfer-encoding: chunked, chunked"), "either"),
    "chunked by another name": (headed(SSE.strip(), b"transfer-encoding: xchunkedx"), "failed"),
    "compressed and chunked": (
        headed(SSE.strip(), b"transfer-encoding: gzip, chunked", body=chunk(BOMB) + LAST),
        "failed",
    ),
    "a bomb": (headed(SSE.strip(), CHUNKED.strip(), b"content-encoding: gzip", body=chunk(BOMB) + LAST), "failed"),
    "a bomb of brotli and deflate": (
        headed(SSE.strip(), CHUNKED.strip(), b"content-encoding: br, deflate", body=chunk(BOMB) + LAST),
        "failed",
    ),
    "a folded header": (says(OK + SSE + b"transfer-encoding:\r\n chunked\r\n\r\n", GOOD), "either"),
    "a known length": (headed(SSE.strip(), b"content-length: %d" % len(PLAIN), body=PLAIN), "completed"),
    "HTTP/1.0 until it hangs up": (says(b"HTTP/1.0 200 OK\r\n" + SSE + b"\r\n", PLAIN, close=True), "completed"),
    # Heads.
    "five thousand headers": (headed(SSE.strip(), CHUNKED.strip(), *FLOOD[:5000]), "completed"),
    "ten thousand headers": (headed(SSE.strip(), CHUNKED.strip(), *FLOOD), "failed"),
    "thirty early hints": (says(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 30 + HEAD, GOOD), "completed"),
    "a flood of early hints": (forever(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 50), "failed"),
    "another protocol": (silent(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n"), "failed"),
    "no reason phrase": (says(b"HTTP/1.1 200\r\n" + SSE + CHUNKED + b"\r\n", GOOD), "completed"),
    "no content": (says(b"HTTP/1.1 204 No Content\r\n\r\n"), "failed"),
    "part of the content": (whole(b"206 Partial Content", PLAIN, SSE.strip()), "failed"),
    "elsewhere": (whole(b"307 Temporary Redirect", b"", b"location: http://127.0.0.2:9/v1/chat/completions"), "failed"),
    "a status of a thousand": (says(b"HTTP/1.1 1000 OK\r\n" + SSE + CHUNKED + b"\r\n", GOOD, close=True), "failed"),
    "closes, among other things": (
        headed(SSE.strip(), CHUNKED.strip(), b"connection: close, te", close=True),
        "completed",
    ),
    "retries after minus one": (whole(b"429 Slow", b"{}", b"retry-after: -1"), "failed"),
    "retries after ten thousand digits": (whole(b"429 Slow", b"{}", b"retry-after: " + b"9" * 10_000), "failed"),
    # Events.
    "lines that end in CR LF, with names and ids": (says(HEAD, chunk(CRLF) * 8, tail(8)), "completed"),
    "no space behind the colon": (says(HEAD, chunk(NO_SPACE) * 8, tail(8)), "completed"),
    "events of two lines": (says(HEAD, chunk(SPLIT) * 8, tail(8)), "completed"),
    "comments of 15 MiB": (says(HEAD, TOKEN * 4, *comment(15), TOKEN * 4, tail(8)), "completed"),
    "comments of 64 MiB": (says(HEAD, TOKEN * 4, *comment(64), TOKEN * 4, tail(8)), "failed"),
    "an event that never ends with its line": (forever(chunk(b"id: x\n" * 2000), first=HEAD), "failed"),
    "tokens after [DONE]": (
        says(HEAD, TOKEN * 8, FINISH, counted(prompt_tokens=9, completion_tokens=8), DONE, TOKEN * 200, DONE + LAST),
        "completed",
    ),
    "tokens without end after [DONE]": (
        forever(
            TOKEN * 50,
            first=HEAD + TOKEN * 8 + FINISH + counted(prompt_tokens=9, completion_tokens=8) + DONE,
            pause_s=0.01,
        ),
        "completed",
    ),
    "two choices in turn": (says(HEAD, *(choices(0), choices(1)) * 4, tail(8)), "either"),
    "two choices at once": (says(HEAD, *[choices(0, 1)] * 8, tail(8)), "either"),
    "only another choice": (says(HEAD, *[choices(7)] * 8, tail(8)), "either"),
    "a finish with the first token": (
        says(HEAD, chunk(event({"content": " a"}, finish="stop")), TOKEN * 7, tail(8)),
        "completed",
    ),
    "a hundred thousand choices": (
        says(HEAD, TOKEN * 8, chunk(event(None, choices=[{}] * 100_000)), tail(8)),
        "completed",
    ),
    "a number of a thousand digits": (
        says(HEAD, TOKEN * 8, chunk(b'data: {"choices":[],"created":' + b"9" * 1000 + b"}\n\n"), tail(8)),
        "either",
    ),
    # Counts.
    "counts in the first event": (
        says(HEAD, chunk(event({"role": "assistant"}, usage={"prompt_tokens": 9, "completion_tokens": 0})), GOOD),
        "completed",
    ),
    "counts of nothing in every event": (
        says(HEAD, chunk(event({"content": " a"}, usage=None)) * 8, tail(8)),
        "completed",
    ),
    "counts inside the choice": (
        says(HEAD, TOKEN * 8, chunk(event({"usage": {"completion_tokens": 10**9}}, finish="length")), DONE + LAST),
        "completed",
    ),
    "counts that are NaN": (raw_usage(b'{"prompt_tokens":NaN,"completion_tokens":NaN}'), "failed"),
    "counts that are infinite": (raw_usage(b'{"prompt_tokens":1e999,"completion_tokens":Infinity}'), "failed"),
    "counts with a fraction": (counting(prompt_tokens=9.5, completion_tokens=7.999), "completed"),
    "counts that are true": (counting(prompt_tokens=True, completion_tokens=True), "completed"),
    "counts that are null": (counting(prompt_tokens=None, completion_tokens=None), "completed"),
    "counts twice over": (
        raw_usage(b'{"completion_tokens":10000000,"completion_tokens":8,"prompt_tokens":9}'),
        "completed",
    ),
    "a usage that is a list": (raw_usage(b"[8, 9]"), "completed"),
    "cached below zero": (
        counting(prompt_tokens=9, completion_tokens=8, prompt_tokens_details={"cached_tokens": -(10**9)}),
        "completed",
    ),
    "the next reply before it was asked for": (greets, "either"),
}
