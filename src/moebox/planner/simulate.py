"""A serving benchmark in virtual time: requests in, the serving benchmark's figures out.

Memory stays flat however many requests there are: latencies go into histograms of 1% wide bins.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from moebox.core.recipe import Recipe
from moebox.engines import rooms
from moebox.errors import BadInput
from moebox.planner.schedule import Request, Rules, Scheduler, Slice
from moebox.planner.speed import Speed

BIN = math.log(1.01)
FLOOR = 1e-6  # seconds; shorter times share a bin
# A burst does not arrive at once: one Python process takes in and tokenises about a thousand requests a second.
SPACING = 1e-3
# Evenly spread draws that need no memory: multiples of irrational numbers, modulo 1.
GOLDEN, SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked of the engine: lengths, how many, and how they come."""

    input: int
    output: int
    requests: int
    concurrency: int = 0  # requests at a time; 0: by rate
    rate: float = 0.0  # requests/s, Poisson; 0: by concurrency
    lengths: Literal["fixed", "uniform"] = "fixed"  # uniform: 1 … the length, as SGLang's benchmark draws by default
    prefix_hit: float = 0.0  # share of a prompt that lies in the prefix cache
    warm: int | None = None  # how many of the first requests have that; None: all
    seed: int = 1

    def lengths_of(self, number: int) -> tuple[int, int]:
        """Prompt and output tokens of request `number`."""
        if self.lengths == "fixed":
            return self.input, self.output
        shift = number + self.seed * 0.5
        return 1 + int(shift * GOLDEN % 1 * self.input), 1 + int(shift * SILVER % 1 * self.output)

    def check(self) -> None:
        """Raise BadInput for what cannot be meant."""
        if self.input < 1 or self.output < 1 or self.requests < 1:
            raise BadInput("input, output and requests must be 1 or more")
        if (self.concurrency > 0) == (self.rate > 0):
            raise BadInput("give either a concurrency or a request rate")
        if not 0 <= self.prefix_hit <= 1:
            raise BadInput(f"a prefix hit of {self.prefix_hit} is not a share between 0 and 1")


@dataclass(slots=True)
class Histogram:
    """Times in logarithmic bins of 1%: mean exact, quantiles within half a bin."""

    bins: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    weight: float = 0.0
    squares: float = 0.0

    def add(self, seconds: float, weight: float = 1.0) -> None:
        """Count `seconds`, `weight` times."""
        place = math.floor(math.log(max(seconds, FLOOR)) / BIN)
        self.bins[place] = self.bins.get(place, 0.0) + weight
        self.total += seconds * weight
        self.weight += weight
        self.squares += seconds * seconds * weight

    @property
    def mean(self) -> float:
        """The mean, or 0 when nothing was counted."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(max(self.squares / self.weight - self.mean**2, 0.0)) if self.weight else 0.0

    def quantile(self, share: float) -> float:
        """The time that `share` of the counts do not exceed."""
        left = share * self.weight
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 1e-9:
                return math.exp((place + 0.5) * BIN)
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulated run did."""

    workload: Workload
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
    peak_kv: float
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


def rules_of(recipe: Recipe, kv_tokens: int) -> Rules:
    """How the recipe's engine schedules."""
    schedule = rooms.schedule(recipe.engine)
    return Rules(
        kv_tokens=kv_tokens,
        context=recipe.context,
        max_seqs=recipe.max_seqs or schedule.SEQUENCES,
        budget=schedule.step_tokens(recipe),
        prompts_first=schedule.PROMPTS_FIRST,
        reserves=schedule.RESERVES,
    )


def simulate(speed: Speed, rules: Rules, workload: Workload) -> Outcome:
    """Run `workload` through the engine in virtual time."""
    workload.check()
    return _Run(Scheduler(speed=speed, rules=rules), workload).run()


class _Run:
    """One run's clock and tallies."""

    def __init__(self, scheduler: Scheduler, workload: Workload) -> None:
        self.scheduler, self.workload = scheduler, workload
        self.coming = _arrivals(workload)
        self.next: Request | None = next(self.coming)
        self.now = self.stall = 0.0
        self.open = self.completed = self.rejected = self.slices = 0
        self.input_tokens = self.output_tokens = 0
        self.peak = 0.0
        self.ttft, self.tpot, self.itl, self.e2el = Histogram(), Histogram(), Histogram(), Histogram()

    def run(self) -> Outcome:
        while True:
            self._arrive()
            done = self.scheduler.advance(within=self._until_next())
            if done is not None:
                self._count(done)
            elif self.next is None:
                break
            else:
                self.now = max(self.now, self.next.arrival)
        return self._outcome()

    def _until_next(self) -> float:
        """Seconds to the next arrival that has a time."""
        if self.next is None or not (self.workload.rate or self.next.id < self.workload.concurrency):
            return math.inf
        return max(self.next.arrival - self.now, 0.0)

    def _arrive(self) -> None:
        """Everything that is due by now enters the queue."""
        at_a_time = self.workload.concurrency or math.inf
        while self.next is not None and self.next.arrival <= self.now and self.open < at_a_time:
            if self.next.id >= at_a_time:
                self.next.arrival = self.now  # sent the moment another one ended
            if self.scheduler.submit(self.next):
                self.open += 1
            else:
                self.rejected += 1
            self.next = next(self.coming, None)

    def _count(self, done: Slice) -> None:
        self.slices += 1
        self.now += done.seconds
        if done.steps:
            each = done.seconds / done.steps
            self.itl.add(each + self.stall, done.batch)
            if done.steps > 1:
                self.itl.add(each, done.batch * (done.steps - 1.0))
            self.stall = 0.0
        elif self.scheduler.running:
            self.stall += done.seconds
        for request in done.started:
            if request.first < 0:
                request.first = self.now
                self.ttft.add(self.now - request.arrival)
        for request in done.finished:
            self.open -= 1
            self.completed += 1
            self.input_tokens += request.input
            self.output_tokens += request.output
            self.e2el.add(self.now - request.arrival)
            if request.output > 1:
                self.tpot.add((self.now - request.first) / (request.output - 1))
        self.peak = max(self.peak, self.scheduler.used)

    def _outcome(self) -> Outcome:
        return Outcome(
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
            peak_kv=self.peak,
            kv_tokens=self.scheduler.rules.kv_tokens,
            slices=self.slices,
        )


def _arrivals(workload: Workload) -> Iterator[Request]:
    """The requests one after another; by concurrency only the first ones have a time, the others are sent on an end."""
    draw = random.Random(workload.seed)
    at = 0.0
    for number in range(workload.requests):
        at = at + draw.expovariate(workload.rate) if workload.rate else number * SPACING
        prompt, output = workload.lengths_of(number)
        warm = workload.warm is None or number < workload.warm
        cached = int(prompt * workload.prefix_hit) if warm else 0
        yield Request(id=number, input=prompt, output=output, arrival=at, cached=cached)
