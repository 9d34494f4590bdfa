"""Which conversation is due when: as soon as a connection is free (closed loop), or by the clock (open loop)."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterator

from moebox.bench.generator.arrivals import arrivals
from moebox.bench.generator.conversation import Conversation, OneTurn
from moebox.bench.generator.job import Job
from moebox.bench.workloads import Source

MOST_READY = 32 * 2**20  # bytes of requests written ahead of time


class Schedule:
    """One worker's queue of conversations; times are CLOCK_MONOTONIC ns."""

    def __init__(self, job: Job, source: Source) -> None:
        self.job, self.load = job, job.load
        self.open = bool(job.load.rate) or source.times is not None
        self.waiting: deque[tuple[int, Conversation]] = deque()
        self._source = source
        self._timers: list[tuple[int, int, Conversation | None]] = []  # when, order, whom; None is the next arrival
        self._order = itertools.count()
        self._indices = self._share()
        self._ready: deque[Conversation] = deque()  # conversations to come whose requests are already written
        self._spare = MOST_READY
        self._zero = self._stop_at = 0
        self._arrivals: Iterator[float] = iter(())

    @property
    def connections(self) -> int:
        """Connections this worker may hold."""
        connections, job = self.load.concurrency, self.job
        if not connections:
            return 60_000  # an open loop without a limit: as many as there are ports
        return max(1, connections // job.workers + (job.worker < connections % job.workers))

    @property
    def pending(self) -> bool:
        """Something is still to be sent."""
        return bool(self.waiting or self._timers)

    @property
    def next_due(self) -> int:
        """When the next timer runs out, 0 where there is none."""
        return self._timers[0][0] if self._timers else 0

    def start(self, zero: int) -> None:
        """Put the first conversations on the clock."""
        self._zero = zero
        self._stop_at = zero + int(self.load.duration_s * 1e9) if self.load.duration_s else 0
        if self.open:
            times = self._source.times
            every = iter(times) if times is not None else arrivals(self.load, self.job.workload.seed)
            self._arrivals = itertools.islice(every, self.job.worker, None, self.job.workers)
            self._await_arrival()
            return
        for number in range(self.connections):
            self.next_conversation(zero + int(self.load.ramp_s * 1e9 * number / self.connections))

    def tick(self, now: int) -> None:
        """Move what has become due into the queue."""
        while self._timers and self._timers[0][0] <= now:
            at, _, conversation = heapq.heappop(self._timers)
            if conversation is not None:
                self.waiting.append((at, conversation))
                continue
            following = self._next()
            if following is not None:
                self.waiting.append((at, following))
                self._await_arrival()

    def next_due_now(self, now: int) -> tuple[int, Conversation] | None:
        """The next conversation in the queue; after the run's duration only those already begun."""
        while self.waiting:
            due, conversation = self.waiting.popleft()
            if not self._stop_at or now < self._stop_at or conversation.turn:
                return due, conversation
        return None

    def finished(self, conversation: Conversation, text: str, *, well: bool, at: int) -> None:
        """A conversation's request ended: its next turn follows, or, in a closed loop, the next conversation."""
        pause = conversation.replied(text) if well else None
        if pause is not None:
            self._later(at + int(pause * 1e9), conversation)
        elif not self.open:
            self.next_conversation(at)

    def next_conversation(self, at: int) -> None:
        """Another conversation for a connection of the closed loop, if there is one left."""
        if self._stop_at and at >= self._stop_at:
            return
        conversation = self._next()
        if conversation is not None:
            self._later(at, conversation)

    def prepare(self) -> bool:
        """Write one request ahead of time, as many as there are connections; False when there is none to write."""
        if len(self._ready) >= self.connections or self._spare <= 0:
            return False
        index = next(self._indices, None)
        if index is None:
            return False
        conversation = self._source.conversation(index)
        self._ready.append(conversation)
        if isinstance(conversation, OneTurn):
            self._spare -= conversation.prepare()
        return isinstance(conversation, OneTurn)

    def _next(self) -> Conversation | None:
        if self._ready:
            if len(self._ready) == 1:
                self._spare = MOST_READY
            return self._ready.popleft()
        index = next(self._indices, None)
        return None if index is None else self._source.conversation(index)

    def _await_arrival(self) -> None:
        seconds = next(self._arrivals, None)
        if seconds is None:
            return
        at = self._zero + int(seconds * 1e9)
        if not self._stop_at or at < self._stop_at:
            heapq.heappush(self._timers, (at, next(self._order), None))

    def _later(self, at: int, conversation: Conversation) -> None:
        if at <= time.monotonic_ns():
            self.waiting.append((at, conversation))
        else:
            heapq.heappush(self._timers, (at, next(self._order), conversation))

    def _share(self) -> Iterator[int]:
        """The indices of this worker's conversations."""
        job, total = self.job, self.load.requests or self._source.size
        if total is None:
            own: Iterator[int] = itertools.count(job.worker, job.workers)
        else:
            turns = max(1, job.workload.turns) if job.workload.kind == "turns" else 1
            own = iter(range(job.worker, -(-total // turns), job.workers))
        return (index + job.offset for index in own)
