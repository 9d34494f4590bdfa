"""One request and its streamed reply over its own connection; closing it early cancels the request."""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from moebox.core.endpoint import Endpoint, ToolCall
from moebox.errors import ExternalError
from moebox.loose import Json, as_text, get_object, get_objects
from moebox.stream import sockets
from moebox.stream.body import ResponseBody
from moebox.stream.events import StreamEvent, decode_event, describe_error
from moebox.stream.sse import is_done_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """What is kept of a whole streamed reply; counts are None if the server does not report them."""

    status: int
    error: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    chars: int = 0  # of text and reasoning
    times_s: tuple[float, ...] = ()  # of every event that carried tokens, in seconds after the request was sent
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # of the response, names in lower case


class StreamExchange:
    """A request in progress: iterate for (seconds since sent, event) pairs, close to cancel.

    `target` is used instead of the endpoint's URL if TLS needs settings.
    Raise ExternalError if the server cannot be reached, hangs up before replying, is silent for `timeout_s`, or is not
    done after `total_s` or `most_events`.
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

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
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
            data, at = self._read_bytes()
            payloads = body.feed(data) if data else body.close()
            for payload in payloads:
                if is_done_mark(payload):
                    self.done = True
                elif event := decode_event(payload):
                    yield at, event
            events += len(payloads)
            if events > self._most:
                raise ExternalError(f"{self._where}: still streams after {events:,} events")
            if self.done:  # some servers keep the connection open
                return
            if not data:
                break
        if body.problem or not body.status:
            raise ExternalError(f"{self._where}: {body.problem or 'hung up without a reply'}")
        if body.streamed:
            return
        payload = bytes(body.rest)
        whole = decode_event(payload)
        if self.status != 200:
            yield at, StreamEvent(error=describe_error(self.status, payload), data=whole.data if whole else {})
        elif whole:
            self.done = True
            yield at, whole

    def read_reply(self) -> StreamReply:
        """Read the reply to its end, and close."""
        with self:
            events = list(self)
        usage = next((event.usage for _, event in reversed(events) if event.usage), (-1, -1))
        prompt, completion, *_ = (count if count >= 0 else None for count in usage)
        return StreamReply(
            status=self.status,
            error=next((event.error for _, event in events if event.error), ""),
            prompt_tokens=prompt,
            completion_tokens=completion,
            chars=sum(len(event.text) for _, event in events),
            times_s=tuple(at for at, event in events if event.kind),
            headers=self.headers,
        )

    def _read_bytes(self) -> tuple[bytes, float]:
        """The next bytes, and when they came: by the kernel's timestamp if it has one. No bytes at the end."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise ExternalError(f"{self._where}: not over after {self._total_s:g} s")
        self._sock.settimeout(min(left, self._silence_s))
        try:
            if not self._kernel:
                data = self._sock.recv(65536)
                return data, (time.monotonic_ns() - self._sent) / 1e9
            data, side, _, _ = self._sock.recvmsg(65536, sockets.SIDE_BYTES)
            return data, (sockets.receive_time(side, self._offset, self._sent) - self._sent) / 1e9
        except TimeoutError:
            silent = left > self._silence_s
            reason = f"silent for {self._silence_s:g} s" if silent else f"not over after {self._total_s:g} s"
            raise ExternalError(f"{self._where}: {reason}") from None
        except ConnectionError:
            return b"", (time.monotonic_ns() - self._sent) / 1e9
        except OSError as problem:
            raise ExternalError(f"{self._where}: {problem.strerror or problem}") from None


def join_tool_calls(events: Iterable[Json]) -> tuple[ToolCall, ...]:
    """Join the tool calls of a reply from their deltas; deltas of another format are ignored."""
    calls: dict[int, ToolCall] = {}
    for choice in (choice for data in events for choice in get_objects(data, "choices")):
        for place, delta in enumerate(get_objects(choice, "delta.tool_calls", "message.tool_calls")):
            index = delta.get("index")
            key = index if isinstance(index, int) else place
            before, function = calls.get(key, ToolCall()), get_object(delta, "function")
            calls[key] = ToolCall(
                id=as_text(delta.get("id")) or before.id,
                name=before.name + as_text(function.get("name")),
                arguments=before.arguments + as_text(function.get("arguments")),
            )
    return tuple(calls[index] for index in sorted(calls))
