"""Types shared by the main process and the workers of the load generator: jobs, gauges, progress and conversations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moebox.core.measure import Load, Workload
from moebox.stream.sockets import SocketAddress

IDLE_S = 60.0  # a worker that gets no further job for so long ends
MAX_NAP_S = 0.005  # bounds how late a closed loop sends its next request
LATE_NS = 2e9 * MAX_NAP_S  # events found together after a longer pause may have arrived apart
CLOCK_STEP_NS = 20_000_000  # a larger drift means a set clock or a sleeping machine: slewing moves both clocks alike
CHECKED_REPLIES = 4  # replies of a measurement whose text is kept to check the server's token counts


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWords:
    """Words to write prompts from, and their size in tokens."""

    words: tuple[str, ...]
    tokens_per_word: float = 1.0
    # Of `workloads.fake_code`; measured if there is a tokenizer or a server that counts prompts. 2.01 with Qwen's
    # vocabulary of 152k, 2.04 with Mistral's tekken of 131k (6,000 words, 2026-11-15).
    tokens_per_code_word: float = 2.0
    is_exact: bool = False  # every word is exactly one token in any position
    source: str = "calibrated words"  # where the sizes come from
    tokenizer: str = ""  # a local tokenizer.json, "/tokenize" for the server's own, "" for none


@dataclass(slots=True)
class Conversation:
    """One request, or several turns on one connection."""

    index: int
    max_tokens: int  # output tokens that each turn asks for
    write_turn: Callable[[Sequence[str]], bytes]  # returns the JSON body of the turn that follows these replies
    keep_text: bool = False  # the replies' text is needed
    turns: int = 1
    think_s: float = 0.0  # between a reply and the next turn
    replies: list[str] = field(default_factory=list)
    body: bytes = b""  # of the first turn, written ahead of time

    @property
    def turn(self) -> int:
        return len(self.replies)

    def next_body(self) -> bytes:
        body, self.body = self.body or self.write_turn(self.replies), b""
        return body

    def accept_reply(self, text: str) -> float | None:
        """Take the reply; return the seconds until the next turn, or None if the conversation is over."""
        if self.turn + 1 >= self.turns:
            return None
        self.replies.append(text)
        return self.think_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """One worker's share of a run. The headers hold the API key, so a job is only ever sent through a pipe."""

    address: SocketAddress
    path: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    model: str
    workload: Workload
    load: Load
    words: PromptWords
    worker: int = 0
    workers: int = 1
    offset: int = 0  # index of the first request: warm-up requests must differ from measured ones
    keep_text: bool = False  # the server does not count tokens: keep every reply's text for a tokenizer
    keep_first: int = 0  # keep the text of this many replies to check the server's counts

    def keeps_text(self, index: int) -> bool:
        return self.keep_text or self.offset <= index < self.offset + self.keep_first


@dataclass(slots=True, kw_only=True)
class WorkerGauge:
    """What a worker measured of itself: enough to decide whether it limited the result."""

    clock: str = "kernel"
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_cpu_share: float = 0.0  # of one core, over half a second
    reads: int = 0
    peak_batch: int = 0  # sockets found readable at once
    estimated: int = 0  # events that were read late and together, with times spread over the gap
    clock_step_s: float = 0.0  # total steps of the wall clock, which kernel timestamps follow
    retried: int = 0  # requests sent again because a kept connection was closed
    lag: list[int] = field(default_factory=lambda: [0] * 128)  # reads by waiting time: quarter octaves of us
    peak_rss_bytes: int = 0

    def add_batch(self, reads: int, lag_ns: int) -> None:
        """Count a batch of reads; `lag_ns` is how long the oldest had waited, an upper bound for the others."""
        self.reads += reads
        self.peak_batch = max(self.peak_batch, reads)
        if lag_ns > 0:
            self.lag[min(127, int(4 * math.log2(lag_ns / 1000 + 1)))] += reads

    def add_clock_drift(self, drift_ns: int) -> None:
        """Count how far the wall clock moved against CLOCK_MONOTONIC between two checks, if it was a step."""
        if abs(drift_ns) > CLOCK_STEP_NS:
            self.clock_step_s += abs(drift_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """A worker's state, reported twice a second."""

    worker: int
    ended: int
    failed: int
    in_flight: int
    tokens: int
    ttft_ms: float  # mean of the requests that ended since the last report
    cpu_share: float
