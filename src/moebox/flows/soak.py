"""A soak: many requests at once with prompts and replies of mixed lengths, some of them cancelled in the middle.

It finds engines that answer one request and die, hang or leak slots under many.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from moebox.core.endpoint import Endpoint
from moebox.core.upgrade_result import SoakResult
from moebox.errors import ExternalError
from moebox.stream.exchange import StreamExchange

CANCELLED_SHARE = 0.25  # of the requests
ENOUGH_FAILURES = 3  # the rest would wait for the same
MAX_REPLY = 96  # tokens


def soak_endpoint(
    endpoint: Endpoint, *, requests: int, concurrency: int, most_words: int, silence_s: float, seed: int
) -> SoakResult:
    """Send the requests of a seed, then one more: an engine that lost its slots to cancelled streams fails that."""
    began, failures = time.monotonic(), list[str]()
    plans = _draw_requests(requests, most_words, seed)

    def send(plan: tuple[int, int, int]) -> None:
        if len(failures) >= ENOUGH_FAILURES:
            return
        if problem := _send_request(endpoint, plan, silence_s):
            failures.append(problem)

    pool = ThreadPoolExecutor(concurrency)
    try:
        list(pool.map(send, plans))
    finally:  # an interrupted soak does not wait for its streams: they end with the engine
        pool.shutdown(wait=False, cancel_futures=True)
    if not failures and (problem := _send_request(endpoint, (8, 8, 0), silence_s)):
        failures.append(f"after the load: {problem}")
    cancelled = sum(bool(plan[2]) for plan in plans)
    return SoakResult(
        requests=requests, cancelled=cancelled, failures=tuple(failures), seconds=time.monotonic() - began
    )


def _draw_requests(count: int, most_words: int, seed: int) -> Sequence[tuple[int, int, int]]:
    """Words of the prompt, tokens of the reply, and events after which it is cancelled (0: never) of each request."""
    rng = random.Random(seed)
    plans = []
    for _ in range(count):
        tokens = rng.randint(1, MAX_REPLY)
        cancel = rng.randint(1, max(1, tokens // 2)) if rng.random() < CANCELLED_SHARE else 0
        plans.append((round(4 * (most_words / 4) ** rng.random()), tokens, cancel))
    return plans


def _send_request(endpoint: Endpoint, plan: tuple[int, int, int], silence_s: float) -> str:
    """Send one request. Return why it failed, or ""."""
    words, tokens, cancel = plan
    text = " ".join(str(100 + number % 900) for number in range(words))
    body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    seen = 0
    try:
        with StreamExchange(endpoint, body, timeout_s=silence_s) as exchange:
            for _, event in exchange:
                if event.error:
                    return event.error
                seen += bool(event.kind)
                if cancel and seen >= cancel:
                    return ""
            return "" if exchange.status == 200 and exchange.done else f"status {exchange.status}, the stream broke off"
    except ExternalError as problem:
        return problem.message
