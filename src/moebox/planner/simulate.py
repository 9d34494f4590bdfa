"""A serving benchmark in virtual time: requests in, the serving benchmark's figures out.

Memory stays flat however many requests there are: latencies go into histograms of 1% wide bins.
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from moebox.core.recipe import Recipe
from moebox.engines import modules
from moebox.planner.histogram import Histogram
from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.speed import Speed
from moebox.planner.workload import SimulatedWorkload

__all__ = ["Histogram", "SimulatedWorkload", "SimulationResult", "scheduler_rules", "simulate"]

HANDOVER = 25e9  # bytes/s of cache from an engine that reads prompts to one that decodes: one 200 Gb/s port


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What a simulated run did."""

    workload: SimulatedWorkload
    completed: int
    rejected: int  # longer than the cache or the context
    duration_s: float
    input_tokens: int
    output_tokens: int
    ttft: Histogram
    tpot: Histogram
    itl: Histogram
    e2el: Histogram
    preemptions: int
    peak_kv_tokens: float
    kv_tokens: int
    slices: int

    @property
    def output_tok_s(self) -> float:
        """Output tokens a second over the whole run."""
        return self.output_tokens / self.duration_s if self.duration_s else 0.0

    @property
    def total_tok_s(self) -> float:
        """Input and output tokens a second."""
        return (self.input_tokens + self.output_tokens) / self.duration_s if self.duration_s else 0.0


def scheduler_rules(recipe: Recipe, kv_tokens: int, speed: Speed) -> SchedulerRules:
    """How the recipe's engine schedules; `speed` knows the GPUs, on which its defaults hang."""
    schedule = modules.schedule_module(recipe.engine)
    step = speed.gpu_step
    in_turn = step is not None and step.overhead is not None  # versions that put a step together after the one before
    return SchedulerRules(
        kv_tokens=kv_tokens,
        context=recipe.context,
        max_seqs=recipe.max_seqs or schedule.DEFAULT_MAX_SEQS,
        step_tokens=speed.chunk_tokens,
        prompts_first=schedule.PROMPTS_FIRST,
        reserves_output=schedule.RESERVES_OUTPUT,
        schedules_ahead=schedule.SCHEDULES_AHEAD and not in_turn,
    )


def simulate(speed: Speed, rules: SchedulerRules, workload: SimulatedWorkload) -> SimulationResult:
    """Run `workload` through the engine in virtual time."""
    workload.validate()
    return _SimulatedRun(Scheduler(speed=speed, rules=rules), workload).run()


@dataclass(slots=True, kw_only=True)
class _Conversation:
    """Where a conversation stands."""

    turn: int = 0
    history: int = 0  # tokens of the turns before


class _SimulatedRun:
    """One run's clock and tallies."""

    def __init__(self, scheduler: Scheduler, workload: SimulatedWorkload) -> None:
        self.scheduler, self.workload = scheduler, workload
        self.coming = _arrivals(workload)
        self.entering: list[
            tuple[float, int, SimulatedRequest]
        ] = []  # sent, and on their way through HTTP and tokenizer
        self.order = itertools.count()
        self.talks: dict[int, _Conversation] = {}  # by request
        self.readers = [0.0] * workload.prefill_engines  # when each engine that only reads prompts is free
        self.now = self.last_in = 0.0
        self.stalls: list[tuple[int, float]] = []  # since the last decode step: who waited for a prompt, and how long
        self.step_began = 0.0  # when the last step began
        self.cold = workload.cold_s
        self.completed = self.rejected = self.slices = 0
        self.input_tokens = self.output_tokens = 0
        self.peak = 0.0
        self.ttft, self.tpot, self.itl, self.e2el = Histogram(), Histogram(), Histogram(), Histogram()

    def run(self) -> SimulationResult:
        self._send_first()
        while True:
            self._enter()
            done = self.scheduler.advance(max_seconds=self._until_next())
            if done is not None:
                self._count(done)
            elif self.entering:
                self.now = max(self.now, self.entering[0][0])
            else:
                break
        return self._outcome()

    # -- arrivals

    def _send_first(self) -> None:
        """All requests that do not wait for another: of a rate every one, of a concurrency the first ones."""
        if self.workload.rate:
            self._send_next()
            return
        for number, request in enumerate(itertools.islice(self.coming, self.workload.concurrency)):
            self._send(request, number * self.workload.spacing_s)

    def _send(self, request: SimulatedRequest, at: float) -> None:
        """A client sends `request`; it reaches the engine when HTTP and tokenizer are done with it."""
        request.arrival = at
        speed = self.scheduler.speed
        self.last_in = max(at + speed.request_s, self.last_in + speed.intake_s)
        heapq.heappush(self.entering, (self._read_elsewhere(request, self.last_in), next(self.order), request))

    def _read_elsewhere(self, request: SimulatedRequest, at: float) -> float:
        """When a prompt that another engine reads has been read and its cache handed over."""
        if not self.readers:
            return at
        engine = min(range(len(self.readers)), key=self.readers.__getitem__)
        fresh = request.tokens_to_read - request.cached_tokens
        read = max(at, self.readers[engine]) + self.scheduler.speed.prefill_s(fresh, request.cached_tokens)
        self.readers[engine] = read
        request.first_token_at = read
        request.cached_tokens = request.tokens_to_read
        return read + request.tokens_to_read * self.scheduler.speed.token_bytes / HANDOVER

    def _until_next(self) -> float:
        """Seconds to the next request that enters."""
        return max(self.entering[0][0] - self.now, 0.0) if self.entering else math.inf

    def _enter(self) -> None:
        """What is due enters the queue: by now, or by the begin of the running step where steps are made ahead."""
        ahead = self.scheduler.rules.schedules_ahead and self.scheduler.busy
        due = self.step_began if ahead else self.now
        while self.entering and self.entering[0][0] <= due:
            self._submit(heapq.heappop(self.entering)[2])

    def _submit(self, request: SimulatedRequest) -> None:
        """The engine takes a request, or refuses it for its length."""
        if request.first_token_at >= 0:
            self.ttft.add(request.first_token_at - request.arrival)
        if not self.scheduler.submit(request):
            self.rejected += 1
            self.talks.pop(request.id, None)
            self._send_next()
        elif self.workload.rate:
            self._send_next()

    def _send_next(self) -> None:
        request = next(self.coming, None)
        if request is not None:
            self._send(request, request.arrival if self.workload.rate else self.now)

    def _go_on(self, request: SimulatedRequest) -> None:
        """After `request` ended: its conversation's next turn, or another request."""
        talk = self.talks.pop(request.id, None) or _Conversation()
        following = next(self.coming, None) if not self.workload.rate else None
        if following is None:
            return
        talk.turn += 1
        if talk.turn >= self.workload.turns:
            self._send(following, self.now)
            return
        talk.history = request.input + request.output
        following.input += talk.history
        room = self.scheduler.rules.kv_tokens - self.scheduler.used_tokens
        following.cached_tokens = talk.history if talk.history <= room else 0
        self.talks[following.id] = talk
        self._send(following, self.now + self.workload.think_s)

    # -- figures

    def _count(self, done: ScheduleSlice) -> None:
        self.slices += 1
        self.now += done.seconds + self.cold
        self.step_began = self.now - done.seconds / max(done.steps, 1)
        if done.steps:
            self._decoded(done)
        else:
            begun = set(done.started) - set(done.finished)
            self.stalls.append((self.scheduler.running - len(begun), done.seconds))
        self.cold = 0.0
        for request in done.started:
            if request.first_token_at < 0:
                request.first_token_at = self.now
                self.ttft.add(self.now - request.arrival)
        for request in done.finished:
            self._finished(request)
        self.peak = max(self.peak, self.scheduler.used_tokens)

    def _decoded(self, done: ScheduleSlice) -> None:
        """Gaps between tokens: the first after the prompts that were read in between is longer."""
        each = (done.seconds + self.cold) / done.steps
        for stall, sequences in self._stalled(done.batch):
            self.itl.add(each + stall, sequences)
        if done.steps > 1:
            self.itl.add(each, done.batch * (done.steps - 1.0))
        self.stalls = []

    def _stalled(self, batch: int) -> Iterator[tuple[float, int]]:
        """How long prompts kept the `batch` that decodes now waiting: one that began later waited for fewer of them."""
        left, counted = sum(seconds for _, seconds in self.stalls), 0
        for waiting, seconds in (*self.stalls, (batch, 0.0)):
            if waiting > counted:
                yield left, waiting - counted
                counted = waiting
            left -= seconds

    def _finished(self, request: SimulatedRequest) -> None:
        self.completed += 1
        self.input_tokens += request.input
        self.output_tokens += request.output
        self.e2el.add(self.now - request.arrival)
        if request.output > 1:
            self.tpot.add((self.now - request.first_token_at) / (request.output - 1))
        self._go_on(request)

    def _outcome(self) -> SimulationResult:
        return SimulationResult(
            workload=self.workload,
            completed=self.completed,
            rejected=self.rejected,
            duration_s=self.now,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            ttft=self.ttft,
            tpot=self.tpot,
            itl=self.itl,
            e2el=self.e2el,
            preemptions=self.scheduler.preemptions,
            peak_kv_tokens=self.peak,
            kv_tokens=self.scheduler.rules.kv_tokens,
            slices=self.slices,
        )


def _arrivals(workload: SimulatedWorkload) -> Iterator[SimulatedRequest]:
    """The requests one after another; those of a rate have a time, those of a concurrency are sent on an end."""
    draw = random.Random(workload.seed)
    at = 0.0
    for number in range(workload.requests):
        at = at + draw.expovariate(workload.rate) if workload.rate else 0.0
        prompt, output = workload.request_lengths(number)
        warm = workload.warm is None or number < workload.warm
        cached = int(prompt * workload.prefix_hit) if warm else 0
        yield SimulatedRequest(id=number, input=prompt, output=output, arrival=at, cached_tokens=cached)
