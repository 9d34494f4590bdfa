"""Run the planner's scheduler against the wall clock: one step at a time, each as long as the speed model computes."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.speed import Speed
from moebox.twin.metrics import TwinCounters


@dataclass(slots=True, kw_only=True, eq=False)
class TwinJob:
    """A request and the client that waits for it."""

    request: SimulatedRequest
    sent: int = 0  # tokens reported to the client
    last: float = 0.0  # time of the last report
    progress: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)  # tokens made so far


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
        """Step forever."""
        due = time.monotonic()
        while True:
            done = self.scheduler.advance(max_steps=1)
            if done is None:
                self._has_work.clear()
                await self._has_work.wait()
                due = time.monotonic()
                continue
            # Each step ends when the ones before it have ended, however late this loop got the CPU.
            due += done.seconds / self.faster
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            self._deliver_tokens(done)

    async def generate(self, prompt: int, output: int) -> AsyncGenerator[int, None]:
        """Generate `output` tokens after a prompt of `prompt`; yield the number made so far each time it grows."""
        now = time.monotonic()
        request = SimulatedRequest(id=next(self._ids), input=prompt, output=output, arrival=now)
        if not self.scheduler.submit(request):
            kv_tokens = self.scheduler.rules.kv_tokens
            raise ValueError(f"{prompt} + {output} tokens do not fit in the cache of {kv_tokens} tokens")
        job = self._jobs[request.id] = TwinJob(request=request, last=now)
        self.counters.prompt_tokens += prompt
        self._has_work.set()
        try:
            made = 0
            while made < output:
                made = await job.progress.get()
                yield made
        finally:
            if self._jobs.pop(request.id, None) is not None:
                self.scheduler.cancel(request)
                self.counters.finished["abort"] += 1

    def _deliver_tokens(self, done: ScheduleSlice) -> None:
        """Report new tokens to every client, and count the latencies."""
        now = time.monotonic()
        for request in done.started:
            if request.id in self._jobs and request.first_token_at < 0:
                request.first_token_at = now
                self.counters.ttft.observe(now - request.arrival)
        for job in self._jobs.values():
            made = int(self.scheduler.tokens_made(job.request) + 1e-9) if job.request.first_token_at >= 0 else 0
            if made > job.sent:
                if job.sent:
                    self.counters.itl.observe(now - job.last)
                self.counters.generation_tokens += made - job.sent
                job.last, job.sent = now, made
                job.progress.put_nowait(made)
        for request in done.finished:
            if self._jobs.pop(request.id, None) is not None:
                self.counters.finished["length"] += 1
                self.counters.e2e.observe(now - request.arrival)
