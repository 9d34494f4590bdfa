"""Which talk is due when: the next one when a lane is free (closed loop), or by the clock (open loop)."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Iterator

from moebox.bench.arrivals import arrivals
from moebox.bench.job import Job
from moebox.bench.talk import Single, Talk
from moebox.bench.workloads import Source

MOST_READY = 32 * 2**20  # bytes of requests written ahead of time


class Pace:
    """One worker's queue of talks; times are CLOCK_MONOTONIC ns."""

    def __init__(self, job: Job, source: Source) -> None:
        self.job, self.load = job, job.load
        self.open = bool(job.load.rate) or source.times is not None
        self.waiting: deque[tuple[int, Talk]] = deque()
        self._source = source
        self._timers: list[tuple[int, int, Talk | None]] = []  # when, order, whom; None is the next arrival
        self._order = itertools.count()
        self._indices = self._share()
        self._ready: deque[Talk] = deque()  # talks to come whose requests are already written
        self._spare = MOST_READY
        self._zero = self._stop_at = 0
        self._arrivals: Iterator[float] = iter(())

    @property
    def lanes(self) -> int:
        """Connections this worker may hold."""
        lanes, job = self.load.concurrency, self.job
        if not lanes:
            return 60_000  # an open loop without a limit: as many as there are ports
        return max(1, lanes // job.workers + (job.worker < lanes % job.workers))

    @property
    def pending(self) -> bool:
        """Something is still to be sent."""
        return bool(self.waiting or self._timers)

    @property
    def next_due(self) -> int:
        """When the next timer runs out, 0 where there is none."""
        return self._timers[0][0] if self._timers else 0

    def start(self, zero: int) -> None:
        """Put the first talks on the clock."""
        self._zero = zero
        self._stop_at = zero + int(self.load.duration_s * 1e9) if self.load.duration_s else 0
        if self.open:
            times = self._source.times
            every = iter(times) if times is not None else arrivals(self.load, self.job.workload.seed)
            self._arrivals = itertools.islice(every, self.job.worker, None, self.job.workers)
            self._await_arrival()
            return
        for number in range(self.lanes):
            self.next_talk(zero + int(self.load.ramp_s * 1e9 * number / self.lanes))

    def tick(self, now: int) -> None:
        """Move what has become due into the queue."""
        while self._timers and self._timers[0][0] <= now:
            at, _, talk = heapq.heappop(self._timers)
            if talk is not None:
                self.waiting.append((at, talk))
                continue
            following = self._next()
            if following is not None:
                self.waiting.append((at, following))
                self._await_arrival()

    def take(self, now: int) -> tuple[int, Talk] | None:
        """The next talk in the queue; after the run's duration only those already begun."""
        while self.waiting:
            due, talk = self.waiting.popleft()
            if not self._stop_at or now < self._stop_at or talk.turn:
                return due, talk
        return None

    def went(self, talk: Talk, text: str, *, well: bool, at: int) -> None:
        """A talk's request ended: its next turn follows, or, in a closed loop, the next talk."""
        pause = talk.hear(text) if well else None
        if pause is not None:
            self._later(at + int(pause * 1e9), talk)
        elif not self.open:
            self.next_talk(at)

    def next_talk(self, at: int) -> None:
        """Another talk for a lane of the closed loop, if there is one left."""
        if self._stop_at and at >= self._stop_at:
            return
        talk = self._next()
        if talk is not None:
            self._later(at, talk)

    def prepare(self) -> bool:
        """Write one request ahead of time, as many as there are lanes; False when there is nothing to prepare."""
        if len(self._ready) >= self.lanes or self._spare <= 0:
            return False
        index = next(self._indices, None)
        if index is None:
            return False
        talk = self._source.talk(index)
        self._ready.append(talk)
        if isinstance(talk, Single):
            self._spare -= talk.prepare()
        return isinstance(talk, Single)

    def _next(self) -> Talk | None:
        if self._ready:
            if len(self._ready) == 1:
                self._spare = MOST_READY
            return self._ready.popleft()
        index = next(self._indices, None)
        return None if index is None else self._source.talk(index)

    def _await_arrival(self) -> None:
        seconds = next(self._arrivals, None)
        if seconds is None:
            return
        at = self._zero + int(seconds * 1e9)
        if not self._stop_at or at < self._stop_at:
            heapq.heappush(self._timers, (at, next(self._order), None))

    def _later(self, at: int, talk: Talk) -> None:
        if at <= time.monotonic_ns():
            self.waiting.append((at, talk))
        else:
            heapq.heappush(self._timers, (at, next(self._order), talk))

    def _share(self) -> Iterator[int]:
        """The indices of this worker's talks."""
        job, total = self.job, self.load.requests or self._source.size
        if total is None:
            own: Iterator[int] = itertools.count(job.worker, job.workers)
        else:
            turns = max(1, job.workload.turns) if job.workload.kind == "turns" else 1
            own = iter(range(job.worker, -(-total // turns), job.workers))
        return (index + job.offset for index in own)
