"""A short measurement, long enough to compare two settings: rounds of streams side by side, fresh prompts each."""

import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from moebox import stream
from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.stream.awake import AwakeClock

T = TypeVar("T")

ROUNDS = 5  # measurements per setting: the fewest that make a useful interval
WARM = 1  # rounds thrown away: graphs are captured and caches filled by the first
NAPS = 3  # rounds measured again because the machine slept
TOKENS = 128  # asked of each stream
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRounds:
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


class SpeedMeter:
    """Measures one server a round at a time, so that two can be measured in turn."""

    def __init__(self, endpoint: Endpoint, *, concurrency: int, tokens: int = TOKENS) -> None:
        self.endpoint, self.concurrency, self.tokens = endpoint, concurrency, tokens
        self.full_length = True  # `ignore_eos` is taken; learnt by the first round
        self._rng = random.Random()
        self._pool = ThreadPoolExecutor(concurrency)
        self._tok_s: list[float] = []
        self._ttft_ms: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def run_round(self, *, keep: bool = True) -> None:
        """One round; Outside when the server does not answer. Nothing is kept of a warm-up."""
        bodies = [self._body() for _ in range(self.concurrency)]
        began = time.monotonic()
        replies = self._replies(bodies)
        seconds = time.monotonic() - began
        if not keep:
            return
        self._tok_s.append(sum(map(_tokens, replies)) / seconds)
        self._ttft_ms.append(statistics.median(1e3 * (reply.ttft_s or 0.0) for reply in replies))

    @property
    def round_count(self) -> int:
        """How many are kept."""
        return len(self._tok_s)

    def keep_rounds(self, count: int) -> None:
        """Keep the first `count` rounds: the machine slept through what came after."""
        del self._tok_s[count:]
        del self._ttft_ms[count:]

    def speeds(self) -> SpeedRounds:
        """All rounds that were kept."""
        return SpeedRounds(concurrency=self.concurrency, tok_s=tuple(self._tok_s), ttft_ms=tuple(self._ttft_ms))

    def _replies(self, bodies: list[dict[str, object]]) -> list[stream.StreamReply]:
        """All streams of a round, at once; Outside when one of them breaks off."""
        replies = self._ask(bodies)
        if self.full_length and any(reply.status in (400, 422) for reply in replies):
            self.full_length = False  # a server that knows OpenAI's own fields only
            for body in bodies:
                del body["ignore_eos"]
            replies = self._ask(bodies)
        for reply in filter(_broken, replies):
            raise ExternalError(
                f"{self.endpoint.base_url} broke off while it was measured: {reply.error or reply.status}"
            )
        return replies

    def _ask(self, bodies: list[dict[str, object]]) -> list[stream.StreamReply]:
        return list(self._pool.map(lambda body: stream.send_request(self.endpoint, body, timeout_s=PATIENCE_S), bodies))

    def _body(self) -> dict[str, object]:
        """A story to tell, fresh each time so that no prefix cache answers for the model, and of the same length."""
        task = FAMILIES["story"].draw(self._rng, thinking=False)
        body: dict[str, object] = {
            "model": self.endpoint.model,
            "messages": list(task.messages),
            "temperature": 0,
            "max_tokens": self.tokens,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"thinking": False, "enable_thinking": False},
        }
        return {**body, "ignore_eos": True} if self.full_length else body


def _tokens(reply: stream.StreamReply) -> int:
    return reply.completion_tokens or len(reply.times_s)


def _broken(reply: stream.StreamReply) -> bool:
    return bool(reply.error) or reply.status != 200 or not reply.times_s


def measure_speed(
    endpoint: Endpoint, *, concurrency: int = 1, rounds: int = ROUNDS, tokens: int = TOKENS
) -> SpeedRounds:
    """Measure one server; Outside when it does not answer."""
    with SpeedMeter(endpoint, concurrency=concurrency, tokens=tokens) as pacer, AwakeClock() as awake:
        for _ in range(WARM):
            pacer.run_round(keep=False)
        for _ in range(rounds):
            _awake(awake, [pacer])
        return pacer.speeds()


def alternate_order(number: int, pair: tuple[T, T]) -> tuple[T, T]:
    """A B, B A, A B …: what drifts meets both alike."""
    a, b = pair
    return (b, a) if number % 2 else (a, b)


def measure_in_turn(a: SpeedMeter, b: SpeedMeter, *, rounds: int) -> tuple[SpeedRounds, SpeedRounds]:
    """Measure two servers, or one twice, in pairs of rounds: A B, B A, A B …, so that what drifts meets both alike."""
    for pacer in (a, b):
        for _ in range(WARM):
            pacer.run_round(keep=False)
    with AwakeClock() as awake:
        for number in range(rounds):
            _awake(awake, alternate_order(number, (a, b)))
    return a.speeds(), b.speeds()


def _awake(awake: AwakeClock, pacers: Sequence[SpeedMeter]) -> None:
    """A round of each; again where the machine slept through it, which says nothing of the servers."""
    for nap in range(NAPS + 1):
        away = awake.away_s
        counts = [pacer.round_count for pacer in pacers]
        problem = _round(pacers)
        if awake.away_s == away or nap == NAPS:
            break
        for pacer, count in zip(pacers, counts, strict=True):
            pacer.keep_rounds(count)
    if problem:
        raise problem


def _round(pacers: Sequence[SpeedMeter]) -> ExternalError | None:
    """One round of each, and what went wrong with it."""
    try:
        for pacer in pacers:
            pacer.run_round()
    except ExternalError as problem:
        return problem
    return None
