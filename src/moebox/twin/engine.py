"""The scheduler against the wall clock: one step at a time, each as long as the speed model says."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.speed import Speed
from moebox.twin.metrics import TwinCounters


@dataclass(slots=True, kw_only=True, eq=False)
class TwinJob:
    """One request and the client that waits for it."""

    request: SimulatedRequest
    sent: int = 0  # tokens the client was told of
    last: float = 0.0  # when
    news: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)  # tokens it has by now


class TwinEngine:
    """Steps while there is work; `faster` divides every time."""

    def __init__(self, speed: Speed, rules: SchedulerRules, *, faster: float = 1.0) -> None:
        self.scheduler = Scheduler(speed=speed, rules=rules)
        self.counters = TwinCounters()
        self.faster = faster
        self._jobs: dict[int, TwinJob] = {}
        self._ids = itertools.count()
        self._has_work = asyncio.Event()

    async def run(self) -> None:
        """Step for ever."""
        due = time.monotonic()
        while True:
            done = self.scheduler.advance(max_steps=1)
            if done is None:
                self._has_work.clear()
                await self._has_work.wait()
                due = time.monotonic()
                continue
            # Each step ends when the ones before it have ended, however late this loop woke up.
            due += done.seconds / self.faster
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            self._deliver(done)

    async def generate(self, prompt: int, output: int) -> AsyncGenerator[int, None]:
        """Ask for `output` tokens after `prompt`; yields how many there are by now, each time there are more."""
        now = time.monotonic()
        job = TwinJob(request=SimulatedRequest(id=next(self._ids), input=prompt, output=output, arrival=now), last=now)
        if not self.scheduler.submit(job.request):
            raise ValueError(
                f"{prompt} + {output} tokens are more than the cache of {self.scheduler.rules.kv_tokens} holds"
            )
        self._jobs[job.request.id] = job
        self.counters.prompt_tokens += prompt
        self._has_work.set()
        try:
            made = 0
            while made < output:
                made = await job.news.get()
                yield made
        finally:
            if self._jobs.pop(job.request.id, None) is not None:
                self.scheduler.cancel(job.request)
                self.counters.finished["abort"] += 1

    def _deliver(self, done: ScheduleSlice) -> None:
        """Tell every client whose request has more tokens than before."""
        now = time.monotonic()
        self._start(done.started, now)
        begun = [job for job in self._jobs.values() if job.request.first_token_at >= 0]
        for job in begun:
            made = int(self.scheduler.tokens_made(job.request) + 1e-9)
            if made > job.sent:
                self._tell(job, made, now)
        self._finish(done.finished, now)

    def _start(self, requests: Iterable[SimulatedRequest], now: float) -> None:
        """The first token of each is there."""
        for request in requests:
            if request.id in self._jobs and request.first_token_at < 0:
                request.first_token_at = now
                self.counters.ttft.observe(now - request.arrival)

    def _finish(self, requests: Iterable[SimulatedRequest], now: float) -> None:
        """All tokens of each are there."""
        for request in requests:
            if self._jobs.pop(request.id, None) is not None:
                self.counters.finished["length"] += 1
                self.counters.e2e.observe(now - request.arrival)

    def _tell(self, job: TwinJob, made: int, now: float) -> None:
        if job.sent:
            self.counters.itl.observe(now - job.last)
        job.last = now
        self.counters.generation_tokens += made - job.sent
        job.sent = made
        job.news.put_nowait(made)
