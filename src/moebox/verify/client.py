"""HTTP client for checks: every exchange is bounded in time and memory, and kept as evidence.

Nothing here raises because of what a server does; the problem is in `HttpExchange.error`.
"""

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.verdict import HttpExchange
from moebox.errors import exception_text, exhausted_limit
from moebox.redact import decode_reply, hide_known_keys
from moebox.stream.awake import AwakeClock
from moebox.stream.sse import EventParser

MAX_BYTES = 8 * 2**20  # of one reply; the longest correct one here is a few hundred kB
CONNECT_S = 10.0
MAX_RETRY_AFTER_S = 20.0  # honoured of one Retry-After
DISCONNECTED = "the client disconnected"  # the error of an exchange that this side ended
THIS_MACHINE = "this machine"  # how the reason of a probe begins that was skipped for no fault of the server
UNREACHABLE = ("cannot connect", "TLS", "not a valid URL")  # how errors begin that every later request would get too
HANGS = "no end within"  # how the error of a request begins that took too long
MAX_RETRIES = 4  # after a 429 or 503, or after this machine slept during the request

STALL_CHECK_S = 0.1
STALLED_S = 0.3  # on a machine this busy no reply is called late
SLACK_EVENTS = 64  # events beyond max_tokens of a correct stream: role, finish, usage, keep-alives

StreamWatch = Callable[[bytes], str]  # sees each piece of a stream; returns the error that ends it, or ""


class StallDetector:
    """Detects that this process itself was delayed, so that the server is not called slow."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def watch_event_loop(self) -> None:
        """Run beside the requests until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(STALL_CHECK_S)
            self.worst_s = max(self.worst_s, time.monotonic() - before - STALL_CHECK_S)

    def was_stalled(self) -> bool:
        worst, self.worst_s = self.worst_s, 0.0
        return worst > STALLED_S


class MachineLimit(Exception):
    """This machine, not the server, kept a request from being sent."""


class ExchangeClient:
    """Client of one server. `deadline_s` bounds every exchange, and is halved when a request exceeds it."""

    def __init__(self, endpoint: Endpoint, *, deadline_s: float = 300.0, awake: AwakeClock | None = None) -> None:
        self.endpoint = endpoint
        self._awake = awake or AwakeClock()
        self.deadline_s = deadline_s
        self.hang_count = 0  # requests without an end
        self.received = 0  # bytes of all replies, for the watch on a server that stands still
        self.ends_at = math.inf  # on the monotonic clock: when every exchange must be over
        timeout = httpx2.Timeout(None, connect=CONNECT_S)  # the deadline bounds the rest
        # A connection for each request: llama.cpp closes idle ones after a while, which would look like a fault
        fresh = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        single = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
        # identity: a compressed reply could be small on the wire and huge in memory
        headers = {"Accept-Encoding": "identity", "User-Agent": "moebox"}
        tls = http.trusted_certificates(endpoint.base_url)
        self._fresh, self._kept = (
            httpx2.AsyncClient(timeout=timeout, limits=limits, headers=headers, trust_env=False, verify=tls)
            for limits in (fresh, single)
        )

    async def __aenter__(self) -> "ExchangeClient":
        self._awake.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._awake.__exit__(None, None, None)
        await self._fresh.aclose()
        await self._kept.aclose()

    async def get(self, url: str) -> HttpExchange:
        """GET, repeated while the server is busy."""
        return await self._send_with_retries("GET", url)

    async def post(self, url: str, body: Any, **how: Any) -> HttpExchange:
        """POST `body` as JSON (bytes as they are), repeated while the server is busy; see `_send_once`."""
        return await self._send_with_retries("POST", url, body, **how)

    async def post_and_disconnect(self, url: str, body: Any) -> HttpExchange:
        """POST a streaming request and disconnect after two pieces of the reply."""
        seen = itertools.count(1)
        return await self._send_once("POST", url, body, watch=lambda _: DISCONNECTED if next(seen) >= 2 else "")

    async def _send_with_retries(self, method: str, url: str, body: Any = None, **how: Any) -> HttpExchange:
        """Send; while the server is too busy, wait as long as it asks, within bounds, and send again."""
        for attempt in range(MAX_RETRIES + 1):
            away_s = self._awake.away_s
            exchange = await self._send_once(method, url, body, **how)
            if exchange.error and self._awake.away_s > away_s and attempt < MAX_RETRIES:
                continue  # this machine slept: not a fault of the server
            if exchange.status not in (429, 503) or attempt == MAX_RETRIES or self._seconds_left() <= 0:
                break
            try:
                pause = float(exchange.headers.get("retry-after", ""))
            except ValueError:
                pause = 0.5 * 2**attempt
            await asyncio.sleep(min(max(pause, 0.05), MAX_RETRY_AFTER_S, self._seconds_left()))
        if exchange.error.startswith("no end"):
            self.hang_count += 1  # a server that hangs once gets less time from then on
            self.deadline_s = min(self.deadline_s, max(10.0, self.deadline_s / 2))
        return exchange

    def _seconds_left(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    async def _send_once(
        self,
        method: str,
        url: str,
        body: Any,
        *,
        headers: Mapping[str, str] = http.NO_HEADERS,
        watch: StreamWatch | None = None,
        deadline_s: float = math.inf,
        keep_alive: bool = False,
    ) -> HttpExchange:
        """Send one request. With `keep_alive` all such requests share one connection."""
        began = time.monotonic()
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**self.endpoint.headers, **headers, **({"Content-Type": "application/json"} if raw else {})}
        deadline_s = max(0.05, min(deadline_s, self.deadline_s, self._seconds_left()))
        client = self._kept if keep_alive else self._fresh
        received = bytearray()
        status, reply_headers, first_s, gap_s, last, error = 0, {}, 0.0, 0.0, 0.0, ""
        try:
            async with asyncio.timeout(deadline_s), client.stream(method, url, content=raw, headers=sent) as response:
                status, reply_headers = response.status_code, dict(response.headers)
                async for piece in response.aiter_raw():
                    now = time.monotonic()
                    first_s, gap_s, last = first_s or now - began, max(gap_s, now - (last or now)), now
                    self.received += len(piece)
                    room = MAX_BYTES - len(received)
                    received += piece[:room]
                    if len(piece) > room:
                        error = f"too large: more than {MAX_BYTES:,} bytes"
                    if error := error or (watch(piece) if watch else ""):
                        break
        except TimeoutError:
            error = f"{HANGS} {deadline_s:.3g} s"
        except (httpx2.HTTPError, OSError, MemoryError) as problem:
            seen: BaseException | None = problem
            while seen is not None:
                if limit := exhausted_limit(seen):
                    raise MachineLimit(f"{THIS_MACHINE}: its limits are too low: {limit}") from None
                seen = seen.__cause__ or seen.__context__
            if not isinstance(problem, httpx2.HTTPError):
                raise
            error = _transport_error(problem, url)
        except (httpx2.InvalidURL, UnicodeError) as problem:
            error = f"not a valid URL: {problem}"
        return HttpExchange(
            method=method,
            url=url,
            request=body[:2000].decode(errors="replace") if isinstance(body, bytes) else body,
            status=status,
            headers={key.lower(): hide_known_keys(value)[:500] for key, value in reply_headers.items()},
            response=decode_reply(received, status),
            seconds=time.monotonic() - began,
            first_s=first_s,
            gap_s=gap_s,
            error=error,
        )


def _transport_error(problem: httpx2.HTTPError, url: str) -> str:
    """One line for a failed connection or a broken reply."""
    if isinstance(problem, httpx2.ConnectTimeout):
        return f"cannot connect to {url}: no answer within {CONNECT_S:g} s"
    if isinstance(problem, httpx2.TimeoutException):
        return f"no end: {exception_text(problem)}"
    text = http.failure_text(problem, url)
    if text.startswith("TLS: "):
        return text
    if isinstance(problem, httpx2.ConnectError):
        return f"cannot connect to {url}: {text}"
    invalid = isinstance(problem, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)
    return f"not a valid URL: {text}" if invalid else f"broken off: {text}"


def limit_events(max_tokens: int) -> StreamWatch:
    """Watch that ends a stream which goes on long after its token limit."""
    parser, seen, most = EventParser(), 0, 2 * max_tokens + SLACK_EVENTS

    def watch(piece: bytes) -> str:
        nonlocal seen
        seen += len(parser.feed(piece))
        return f"no end: {seen} events for {max_tokens} tokens at most" if seen > most else ""

    return watch
