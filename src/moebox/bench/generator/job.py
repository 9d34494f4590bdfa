"""What a worker process is told, and what it tells: plain data that crosses a pipe."""

import math
from dataclasses import dataclass, field

from moebox.core.measure import Load, Workload
from moebox.stream.sockets import SocketAddress

MAX_NAP_S = 0.005  # keeps a closed loop's next request from being late by more than that
LATE_NS = 2e9 * MAX_NAP_S  # ns without a look, from which on events found together may have come apart
CLOCK_STEP_NS = 20_000_000  # ns by which the wall clock was set, or the machine slept: slewing moves both clocks alike


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWords:
    """Words to write prompts from, and what is known of their size in tokens."""

    words: tuple[str, ...]
    tokens_per_word: float = 1.0
    # Of `words.code`; measured where there is a tokenizer or a server that counts. 2.01 by Qwen's vocabulary of 152k,
    # 2.04 by Mistral's tekken of 131k (6,000 words, 2026-11-15).
    tokens_per_code_word: float = 2.0
    is_exact: bool = False  # every word is one token, wherever it stands
    source: str = "calibrated words"  # which tokenizer said so
    tokenizer: str = ""  # a local tokenizer.json, "/tokenize" for the server's own, "" for none


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """One worker's share of a run. The headers hold the key, so a job travels through a pipe and nowhere else."""

    address: SocketAddress
    path: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    model: str
    workload: Workload
    load: Load
    words: PromptWords
    worker: int = 0
    workers: int = 1
    offset: int = 0  # first index: warm-up requests must not be those that are measured
    keep_text: bool = False  # the server does not count tokens, so the replies' text is kept for a tokenizer
    keep_first: int = 0  # so many replies' text is kept to hold a tokenizer's count against the server's

    def keeps_text(self, index: int) -> bool:
        """The text of this request's reply is needed."""
        return self.keep_text or self.offset <= index < self.offset + self.keep_first


@dataclass(slots=True, kw_only=True)
class WorkerGauge:
    """What a worker knows of itself: enough to say whether it, and not the server, was the limit."""

    clock: str = "kernel"
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_cpu_share: float = 0.0  # of one core, over half a second
    reads: int = 0
    bytes: int = 0
    batches: int = 0
    peak_batch: int = 0  # sockets found readable at once
    estimated: int = 0  # events that were read late and together, their times spread over the gap
    clock_step_s: float = 0.0  # the wall clock, which kernel stamps follow, was set by this much
    retried: int = 0  # sent again because a kept connection turned out to be closed
    lag: list[int] = field(default_factory=lambda: [0] * 128)  # reads by how long they waited: quarter octaves of us
    peak_rss_bytes: int = 0

    def add_batch(self, reads: int, lag_ns: int) -> None:
        """A batch of reads, and how long the oldest had waited when it was done: none of it waited longer."""
        self.batches += 1
        self.reads += reads
        self.peak_batch = max(self.peak_batch, reads)
        if lag_ns > 0:
            self.lag[min(127, int(4 * math.log2(lag_ns / 1000 + 1)))] += reads

    def add_clock_drift(self, drift_ns: int) -> None:
        """How far the wall clock moved against CLOCK_MONOTONIC between two looks."""
        if abs(drift_ns) > CLOCK_STEP_NS:
            self.clock_step_s += abs(drift_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """A worker's state, told twice a second."""

    worker: int
    sent: int
    ended: int
    failed: int
    in_flight: int
    tokens: int
    ttft_ms: float  # mean of those that ended since the last word
    cpu_share: float
