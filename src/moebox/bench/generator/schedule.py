"""Which conversation is due when: as soon as a connection is free (closed loop), or by the clock (open loop)."""

import heapq
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator

from moebox.bench.generator.job import Conversation, LoadJob
from moebox.bench.workloads import ConversationSource
from moebox.core.measure import Load

MAX_PREPARED_BYTES = 32 * 2**20  # of requests written ahead of time


def arrival_times(load: Load, seed: int) -> Iterator[float]:
    """Yield without end the seconds after the start at which each request of an open loop is due.

    Gaps follow a gamma distribution of shape `burstiness` and mean 1/rate (shape 1 is Poisson), as in vLLM's benchmark;
    constant arrivals have equal gaps. During the ramp the rate grows linearly from a tenth of its value.
    """
    draw = random.Random(f"arrivals {seed}")
    at = 0.0
    while True:
        rate = load.rate
        if load.ramp_s and at < load.ramp_s:
            rate *= max(0.1, at / load.ramp_s)
        if load.arrivals == "constant":
            at += 1.0 / rate
        else:
            at += draw.gammavariate(load.burstiness, 1.0 / (rate * load.burstiness))
        yield at


class LoadSchedule:
    """One worker's queue of conversations; times are CLOCK_MONOTONIC ns."""

    def __init__(self, job: LoadJob, source: ConversationSource) -> None:
        self.load = job.load
        self.is_open_loop = bool(job.load.rate) or source.due_times is not None
        self.waiting: deque[tuple[int, Conversation]] = deque()
        self._job, self._source = job, source
        self._timers: list[tuple[int, int, Conversation | None]] = []  # due, order, conversation; None: next arrival
        self._order = itertools.count()
        self._prepared: deque[Conversation] = deque()  # conversations whose first request is already written
        self._bytes_left = MAX_PREPARED_BYTES
        self._zero = self._stop_at = 0
        self._arrivals: Iterator[float] = iter(())
        times = source.due_times
        total = self.load.requests or (len(times) if times else None)
        if total is None:
            own: Iterator[int] = itertools.count(job.worker, job.workers)
        else:
            turns = max(1, job.workload.turns) if job.workload.kind == "turns" else 1
            own = iter(range(job.worker, -(-total // turns), job.workers))
        self._indices = (index + job.offset for index in own)  # of this worker's conversations
        limit = self.load.concurrency
        if limit:
            self.max_connections = max(1, limit // job.workers + (job.worker < limit % job.workers))
        else:
            self.max_connections = 60_000  # an open loop without a limit: about the number of ports

    @property
    def next_timer(self) -> int:
        """When the next timer expires, or 0 if there is none."""
        return self._timers[0][0] if self._timers else 0

    def start(self, zero: int) -> None:
        """Schedule the first conversations."""
        self._zero = zero
        self._stop_at = zero + int(self.load.duration_s * 1e9) if self.load.duration_s else 0
        if self.is_open_loop:
            times = self._source.due_times
            every = iter(times) if times is not None else arrival_times(self.load, self._job.workload.seed)
            self._arrivals = itertools.islice(every, self._job.worker, None, self._job.workers)
            self._schedule_arrival()
            return
        for number in range(self.max_connections):
            self.schedule_next(zero + int(self.load.ramp_s * 1e9 * number / self.max_connections))

    def queue_due(self, now: int) -> None:
        """Move conversations that are due from the timers to the queue."""
        while self._timers and self._timers[0][0] <= now:
            at, _, conversation = heapq.heappop(self._timers)
            if conversation is not None:
                self.waiting.append((at, conversation))
                continue
            following = self._next_conversation()
            if following is not None:
                self.waiting.append((at, following))
                self._schedule_arrival()

    def take_due(self, now: int) -> tuple[int, Conversation] | None:
        """Take the next conversation from the queue; after the run's duration only those already begun."""
        while self.waiting:
            due, conversation = self.waiting.popleft()
            if not self._stop_at or now < self._stop_at or conversation.turn:
                return due, conversation
        return None

    def finish_request(self, conversation: Conversation, text: str, *, succeeded: bool, at: int) -> None:
        """Schedule what follows a request: the next turn or, in a closed loop, the next conversation."""
        pause = conversation.accept_reply(text) if succeeded else None
        if pause is not None:
            self._schedule_at(at + int(pause * 1e9), conversation)
        elif not self.is_open_loop:
            self.schedule_next(at)

    def schedule_next(self, at: int) -> None:
        """Schedule the next conversation of the closed loop, if there is one."""
        if self._stop_at and at >= self._stop_at:
            return
        conversation = self._next_conversation()
        if conversation is not None:
            self._schedule_at(at, conversation)

    def prepare_request(self) -> bool:
        """Write one request ahead of time, up to one per connection. Return False if there is none to write."""
        if len(self._prepared) >= self.max_connections or self._bytes_left <= 0:
            return False
        index = next(self._indices, None)
        if index is None:
            return False
        conversation = self._source.make_conversation(index)
        self._prepared.append(conversation)
        conversation.body = conversation.write_turn(())
        self._bytes_left -= len(conversation.body)
        return True

    def _next_conversation(self) -> Conversation | None:
        if self._prepared:
            if len(self._prepared) == 1:
                self._bytes_left = MAX_PREPARED_BYTES
            return self._prepared.popleft()
        index = next(self._indices, None)
        return None if index is None else self._source.make_conversation(index)

    def _schedule_arrival(self) -> None:
        seconds = next(self._arrivals, None)
        if seconds is None:
            return
        at = self._zero + int(seconds * 1e9)
        if not self._stop_at or at < self._stop_at:
            heapq.heappush(self._timers, (at, next(self._order), None))

    def _schedule_at(self, at: int, conversation: Conversation) -> None:
        if at <= time.monotonic_ns():
            self.waiting.append((at, conversation))
        else:
            heapq.heappush(self._timers, (at, next(self._order), conversation))
