"""One request and its streamed reply, over a connection of its own; leaving early hangs up, which cancels it."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypedDict, Unpack

from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.loose import Json, get_object, get_objects
from moebox.redact import hide_known_keys
from moebox.stream import sockets
from moebox.stream.body import ResponseBody
from moebox.stream.events import CONTENT, REASONING, StreamEvent, decode_event, describe_error
from moebox.stream.sse import is_done_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyToolCall:
    """A tool call of a reply, put together from its deltas."""

    id: str = ""
    name: str = ""
    arguments: str = ""  # JSON, if the model wrote some

    def with_delta(self, delta: Json) -> "ReplyToolCall":
        """With what one more delta brings."""
        function = get_object(delta, "function")
        return ReplyToolCall(
            id=_text(delta.get("id")) or self.id,
            name=self.name + _text(function.get("name")),
            arguments=self.arguments + _text(function.get("arguments")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """A whole streamed reply. Times are seconds after the request was sent; None where that never came."""

    status: int
    error: str = ""  # what went wrong, "" when nothing did
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ReplyToolCall, ...] = ()
    finish: str = ""
    done: bool = False  # [DONE] came
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None  # first token of any kind
    ttfc_s: float | None = None  # first visible content
    e2e_s: float | None = None
    times_s: tuple[float, ...] = ()  # of every event that carried tokens
    events: tuple[Json, ...] = field(default=(), repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # of the response, names in lower case


class StreamExchange:
    """A request on its way: iterate for (seconds since sent, event) pairs, close to cancel.

    Raises Outside when the server cannot be reached, hangs up before answering, is silent for `timeout_s`, or is not
    done after `total_s` or `most_events`, whatever arrives.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        body: Mapping[str, object],
        *,
        path: str = "/chat/completions",
        timeout_s: float = 600.0,
        total_s: float = 7200.0,
        most_events: int = 1_000_000,
        headers: dict[str, str] | None = None,
        target: sockets.SocketAddress | None = None,
    ) -> None:
        target = target or sockets.address_from_url(endpoint.base_url)
        data = json.dumps({**body, "stream": True}).encode()
        request = sockets.request_head(target, path, length=len(data), headers={**endpoint.headers, **(headers or {})})
        self._where = f"{target.host}:{target.port}"
        self._body = ResponseBody()
        self._silence_s, self._total_s, self._most = timeout_s, total_s, most_events
        self._until = time.monotonic() + total_s
        self.done = False
        self._sock = sockets.connect(target, min(timeout_s, total_s))
        self._kernel = not target.tls and sockets.tune_socket(self._sock)
        try:
            self._offset = sockets.clock_offset()
            self._sent = time.monotonic_ns()
            self._sock.sendall(request + data)
        except OSError as problem:
            self.close()
            raise ExternalError(f"{self._where}: {problem.strerror or problem}", hint="is the server up?") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._sock.close()

    @property
    def status(self) -> int:
        """The HTTP status, 0 until it is known."""
        return self._body.status

    @property
    def headers(self) -> dict[str, str]:
        """Response headers, names in lower case."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._body.headers.items()}

    def __iter__(self) -> Iterator[tuple[float, StreamEvent]]:
        body, events, at = self._body, 0, 0.0
        while not body.is_complete:
            data, at = self._read()
            payloads = body.feed(data) if data else body.close()
            for event in self._decoded(payloads):
                yield at, event
            events += len(payloads)
            if events > self._most:
                raise ExternalError(f"{self._where}: still streams after {events:,} events")
            if not data:
                break
        self._raise_if_broken()
        if not body.streamed:
            yield from self._unstreamed(at)

    def _raise_if_broken(self) -> None:
        body = self._body
        if body.problem or not body.status:
            raise ExternalError(f"{self._where}: {body.problem or 'hung up without an answer'}")

    def _decoded(self, payloads: Iterable[bytes]) -> Iterator[StreamEvent]:
        """The events of a read; the mark of the end is remembered."""
        for payload in payloads:
            if is_done_mark(payload):
                self.done = True
            elif event := decode_event(payload):
                yield event

    def _unstreamed(self, at: float) -> Iterator[tuple[float, StreamEvent]]:
        payload = bytes(self._body.rest)
        event = decode_event(payload)
        if self.status != 200:
            yield at, StreamEvent(error=describe_error(self.status, payload), data=event.data if event else {})
        elif event:
            self.done = True
            yield at, event

    def _read(self) -> tuple[bytes, float]:
        left = self._until - time.monotonic()
        if left <= 0:
            raise ExternalError(f"{self._where}: not over after {self._total_s:g} s")
        self._sock.settimeout(min(left, self._silence_s))
        try:
            return self._receive()
        except TimeoutError:
            silent = left > self._silence_s
            why = f"silent for {self._silence_s:g} s" if silent else f"not over after {self._total_s:g} s"
            raise ExternalError(f"{self._where}: {why}") from None
        except ConnectionError:
            return b"", (time.monotonic_ns() - self._sent) / 1e9
        except OSError as problem:
            raise ExternalError(f"{self._where}: {problem.strerror or problem}") from None

    def _receive(self) -> tuple[bytes, float]:
        """The next bytes, and when they came: by the kernel's stamp where it gives one."""
        if not self._kernel:
            data = self._sock.recv(65536)
            return data, (time.monotonic_ns() - self._sent) / 1e9
        data, side, _, _ = self._sock.recvmsg(65536, sockets.SIDE_BYTES)
        stamp = sockets.receive_time(side, self._offset, self._sent)
        return data, (stamp - self._sent) / 1e9


class ExchangeOptions(TypedDict, total=False):
    """How a request is sent, and when it is given up: what Exchange takes."""

    path: str
    timeout_s: float
    total_s: float
    most_events: int
    headers: dict[str, str] | None
    target: sockets.SocketAddress | None  # stands for the endpoint's URL where TLS needs settings


def send_request(endpoint: Endpoint, body: Mapping[str, object], **options: Unpack[ExchangeOptions]) -> StreamReply:
    """Send one request, read its stream to the end."""
    heard = _Heard()
    with StreamExchange(endpoint, body, **options) as exchange:
        for at, event in exchange:
            heard.add(at, event)
        return heard.reply(exchange)


class _Heard:
    """A stream while it is read to its end."""

    def __init__(self) -> None:
        self.said: dict[int, list[str]] = {CONTENT: [], REASONING: []}
        self.times: list[float] = []
        self.seen: list[StreamEvent] = []
        self.first_content: float | None = None
        self.usage: tuple[int, ...] = NO_USAGE  # the last that was told

    def add(self, at: float, event: StreamEvent) -> None:
        """An event, and when it came."""
        self.seen.append(event)
        self.usage = event.usage or self.usage
        if event.kind:
            self.times.append(at)
            self.said.setdefault(event.kind, []).append(event.text)
        if event.kind == CONTENT and self.first_content is None:
            self.first_content = at

    def reply(self, exchange: StreamExchange) -> StreamReply:
        """All of it."""
        prompt, completion, cached, *_ = map(_count, self.usage)
        return StreamReply(
            status=exchange.status,
            error=_first(event.error for event in self.seen),
            text=hide_known_keys("".join(self.said[CONTENT])),
            reasoning=hide_known_keys("".join(self.said[REASONING])),
            tool_calls=join_tool_calls(event.data for event in self.seen),
            finish=_first(event.finish for event in reversed(self.seen)),
            done=exchange.done,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            ttft_s=self.times[0] if self.times else None,
            ttfc_s=self.first_content,
            e2e_s=self.times[-1] if self.times else None,
            times_s=tuple(self.times),
            events=tuple(event.data for event in self.seen),
            headers=exchange.headers,
        )


NO_USAGE = (-1, -1, -1)


def _count(tokens: int) -> int | None:
    """A negative number stands for what the server did not count."""
    return tokens if tokens >= 0 else None


def _first(texts: Iterable[str]) -> str:
    """The first that is not empty."""
    return next(filter(None, texts), "")


def join_tool_calls(events: Iterable[Json]) -> tuple[ReplyToolCall, ...]:
    """The tool calls of a reply, each put together from its deltas; what has not their form is left out."""
    calls: dict[int, ReplyToolCall] = {}
    for place, part in (pair for data in events for pair in _parts(data)):
        index = part.get("index")
        key = index if isinstance(index, int) else place
        calls[key] = calls.get(key, ReplyToolCall()).with_delta(part)
    return tuple(calls[index] for index in sorted(calls))


def _parts(data: Json) -> Iterator[tuple[int, Json]]:
    for choice in get_objects(data, "choices"):
        parts = (get_object(choice, "delta") or get_object(choice, "message")).get("tool_calls")
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                yield place, part


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
