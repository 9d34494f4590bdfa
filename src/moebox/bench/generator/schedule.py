"""Which conversation is due when: as soon as a connection is free (closed loop), or by the clock (open loop)."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterator

from moebox.bench.generator.arrivals import arrival_times
from moebox.bench.generator.conversation import Conversation, SingleTurn
from moebox.bench.generator.job import LoadJob
from moebox.bench.workloads import ConversationSource

MAX_PREPARED_BYTES = 32 * 2**20  # bytes of requests written ahead of time


class LoadSchedule:
    """One worker's queue of conversations; times are CLOCK_MONOTONIC ns."""

    def __init__(self, job: LoadJob, source: ConversationSource) -> None:
        self.job, self.load = job, job.load
        self.is_open_loop = bool(job.load.rate) or source.due_times is not None
        self.waiting: deque[tuple[int, Conversation]] = deque()
        self._source = source
        self._timers: list[tuple[int, int, Conversation | None]] = []  # when, order, whom; None is the next arrival
        self._order = itertools.count()
        self._indices = self._own_indices()
        self._prepared: deque[Conversation] = deque()  # conversations to come whose requests are already written
        self._bytes_left = MAX_PREPARED_BYTES
        self._zero = self._stop_at = 0
        self._arrivals: Iterator[float] = iter(())

    @property
    def max_connections(self) -> int:
        """Connections this worker may hold."""
        connections, job = self.load.concurrency, self.job
        if not connections:
            return 60_000  # an open loop without a limit: as many as there are ports
        return max(1, connections // job.workers + (job.worker < connections % job.workers))

    @property
    def has_pending(self) -> bool:
        """Something is still to be sent."""
        return bool(self.waiting or self._timers)

    @property
    def next_timer(self) -> int:
        """When the next timer runs out, 0 where there is none."""
        return self._timers[0][0] if self._timers else 0

    def start(self, zero: int) -> None:
        """Put the first conversations on the clock."""
        self._zero = zero
        self._stop_at = zero + int(self.load.duration_s * 1e9) if self.load.duration_s else 0
        if self.is_open_loop:
            times = self._source.due_times
            every = iter(times) if times is not None else arrival_times(self.load, self.job.workload.seed)
            self._arrivals = itertools.islice(every, self.job.worker, None, self.job.workers)
            self._schedule_arrival()
            return
        for number in range(self.max_connections):
            self.schedule_next(zero + int(self.load.ramp_s * 1e9 * number / self.max_connections))

    def queue_due(self, now: int) -> None:
        """Move what has become due into the queue."""
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
        """The next conversation in the queue; after the run's duration only those already begun."""
        while self.waiting:
            due, conversation = self.waiting.popleft()
            if not self._stop_at or now < self._stop_at or conversation.turn:
                return due, conversation
        return None

    def finish_request(self, conversation: Conversation, text: str, *, succeeded: bool, at: int) -> None:
        """A conversation's request ended: its next turn follows, or, in a closed loop, the next conversation."""
        pause = conversation.accept_reply(text) if succeeded else None
        if pause is not None:
            self._schedule_at(at + int(pause * 1e9), conversation)
        elif not self.is_open_loop:
            self.schedule_next(at)

    def schedule_next(self, at: int) -> None:
        """Another conversation for a connection of the closed loop, if there is one left."""
        if self._stop_at and at >= self._stop_at:
            return
        conversation = self._next_conversation()
        if conversation is not None:
            self._schedule_at(at, conversation)

    def prepare_request(self) -> bool:
        """Write one request ahead of time, as many as there are connections; False when there is none to write."""
        if len(self._prepared) >= self.max_connections or self._bytes_left <= 0:
            return False
        index = next(self._indices, None)
        if index is None:
            return False
        conversation = self._source.make_conversation(index)
        self._prepared.append(conversation)
        if isinstance(conversation, SingleTurn):
            self._bytes_left -= conversation.write_body()
        return isinstance(conversation, SingleTurn)

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

    def _own_indices(self) -> Iterator[int]:
        """The indices of this worker's conversations."""
        job, total = self.job, self.load.requests or self._source.size
        if total is None:
            own: Iterator[int] = itertools.count(job.worker, job.workers)
        else:
            turns = max(1, job.workload.turns) if job.workload.kind == "turns" else 1
            own = iter(range(job.worker, -(-total // turns), job.workers))
        return (index + job.offset for index in own)
