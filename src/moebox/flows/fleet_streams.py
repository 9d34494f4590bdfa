"""Run many concurrent streams through one endpoint, and follow each to its end."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import httpx2

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.errors import exception_text
from moebox.stream.sse import EventParser, is_done_mark

CONNECT_S = 10.0
CALM_S = 3.0  # without a new stream: the others wait in a queue


@dataclass(slots=True, kw_only=True)
class FollowedStream:
    name: str  # sent as X-Request-Id, for the logs of routers and engines
    member: str = ""  # that serves it, if the router names it
    chunks: int = 0
    first_s: float = 0.0  # time of the first event since the start
    finished: bool = False
    error: str = ""
    over: bool = False

    @property
    def is_lost(self) -> bool:
        """It ended without being finished."""
        return self.over and not self.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsOutcome:
    streams: tuple[FollowedStream, ...]
    disturbed_s: float | None  # time of the disturbance since the start

    @property
    def lost_streams(self) -> tuple[FollowedStream, ...]:
        return tuple(stream for stream in self.streams if stream.is_lost)

    @property
    def finished_count(self) -> int:
        return sum(stream.finished for stream in self.streams)


def request_ids(streams: Iterable[FollowedStream]) -> tuple[str, ...]:
    return tuple(stream.name for stream in streams)


async def run_streams(
    endpoint: Endpoint,
    *,
    streams: int,
    tokens: int,
    deadline_s: float,
    member_header: str = "",
    disturb: Callable[[list[FollowedStream]], Awaitable[None]] | None = None,
) -> StreamsOutcome:
    """Start streams, call `disturb` once they have begun or wait in a queue, and follow all to the end."""
    zero = time.monotonic()
    followed = [FollowedStream(name=f"moebox-{int(time.time())}-{number:03d}") for number in range(streams)]
    timeout = httpx2.Timeout(deadline_s, connect=CONNECT_S)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    disturbed: float | None = None
    tls = http.trusted_certificates(endpoint.base_url)
    async with httpx2.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=tls) as client:
        tasks = [
            asyncio.create_task(_follow_stream(client, endpoint, stream, tokens, zero, member_header))
            for stream in followed
        ]
        if disturb is not None:
            await _wait_for_starts(followed, deadline_s)
            disturbed = time.monotonic() - zero
            await disturb(followed)
        _, late = await asyncio.wait(tasks, timeout=deadline_s)
        for task in late:
            followed[tasks.index(task)].error = f"no end within {deadline_s:g} s"
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return StreamsOutcome(streams=tuple(followed), disturbed_s=disturbed)


async def _wait_for_starts(streams: list[FollowedStream], deadline_s: float) -> None:
    """Wait until every stream has begun, or no further one has for a while."""
    until = time.monotonic() + deadline_s
    seen, since = 0, time.monotonic()
    while time.monotonic() < until:
        begun = sum(stream.chunks > 0 or stream.over for stream in streams)
        if begun != seen:
            seen, since = begun, time.monotonic()
        calm = seen > 0 and time.monotonic() - since > CALM_S
        if begun == len(streams) or calm:
            return
        await asyncio.sleep(0.02)


async def _follow_stream(
    client: httpx2.AsyncClient, endpoint: Endpoint, stream: FollowedStream, tokens: int, zero: float, member_header: str
) -> None:
    number = stream.name.rpartition("-")[2]  # first, so that no two prompts share a prefix
    text = f"{number} is the number of this request. Count upwards from one, a number a line, and do not stop."
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}], "stream": True}
    body |= {"max_tokens": tokens, "ignore_eos": True}
    headers = {**endpoint.headers, "X-Request-Id": stream.name}
    try:
        async with client.stream("POST", f"{endpoint.base_url}/chat/completions", json=body, headers=headers) as reply:
            stream.member = reply.headers.get(member_header, "") if member_header else ""
            if reply.status_code != 200:
                stream.error = f"HTTP {reply.status_code}"
                return
            parser = EventParser()
            async for block in reply.aiter_bytes():
                for _, data in parser.feed(block):
                    _count_event(stream, data, zero)
                stream.error = stream.error or parser.problem
                if stream.finished or parser.problem:  # some servers keep the connection open
                    return
            for _, data in parser.close():
                _count_event(stream, data, zero)
    except httpx2.HTTPError as problem:
        stream.error = exception_text(problem)
    finally:
        stream.over = True
        if not stream.finished:
            stream.error = stream.error or "ended without [DONE]"


def _count_event(stream: FollowedStream, data: bytes, zero: float) -> None:
    if is_done_mark(data):
        stream.finished = True
        return
    if b'"error"' in data and b'"choices"' not in data:
        stream.error = "an error in the stream"
    stream.first_s = stream.first_s or time.monotonic() - zero
    stream.chunks += 1
