"""One HTTP exchange, bounded in time and in memory, with everything kept that is needed as evidence.

Nothing here raises because of what a server does: what went wrong is said in `Exchange.error`.
"""

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.verdict import HttpExchange
from moebox.errors import exception_text
from moebox.redact import decode_reply, hide_known_keys
from moebox.stream.awake import AwakeClock

MAX_BYTES = 8 * 2**20  # of one answer; the longest honest one here is a few hundred kB
CONNECT_S = 10.0
MAX_RETRY_AFTER_S = 20.0  # honoured of one Retry-After
DISCONNECTED = "we hung up"  # the error of an exchange that this side ended
MAX_RETRIES = 4  # times a 429 or 503 is waited out, or a request repeated during which this machine slept

StreamWatch = Callable[[bytes], str]  # sees each piece of a stream; a word in return ends it, and is the error


class ExchangeClient:
    """Talks to one server. `deadline_s` bounds every exchange and shrinks when the server lets one pass."""

    def __init__(self, endpoint: Endpoint, *, deadline_s: float = 300.0, awake: AwakeClock | None = None) -> None:
        self.endpoint = endpoint
        self._awake = awake or AwakeClock()
        self.deadline_s = deadline_s
        self.ends_at: float | None = None  # on the monotonic clock: when every exchange must be over
        timeout = httpx2.Timeout(None, connect=CONNECT_S)  # the deadline bounds the rest
        # A connection for each request: llama.cpp hangs up on kept ones after a while, which would look like a fault
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        # identity: a compressed answer could be small on the wire and huge in memory
        headers = {"Accept-Encoding": "identity", "User-Agent": "moebox"}
        tls = http.trusted_certificates(endpoint.base_url)
        self._http = httpx2.AsyncClient(timeout=timeout, limits=limits, headers=headers, trust_env=False, verify=tls)
        one = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
        self._kept = httpx2.AsyncClient(timeout=timeout, limits=one, headers=headers, trust_env=False, verify=tls)

    async def __aenter__(self) -> "ExchangeClient":
        self._awake.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._awake.__exit__(None, None, None)
        await self._http.aclose()
        await self._kept.aclose()

    async def get(self, url: str) -> HttpExchange:
        """GET, with patience for a server that is busy."""
        return await self._patiently(_Sent("GET", url))

    async def post(
        self,
        url: str,
        body: Any,
        *,
        headers: dict[str, str] | None = None,
        watch: StreamWatch | None = None,
        deadline_s: float | None = None,
        keep_alive: bool = False,
    ) -> HttpExchange:
        """POST `body` as JSON (bytes go as they are), with patience for a server that is busy.

        `kept` sends it over one connection that is kept for the next such request.
        """
        return await self._patiently(_Sent("POST", url, body, headers or {}, watch, deadline_s, keep_alive))

    async def post_and_disconnect(self, url: str, body: Any, *, pieces: int = 2) -> HttpExchange:
        """POST a stream and hang up after `after` pieces of it."""
        seen = itertools.count(1)
        return await self._once(_Sent("POST", url, body, {}, lambda _: DISCONNECTED if next(seen) >= pieces else ""))

    async def _patiently(self, sent: "_Sent") -> HttpExchange:
        """Send, and while the answer is "not now", wait as long as it asks, within bounds, and send again."""
        for wait in range(MAX_RETRIES + 1):
            away_s = self._awake.away_s
            exchange = await self._once(sent)
            if exchange.error and self._awake.away_s > away_s and wait < MAX_RETRIES:
                continue  # nobody was here to receive it: that is no fault of the server's
            if exchange.status not in (429, 503) or wait == MAX_RETRIES or self._left() <= 0:
                break
            pause = _asked_wait(exchange.headers.get("retry-after", ""), wait)
            await asyncio.sleep(max(0.0, min(pause, self._left())))
        if exchange.error.startswith("no end"):
            self.deadline_s = max(10.0, self.deadline_s / 2)  # a server that hangs once is not waited for as long again
        return exchange

    def _left(self) -> float:
        return math.inf if self.ends_at is None else self.ends_at - time.monotonic()

    async def _once(self, sent: "_Sent") -> HttpExchange:
        began = time.monotonic()
        first = _First(began)
        got = bytearray()
        status, answered, error = 0, {}, ""
        raw = sent.raw
        headers = {**self.endpoint.headers, **sent.headers, **({"Content-Type": "application/json"} if raw else {})}
        deadline_s = max(0.05, min(sent.deadline_s or self.deadline_s, self.deadline_s, self._left()))
        http = self._kept if sent.kept else self._http
        try:
            async with (
                asyncio.timeout(deadline_s),
                http.stream(sent.method, sent.url, content=raw, headers=headers) as response,
            ):
                status, answered = response.status_code, dict(response.headers)
                error = await _read(response, got, first, sent.watch)
        except TimeoutError:
            error = f"no end within {deadline_s:.3g} s"
        except httpx2.HTTPError as problem:
            error = _failure(problem, sent.url)
        except (httpx2.InvalidURL, UnicodeError) as problem:
            error = f"not a URL that can be asked: {problem}"
        return HttpExchange(
            method=sent.method,
            url=sent.url,
            request=sent.shown,
            status=status,
            headers={key.lower(): hide_known_keys(value)[:500] for key, value in answered.items()},
            response=decode_reply(got, status),
            seconds=time.monotonic() - began,
            first_s=first.seconds,
            error=error,
        )


@dataclass(frozen=True, slots=True)
class _Sent:
    """One request, to be sent once or several times."""

    method: str
    url: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    watch: StreamWatch | None = None
    deadline_s: float | None = None
    kept: bool = False

    @property
    def raw(self) -> bytes | None:
        """The body as it goes over the wire."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()

    @property
    def shown(self) -> Any:
        """The body as it is kept for evidence."""
        return self.body[:2000].decode(errors="replace") if isinstance(self.body, bytes) else self.body


class _First:
    """When the first piece of a body came."""

    def __init__(self, began: float) -> None:
        self.began, self.seconds = began, 0.0

    def came(self) -> None:
        """A piece came."""
        self.seconds = self.seconds or time.monotonic() - self.began


async def _read(response: httpx2.Response, got: bytearray, first: _First, watch: StreamWatch | None) -> str:
    """Collect the body; "" or the reason to give up on it."""
    async for piece in response.aiter_raw():
        first.came()
        room = MAX_BYTES - len(got)
        got += piece[:room]
        if len(piece) > room:
            return f"too large: more than {MAX_BYTES:,} bytes"
        if watch and (reason := watch(piece)):
            return reason
    return ""


def _asked_wait(header: str, attempt: int) -> float:
    """Seconds to wait before the next try: what Retry-After says within bounds, else a growing pause."""
    try:
        asked = float(header)
    except ValueError:
        asked = 0.5 * 2**attempt
    return min(max(asked, 0.05), MAX_RETRY_AFTER_S)


def _failure(problem: httpx2.HTTPError, url: str) -> str:
    """A transport failure in words."""
    if isinstance(problem, httpx2.ConnectTimeout):
        return f"cannot connect to {url}: no answer within {CONNECT_S:g} s"
    if isinstance(problem, httpx2.TimeoutException):
        return f"no end: {exception_text(problem)}"
    text = http.failure_text(problem, url)
    if text.startswith("TLS: "):
        return text
    if isinstance(problem, httpx2.ConnectError):
        return f"cannot connect to {url}: {text}"
    if isinstance(problem, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return f"not a URL that can be asked: {text}"
    return f"broken off: {text}"
