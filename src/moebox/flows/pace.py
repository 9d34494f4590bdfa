"""Short speed measurements to compare two settings: rounds of concurrent streams, with new prompts each."""

import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from moebox import http
from moebox.core.endpoint import Endpoint
from moebox.core.metrics import parse_prometheus
from moebox.core.upgrade_result import SpeedUnit
from moebox.core.verdict import Gain
from moebox.errors import ExternalError
from moebox.loose import Document
from moebox.phantom.questions import draw_question
from moebox.stream.awake import AwakeClock
from moebox.stream.exchange import StreamExchange, StreamReply

T = TypeVar("T")
U = TypeVar("U")
ROUNDS = 5  # measurements per setting: the fewest that make a useful interval
WARM = 1  # discarded rounds: graphs are captured and caches filled by the first
MAX_SLEEPS = 3  # rounds measured again because the machine slept
TOKENS = 128  # per stream
LEAST_ROUND_S = 1.0  # of reading prompts; one short prompt takes 0.1 s and varies by a tenth
PATIENCE_S = 600.0
SETTLED = 0.03  # share of a speed; the ranges of two such speeds that are the same stay within 5% or so


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRounds:
    """Output tokens per second of each round, over all its streams, and the median time to the first token."""

    concurrency: int
    tok_s: tuple[float, ...]
    ttft_ms: tuple[float, ...]
    what: Literal["decode", "prefill"] = "decode"  # of prefill, prompt tokens per second
    unit: SpeedUnit = "tok/s"

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
        self.unit: SpeedUnit = "tok/s"  # "event/s" once a reply has no usage; "char/s" can be compared with any server
        self.rounds: list[tuple[float, float]] = []  # speeds, and milliseconds to the first token
        self._rng = random.Random()

    def run_round(self, *, keep: bool = True) -> None:
        """Measure one round; short prompts are sent until LEAST_ROUND_S. Raise ExternalError if the server fails."""
        replies: list[StreamReply] = []
        began = time.monotonic()
        while True:
            answers = self._send_requests()
            if self.full_length and any(reply.status in (400, 422) for reply in answers):
                self.full_length = False  # the server accepts OpenAI's own fields only
                began, answers = time.monotonic(), self._send_requests()
            for reply in answers:
                if reply.error or reply.status != 200 or not reply.times_s:
                    problem = reply.error or reply.status
                    raise ExternalError(f"{self.endpoint.base_url} broke off while it was measured: {problem}")
            replies += answers
            seconds = time.monotonic() - began
            if not self.prompt_words or seconds >= LEAST_ROUND_S:
                break
        counts = [(reply.prompt_tokens if self.prompt_words else reply.completion_tokens) or 0 for reply in replies]
        if self.unit == "char/s":
            counts = [self.prompt_words or reply.chars for reply in replies]
        elif not all(counts):
            self.unit, counts = "event/s", [self.prompt_words or len(reply.times_s) for reply in replies]
        if keep:
            self.rounds.append((sum(counts) / seconds, statistics.median(1e3 * reply.times_s[0] for reply in replies)))

    def _send_requests(self) -> list[StreamReply]:
        """Send the requests of a round at once; prompts are new, so that no prefix is cached."""
        body: Document = {"model": self.endpoint.model, "temperature": 0, "max_tokens": self.tokens}
        body |= {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}
        body |= {"stream_options": {"include_usage": True}, **({"ignore_eos": True} if self.full_length else {})}
        chats = [self._draw_chat() for _ in range(self.concurrency)]

        def read_reply(chat: Sequence[object]) -> StreamReply:
            return StreamExchange(self.endpoint, {**body, "messages": chat}, timeout_s=PATIENCE_S).read_reply()

        return do_at_once(read_reply, chats, at_once=self.concurrency)

    def _draw_chat(self) -> Sequence[object]:
        if not self.prompt_words:
            return draw_question("story", self._rng, thinking=False).messages
        words = " ".join(str(self._rng.randrange(100, 1000)) for _ in range(self.prompt_words))
        return [{"role": "user", "content": words}]

    @property
    def is_settled(self) -> bool:
        """Whether the mean of the rounds is known within SETTLED."""
        logs, count = [math.log(tok_s) for tok_s, _ in self.rounds], len(self.rounds)
        return count > 1 and student_t(count - 1, CONFIDENCE) * statistics.stdev(logs) < SETTLED * count**0.5

    def speed_rounds(self) -> SpeedRounds:
        tok_s, ttft_ms = (tuple(each[place] for each in self.rounds) for place in (0, 1))
        what: Literal["decode", "prefill"] = "prefill" if self.prompt_words else "decode"
        return SpeedRounds(concurrency=self.concurrency, tok_s=tok_s, ttft_ms=ttft_ms, what=what, unit=self.unit)


def measure_speed(endpoint: Endpoint, *, rounds: int = ROUNDS, most_rounds: int = 0, **sizes: int) -> SpeedRounds:
    """Measure one server; `most_rounds` allows more until its speed is known, `sizes` are a SpeedMeter's."""
    meter = SpeedMeter(endpoint, **sizes)
    measure_in_turn(meter, rounds=rounds)
    while len(meter.rounds) < most_rounds and not meter.is_settled:
        measure_in_turn(meter, rounds=1)
    return meter.speed_rounds()


def do_at_once(work: Callable[[T], U], items: Iterable[T], *, at_once: int) -> list[U]:
    """Do the work for each item in `at_once` threads. After an error the streams of others end with the engine."""
    pool = ThreadPoolExecutor(at_once)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def measure_in_turn(*meters: SpeedMeter, rounds: int) -> tuple[SpeedRounds, ...]:
    """Measure more rounds of one server, or of two in turn: A B, B A, A B …, so that a drift affects both alike."""
    for meter in meters:
        for _ in range(0 if meter.rounds else WARM):
            meter.run_round(keep=False)
    if len(meters) > 1 and not meters[0].rounds and any(meter.unit == "event/s" for meter in meters):
        for meter in meters:
            meter.unit = "char/s"
    with AwakeClock() as awake:
        for number in range(rounds):
            _run_rounds(awake, meters[:: -1 if number % 2 else 1])
    return tuple(meter.speed_rounds() for meter in meters)


def _run_rounds(awake: AwakeClock, meters: Sequence[SpeedMeter]) -> None:
    """Run one round of each meter; repeat them if the machine slept meanwhile."""
    for left in reversed(range(MAX_SLEEPS + 1)):
        away, counts = awake.away_s, [len(meter.rounds) for meter in meters]
        try:
            for meter in meters:
                meter.run_round()
        except ExternalError:
            if awake.away_s == away or not left:
                raise
        if awake.away_s == away or not left:
            return
        for meter, count in zip(meters, counts, strict=True):
            del meter.rounds[count:]


def read_metrics(endpoint: Endpoint, *, timeout_s: float = 10.0) -> dict[str, float]:
    page = http.get(f"{endpoint.server_url}/metrics", headers=endpoint.headers, timeout_s=timeout_s)
    return parse_prometheus(page.text if page.ok else "")


def acceptance_rate(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """The share of draft tokens that were accepted between two looks at the metrics, or None if there were none.

    vLLM's and llama.cpp's counters have the same name behind their prefix; SGLang has a gauge, of its last steps.
    """

    def count_tokens(kind: str) -> float:
        ends = (f":spec_decode_num_{kind}_tokens", f":spec_decode_num_{kind}_tokens_total")
        return sum(value - before.get(name, 0.0) for name, value in after.items() if name.endswith(ends))

    drafted = count_tokens("draft")
    return count_tokens("accepted") / drafted if drafted > 0 else after.get("sglang:spec_accept_rate")


CONFIDENCE = 0.95
RANKED_PAIRS = 10  # with fewer, ranks give wider intervals than Student's t


def welch_gain(before: Sequence[float], after: Sequence[float]) -> Gain | None:
    """Welch's interval on the logarithms, or None if there are too few measurements."""
    if min(len(before), len(after)) < 2 or min(*before, *after) <= 0:
        return None
    old, new = list(map(math.log, before)), list(map(math.log, after))
    middle = statistics.fmean(new) - statistics.fmean(old)
    parts = [statistics.variance(values) / len(values) for values in (old, new)]
    spread = math.sqrt(sum(parts))
    weights = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (old, new), strict=True))
    freedom = sum(parts) ** 2 / weights if weights > 0 else 10**9
    reach = student_t(max(int(freedom), 1), CONFIDENCE) * spread  # rounded down: rather too wide than too narrow
    return Gain(share=math.expm1(middle), low=math.expm1(middle - reach), high=math.expm1(middle + reach))


def bracketing_gain(before: Sequence[float], after: Sequence[float], again: Sequence[float]) -> Gain | None:
    """Compare `after` with a setting measured before it and `again` after it: the hull of both intervals.

    A machine that became faster or slower meanwhile widens the interval.
    """
    one, other = welch_gain(before, after), welch_gain(again, after)
    if one is None or other is None:
        return None
    share = math.expm1((math.log1p(one.share) + math.log1p(other.share)) / 2)
    return Gain(share=share, low=min(one.low, other.low), high=max(one.high, other.high))


def paired_gain(before: Sequence[float], after: Sequence[float], *, confidence: float = CONFIDENCE) -> Gain | None:
    """The interval on the ratio of measurements made in pairs, in which a drift cancels out.

    From RANKED_PAIRS on it is Wilcoxon's (Hodges and Lehmann 1963), which a few pairs that another program disturbed
    hardly change: with a tenth of the streams up to three times slower, 24 pairs give +-5% instead of +-14%.
    None if there are too few measurements.
    """
    if len(before) != len(after) or len(before) < 2 or min(*before, *after) <= 0:
        return None
    ratios = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    averages = sorted((x + y) / 2 for place, x in enumerate(ratios) for y in ratios[place:])
    if len(ratios) >= RANKED_PAIRS and (cut := signed_rank_cut(len(ratios), confidence)):
        middle, low, high = statistics.median(averages), averages[cut - 1], averages[-cut]
    else:
        middle = statistics.fmean(ratios)
        reach = student_t(len(ratios) - 1, confidence) * statistics.stdev(ratios) / math.sqrt(len(ratios))
        low, high = middle - reach, middle + reach
    return Gain(share=math.expm1(middle), low=math.expm1(low), high=math.expm1(high))


@functools.cache
def signed_rank_cut(count: int, confidence: float) -> int:
    """Rank, from either end, of the pairwise average that bounds Wilcoxon's interval; 0 if `count` is too small."""
    ways = [1] + [0] * (count * (count + 1) // 2)  # subsets of the ranks 1 to `count` with each sum
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return sum(2 * below <= (1 - confidence) * 2**count for below in itertools.accumulate(ways))


def student_t(freedom: int, confidence: float) -> float:
    """Student's t, two-sided; exact for one and two degrees of freedom, from three on by Fisher's expansion.

    Abramowitz and Stegun 26.7.5: within 1.5% at three degrees of freedom and 99%, better elsewhere.
    """
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, 1))
