"""Short speed measurements to compare two settings: rounds of concurrent streams, with new prompts each."""

import random
import re
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.stream.awake import AwakeClock
from moebox.stream.exchange import StreamReply, send_request

T = TypeVar("T")

ROUNDS = 5  # measurements per setting: the fewest that make a useful interval
WARM = 1  # discarded rounds: graphs are captured and caches filled by the first
MAX_SLEEPS = 3  # rounds measured again because the machine slept
TOKENS = 128  # per stream
PATIENCE_S = 600.0
# vLLM's and llama.cpp's counters have the same name behind their prefix; SGLang has a gauge.
COUNTER = re.compile(r"^\w+:spec_decode_num_(draft|accepted)_tokens(?:_total)?(?:\{[^}]*\})? ([\d.e+]+)$", re.MULTILINE)
GAUGE = re.compile(r"^sglang:spec_accept_rate(?:\{[^}]*\})? ([\d.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRounds:
    """Output tokens per second of each round, over all its streams, and the median time to the first token."""

    concurrency: int
    tok_s: tuple[float, ...]
    ttft_ms: tuple[float, ...]
    what: Literal["decode", "prefill"] = "decode"  # of prefill, prompt tokens per second

    @property
    def output_tok_s(self) -> float:
        return statistics.median(self.tok_s)

    @property
    def mean_ttft_ms(self) -> float:
        return statistics.fmean(self.ttft_ms)


class SpeedMeter:
    """Measures one server a round at a time, so that two can be measured in turn."""

    def __init__(self, endpoint: Endpoint, *, concurrency: int, tokens: int = TOKENS, prompt_words: int = 0) -> None:
        self.endpoint, self.concurrency, self.prompt_words = endpoint, concurrency, prompt_words
        self.tokens = 1 if prompt_words else tokens  # of a long prompt, only the reading is measured
        self.full_length = True  # the server accepts `ignore_eos`; the first round finds out
        self._rng = random.Random()
        self._pool = ThreadPoolExecutor(concurrency)
        self._tok_s: list[float] = []
        self._ttft_ms: list[float] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def run_round(self, *, keep: bool = True) -> None:
        """Measure one round. Raise ExternalError if the server does not answer."""
        bodies: list[dict[str, object]] = []
        for _ in range(self.concurrency):
            if self.prompt_words:  # new prompts, so that no prefix is cached
                words = " ".join(str(self._rng.randrange(100, 1000)) for _ in range(self.prompt_words))
                messages: list[object] = [{"role": "user", "content": words}]
            else:
                messages = list(FAMILIES["story"].draw(self._rng, thinking=False).messages)
            body: dict[str, object] = {
                "model": self.endpoint.model,
                "messages": messages,
                "temperature": 0,
                "max_tokens": self.tokens,
                "stream_options": {"include_usage": True},
                "chat_template_kwargs": {"thinking": False, "enable_thinking": False},
            }
            bodies.append({**body, "ignore_eos": True} if self.full_length else body)
        began = time.monotonic()
        replies = self._send(bodies)
        if self.full_length and any(reply.status in (400, 422) for reply in replies):
            self.full_length = False  # the server accepts OpenAI's own fields only
            for body in bodies:
                del body["ignore_eos"]
            replies = self._send(bodies)
        seconds = time.monotonic() - began
        for reply in replies:
            if reply.error or reply.status != 200 or not reply.times_s:
                problem = reply.error or reply.status
                raise ExternalError(f"{self.endpoint.base_url} broke off while it was measured: {problem}")
        if keep:
            if self.prompt_words:
                counts = [reply.prompt_tokens or self.prompt_words for reply in replies]
            else:
                counts = [reply.completion_tokens or len(reply.times_s) for reply in replies]
            self._tok_s.append(sum(counts) / seconds)
            self._ttft_ms.append(statistics.median(1e3 * (reply.ttft_s or 0.0) for reply in replies))

    def _send(self, bodies: list[dict[str, object]]) -> list[StreamReply]:
        return list(self._pool.map(lambda body: send_request(self.endpoint, body, timeout_s=PATIENCE_S), bodies))

    @property
    def round_count(self) -> int:
        return len(self._tok_s)

    def keep_rounds(self, count: int) -> None:
        del self._tok_s[count:]
        del self._ttft_ms[count:]

    def speed_rounds(self) -> SpeedRounds:
        return SpeedRounds(
            concurrency=self.concurrency,
            tok_s=tuple(self._tok_s),
            ttft_ms=tuple(self._ttft_ms),
            what="prefill" if self.prompt_words else "decode",
        )


def measure_speed(
    endpoint: Endpoint, *, concurrency: int = 1, rounds: int = ROUNDS, tokens: int = TOKENS, prompt_words: int = 0
) -> SpeedRounds:
    """Measure one server. Raise ExternalError if it does not answer."""
    meter = SpeedMeter(endpoint, concurrency=concurrency, tokens=tokens, prompt_words=prompt_words)
    with meter, AwakeClock() as awake:
        for _ in range(WARM):
            meter.run_round(keep=False)
        for _ in range(rounds):
            _run_rounds(awake, [meter])
        return meter.speed_rounds()


def alternate_order(number: int, pair: tuple[T, T]) -> tuple[T, T]:
    """A B, B A, A B …, so that a drift affects both alike."""
    a, b = pair
    return (b, a) if number % 2 else (a, b)


def measure_in_turn(a: SpeedMeter, b: SpeedMeter, *, rounds: int) -> tuple[SpeedRounds, SpeedRounds]:
    """Measure two servers, or one twice, in alternating pairs of rounds."""
    for meter in (a, b):
        for _ in range(WARM):
            meter.run_round(keep=False)
    with AwakeClock() as awake:
        for number in range(rounds):
            _run_rounds(awake, alternate_order(number, (a, b)))
    return a.speed_rounds(), b.speed_rounds()


def _run_rounds(awake: AwakeClock, meters: Sequence[SpeedMeter]) -> None:
    """Run one round of each meter; repeat them if the machine slept meanwhile."""
    for sleeps in range(MAX_SLEEPS + 1):
        away = awake.away_s
        counts = [meter.round_count for meter in meters]
        problem: ExternalError | None = None
        try:
            for meter in meters:
                meter.run_round()
        except ExternalError as failure:
            problem = failure
        if awake.away_s == away or sleeps == MAX_SLEEPS:
            break
        for meter, count in zip(meters, counts, strict=True):
            meter.keep_rounds(count)
    if problem:
        raise problem


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """The engine's counters of draft tokens; zeros if it has none."""

    drafted: float = 0.0
    accepted: float = 0.0
    rate: float | None = None  # SGLang's own, of its last steps


def read_draft_counts(endpoint: Endpoint) -> DraftCounts:
    page = http.get(f"{endpoint.server_url}/metrics", headers=endpoint.headers)
    return parse_draft_counts(page.text if page.ok else "")


def parse_draft_counts(text: str) -> DraftCounts:
    """The counters in a page of Prometheus metrics."""
    sums = {"draft": 0.0, "accepted": 0.0}
    for kind, value in COUNTER.findall(text):
        sums[kind] += float(value)
    gauge = GAUGE.search(text)
    return DraftCounts(drafted=sums["draft"], accepted=sums["accepted"], rate=float(gauge[1]) if gauge else None)


def acceptance_rate(before: DraftCounts, after: DraftCounts) -> float | None:
    """The share of draft tokens that were accepted in between, or None if there were none."""
    drafted = after.drafted - before.drafted
    return (after.accepted - before.accepted) / drafted if drafted > 0 else after.rate
