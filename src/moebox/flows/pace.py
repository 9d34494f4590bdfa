"""A short measurement, long enough to compare two settings: rounds of streams side by side."""

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from moebox import stream
from moebox.core.endpoint import Endpoint
from moebox.errors import Outside
from moebox.phantom.tasks import FAMILIES
from moebox.stream.awake import Awake

ROUNDS = 5  # measurements per setting: the fewest that make a useful interval
WARM = 1  # rounds thrown away: graphs are captured and caches filled by the first
NAPS = 3  # rounds measured again because the machine slept
TOKENS = 128  # asked of each stream
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Output tokens a second of each round, over all its streams, and the median time to the first token."""

    concurrency: int
    tok_s: tuple[float, ...]
    ttft_ms: tuple[float, ...]

    @property
    def output_tok_s(self) -> float:
        """The middle round's."""
        return statistics.median(self.tok_s)

    @property
    def mean_ttft_ms(self) -> float:
        """Over all rounds."""
        return statistics.fmean(self.ttft_ms)


def pace(endpoint: Endpoint, *, concurrency: int = 1, rounds: int = ROUNDS, tokens: int = TOKENS) -> Pace:
    """Measure; Outside when the server does not answer."""
    rng = random.Random()
    speeds: list[float] = []
    firsts: list[float] = []
    warm, naps = WARM, NAPS
    with ThreadPoolExecutor(concurrency) as pool, Awake() as awake:
        while len(speeds) < rounds:
            bodies = [_body(endpoint, rng, tokens) for _ in range(concurrency)]
            began, away = time.monotonic(), awake.away_s
            try:
                replies = _round(endpoint, bodies, pool)
            except Outside:
                if awake.away_s == away or not naps:
                    raise
            seconds = time.monotonic() - began
            if awake.away_s > away and naps:  # the machine slept: this round says nothing
                naps -= 1
                continue
            if warm:
                warm -= 1
                continue
            made = sum(reply.completion_tokens or len(reply.times_s) for reply in replies)
            speeds.append(made / seconds)
            firsts.append(statistics.median(1e3 * (reply.ttft_s or 0.0) for reply in replies))
    return Pace(concurrency=concurrency, tok_s=tuple(speeds), ttft_ms=tuple(firsts))


def _round(endpoint: Endpoint, bodies: list[dict[str, object]], pool: ThreadPoolExecutor) -> list[stream.Reply]:
    """All streams of a round, at once; Outside when one of them breaks off."""
    replies = list(pool.map(lambda body: stream.ask(endpoint, body, timeout_s=PATIENCE_S), bodies))
    wrong = next((reply for reply in replies if reply.error or reply.status != 200 or not reply.times_s), None)
    if wrong:
        raise Outside(f"{endpoint.base_url} broke off while it was measured: {wrong.error or wrong.status}")
    return replies


def _body(endpoint: Endpoint, rng: random.Random, tokens: int) -> dict[str, object]:
    """A story to tell, fresh each time so that no prefix cache answers for the model."""
    task = FAMILIES["story"].draw(rng, thinking=False)
    return {
        "model": endpoint.model,
        "messages": list(task.messages),
        "temperature": 0,
        "max_tokens": tokens,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"thinking": False, "enable_thinking": False},
    }
