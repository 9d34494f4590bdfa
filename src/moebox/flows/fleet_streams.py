"""Run many concurrent streams through one endpoint, and follow each to its end."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.stream.exchange import StreamExchange

CALM_S = 3.0  # without a new stream: the others wait in a queue


@dataclass(slots=True, kw_only=True)
class FollowedStream:
    name: str  # sent as X-Request-Id, for the logs of routers and engines
    member: str = ""  # that serves it, if the router names it
    chunks: int = 0
    finished: bool = False
    error: str = ""
    over: bool = False

    @property
    def is_lost(self) -> bool:
        """It ended without being finished."""
        return self.over and not self.finished


def run_streams(
    endpoint: Endpoint,
    *,
    streams: int,
    tokens: int,
    deadline_s: float,
    member_header: str = "",
    disturb: Callable[[list[FollowedStream]], None] = lambda streams: None,
) -> list[FollowedStream]:
    """Start streams, call `disturb` once they have begun or wait in a queue, and follow all to the end."""
    followed = [FollowedStream(name=f"moebox-{int(time.time())}-{number:03d}") for number in range(streams)]

    def follow(stream: FollowedStream) -> None:
        number = stream.name.rpartition("-")[2]  # first, so that no two prompts share a prefix
        text = f"{number} is the number of this request. Count upwards from one, a number a line, and do not stop."
        body: dict[str, object] = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
        body |= {"max_tokens": tokens, "ignore_eos": True}
        headers = {"X-Request-Id": stream.name}
        try:
            with StreamExchange(endpoint, body, timeout_s=deadline_s, total_s=deadline_s, headers=headers) as exchange:
                for _, event in exchange:
                    stream.member = exchange.headers.get(member_header, "")
                    stream.error = stream.error or event.error
                    stream.chunks += 1
                stream.finished = exchange.done
        except ExternalError as problem:
            stream.error = stream.error or problem.message
        finally:
            stream.over = True
            if not stream.finished:
                stream.error = stream.error or "ended without [DONE]"

    threads = [threading.Thread(target=follow, args=(stream,), daemon=True) for stream in followed]
    for thread in threads:
        thread.start()
    _wait_for_starts(followed, deadline_s)
    disturb(followed)
    for thread in threads:
        thread.join()
    return followed


def _wait_for_starts(streams: Sequence[FollowedStream], deadline_s: float) -> None:
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
        time.sleep(0.02)
