"""A serving benchmark in virtual time: requests in, the serving benchmark's figures out.

Memory stays flat however many requests there are: latencies go into histograms of 1% wide bins.
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from moebox.core import registry
from moebox.core.plan import Memory
from moebox.core.recipe import Recipe
from moebox.core.workload_file import WorkloadFile
from moebox.engines.engine import load_engine
from moebox.errors import refuse_if, require_all
from moebox.planner.kv_tiers import CacheTier, PrefixCache
from moebox.planner.schedule import GOLDEN, Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.speed import Speed

HANDOVER = 25e9  # bytes/s of cache from an engine that reads prompts to one that decodes: one 200 Gb/s port
DAY = 86_400  # seconds
NEAR = 0.8  # the shortest of `near` lengths (InferenceX: random_range_ratio)
SILVER = math.sqrt(2) - 1  # as GOLDEN: evenly spread draws
STREAMS = (1, 8, 32, 64, 128)
# As many requests for each stream as published serving runs send (InferenceX 10, Lambda 16), within limits.
PER_STREAM, MIN_REQUESTS, MAX_REQUESTS = 10, 32, 20_000
LARGEST_RUN = 10_000_000
OPEN_LOOP_REQUESTS = 1000  # of a simulated run at a rate, if nothing sets the number
BIN = math.log(1.01)
FLOOR = 1e-6  # seconds; shorter times share a bin


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkload:
    """Requests to simulate: lengths, how many, and how they arrive."""

    input: int
    output: int
    requests: int
    concurrency: int = 0  # requests at a time; 0: by rate
    rate: float = 0.0  # requests/s, Poisson; 0: by concurrency
    # near: 80 to 100% of the length, as InferenceX draws; uniform: 1 … the length, SGLang's default
    lengths: Literal["fixed", "near", "uniform"] = "fixed"
    prefix_hit: float = 0.0  # share of a prompt that is in the prefix cache
    warm: int | None = None  # how many of the first requests have that; None: all
    turns: int = 1  # of a conversation: each continues the previous one, which is in the prefix cache
    prefix: int = 0  # tokens that every conversation begins with: system prompt and tools
    think_s: float = 0.0  # between the end of a turn and the next: tools at work, a user reading
    spacing_s: float = 0.0  # between two requests of the first burst: how fast the client sends
    cold_s: float = 0.0  # extra time of the first step: kernels compiled at first use
    prefill_engines: int = 0  # separate engines that read prompts and hand the cache over; 0: the same engine
    seed: int = 1

    @property
    def longest(self) -> int:
        """Tokens at the end of a conversation, or of a request that is none."""
        return self.prefix + self.turns * (self.input + self.output)

    def request_lengths(self, number: int) -> tuple[int, int]:
        """Prompt and output tokens of request `number`."""
        if self.lengths == "fixed":
            return self.input, self.output
        shift = number + self.seed * 0.5
        least = NEAR if self.lengths == "near" else 0.0
        parts = (least + (1 - least) * (shift * step % 1) for step in (GOLDEN, SILVER))
        prompt, output = (int(part * tokens) for part, tokens in zip(parts, (self.input, self.output), strict=True))
        return min(1 + prompt, self.input), min(1 + output, self.output)

    def validate(self) -> None:
        turns_wait = self.turns == 1 or not self.rate
        require_all(
            "",
            {
                "input, output and requests must be 1 or more": min(self.input, self.output, self.requests) >= 1,
                "give either a concurrency or a request rate": (self.concurrency > 0) != (self.rate > 0),
                f"a prefix hit of {self.prefix_hit} is not a share between 0 and 1": 0 <= self.prefix_hit <= 1,
                f"{self.turns} turns of a conversation: write at least 1": 1 <= self.turns <= 10_000,
                "conversations need a concurrency, not a rate: a turn waits for the previous one": turns_wait,
                "workload.think_s is seconds from 0 to a day": 0 <= self.think_s <= DAY,
                "simulation.cold_s is seconds from 0 to a day": 0 <= self.cold_s <= DAY,
                "simulation.prefill_engines is 0 to 1024": 0 <= self.prefill_engines <= 1024,
                f"{self.requests:,} requests: at most {LARGEST_RUN:,} are simulated": self.requests <= LARGEST_RUN,
            },
        )


def simulated_workloads(file: WorkloadFile) -> list[SimulatedWorkload]:
    """Return a simulated run for each concurrency or rate of a workload."""
    work, facts = file.workload, file.simulation
    base = SimulatedWorkload(
        input=work.input_tokens,
        output=work.output_tokens,
        requests=file.requests or 1,
        concurrency=1,
        lengths=facts.lengths,
        prefix_hit=facts.prefix_hit,
        turns=work.turns,
        prefix=work.prefix_tokens if work.kind == "turns" else 0,
        think_s=work.think_s,
        cold_s=facts.cold_s,
        prefill_engines=facts.prefill_engines,
        seed=work.seed or 1,
    )
    warm = facts.warm
    refuse_if(warm is not None and not 0 <= warm <= 1, f"simulation.warm={warm or 0:g} is not a share between 0 and 1")
    runs = [replace(base, rate=rate, concurrency=0, requests=file.requests or OPEN_LOOP_REQUESTS) for rate in file.rate]
    for count in () if file.rate else file.concurrency or STREAMS:
        usual = (file.requests_per_stream or 0) * count or max(PER_STREAM * work.turns * count, MIN_REQUESTS)
        runs.append(
            replace(
                base,
                concurrency=count,
                requests=file.requests or min(usual, MAX_REQUESTS),
                warm=None if warm is None else int(warm * count),
                spacing_s=facts.window_s / count,
            )
        )
    for run in (base, *runs):
        run.validate()
    return runs


@dataclass(slots=True)
class Histogram:
    """Times in logarithmic bins of 1%: mean, least and greatest exact, quantiles within half a bin."""

    bins: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    weight: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    greatest: float = 0.0

    def add(self, seconds: float, weight: float = 1.0) -> None:
        place = math.floor(math.log(max(seconds, FLOOR)) / BIN)
        self.bins[place] = self.bins.get(place, 0.0) + weight
        self.total += seconds * weight
        self.weight += weight
        self.squares += seconds * seconds * weight
        self.least, self.greatest = min(self.least, seconds), max(self.greatest, seconds)

    @property
    def mean(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.squares / self.weight - self.mean**2, 0.0)) if self.weight else 0.0

    def quantile(self, share: float) -> float:
        """The time that `share` of the counts do not exceed."""
        left = share * self.weight
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 1e-9:
                return min(max(math.exp((place + 0.5) * BIN), self.least), self.greatest)
        return 0.0


@dataclass(slots=True, kw_only=True)
class SimulationResult:
    workload: SimulatedWorkload
    kv_tokens: int
    completed: int = 0
    rejected: int = 0  # longer than the cache or the context
    duration_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens from the cache and its tiers
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2el: Histogram = field(default_factory=Histogram)
    returning: Histogram = field(default_factory=Histogram)  # TTFT of later turns of a conversation
    preemptions: int = 0
    peak_kv_tokens: float = 0.0
    peak_batch: int = 0  # sequences in one decode step
    slices: int = 0

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens that were not computed again."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def output_tok_s(self) -> float:
        return self.output_tokens / self.duration_s if self.duration_s else 0.0


def scheduler_rules(recipe: Recipe, kv_tokens: int, speed: Speed, memory: Memory | None = None) -> SchedulerRules:
    """Return how the recipe's engine schedules; `speed` knows the GPUs, on which its defaults depend."""
    engine, step, polled = load_engine(recipe.engine), speed.gpu_step, recipe.flags.get("scheduler-recv-interval")
    in_turn = step is not None and step.overhead is not None  # versions that prepare a step after the previous one
    return SchedulerRules(
        kv_tokens=kv_tokens,
        sequence_tokens=memory.sequence_tokens if memory else 0,
        counted_tokens=memory.counted_tokens if memory else 0,
        context=recipe.context,
        max_seqs=recipe.max_seqs or engine.default_max_seqs,
        step_tokens=speed.chunk_tokens,
        prompts_first=engine.prompts_first,
        reserves_output=engine.reserves_output,
        schedules_ahead=engine.schedules_ahead and not in_turn,
        poll_steps=polled if isinstance(polled, int) else 0,
        shares_blocks=registry.engine_traits(recipe.engine).kv_tiers == "blocks",
    )


def simulate(
    speed: Speed, rules: SchedulerRules, workload: SimulatedWorkload, tiers: Sequence[CacheTier] = ()
) -> SimulationResult:
    """Run `workload` through the engine in virtual time; `tiers` keep what the GPUs evict."""
    workload.validate()
    return _SimulatedRun(Scheduler(speed=speed, rules=rules), workload, tiers).run()


class _SimulatedRun:
    """One run's clock and counts."""

    def __init__(self, scheduler: Scheduler, workload: SimulatedWorkload, tiers: Sequence[CacheTier]) -> None:
        self.scheduler, self.workload = scheduler, workload
        self.cache = PrefixCache(scheduler, workload.prefix, tiers)
        scheduler.find_prefix = self._find_prefix
        self.coming = self._make_requests()
        self.entering: list[tuple[float, int, SimulatedRequest]] = []  # sent, but still in HTTP and tokenizer
        self.order = itertools.count()
        self.conversations: dict[int, tuple[int, int]] = {}  # request -> conversation and turn
        self.readers = [0.0] * workload.prefill_engines  # when each engine that only reads prompts is free
        self.now = self.last_in = self.step_began = 0.0  # step_began: when the last step did
        self.stalls: list[tuple[int, float]] = []  # since the last decode step: sequences that waited, and how long
        self.cold = workload.cold_s
        self.result = SimulationResult(workload=workload, kv_tokens=scheduler.rules.kv_tokens)

    def run(self) -> SimulationResult:
        """Send all requests and count until the engine is idle."""
        if self.workload.rate:
            self._send_next()
        else:
            for number, request in enumerate(itertools.islice(self.coming, self.workload.concurrency)):
                self._send(request, number * self.workload.spacing_s)
        while True:
            self._enter_due_requests()
            self.scheduler.admit()
            until_next = max(self.entering[0][0] - self.now, 0.0) if self.entering else math.inf
            done = self.scheduler.advance(max_seconds=until_next)
            if done is not None:
                self._count(done)
            elif self.entering:
                self.now = max(self.now, self.entering[0][0])
            else:
                break
        self.result.duration_s, self.result.preemptions = self.now, self.scheduler.preemptions
        return self.result

    def _make_requests(self) -> Iterator[SimulatedRequest]:
        """Yield the requests; with a rate they have an arrival time, with a concurrency each is sent on an end."""
        workload, at = self.workload, 0.0
        draw = random.Random(workload.seed)
        for number in range(workload.requests):
            at = at + draw.expovariate(workload.rate) if workload.rate else 0.0
            prompt, output = workload.request_lengths(number)
            warm = workload.warm is None or number < workload.warm
            cached = int(prompt * workload.prefix_hit) if warm else 0
            yield SimulatedRequest(id=number, input=prompt, output=output, arrival=at, cached_tokens=cached)

    def _send(self, request: SimulatedRequest, at: float) -> None:
        """Send `request`; it reaches the engine after HTTP and the tokenizer, when the engine looks for new ones."""
        request.arrival, speed = at, self.scheduler.speed
        if self.workload.turns > 1:
            _, turn = self.conversations.setdefault(request.id, (request.id, 0))
            request.input += 0 if turn else self.workload.prefix
        self.last_in = speed.intake_end(at, request.input, self.last_in)
        wait_s = self.scheduler.rules.poll_steps * self.scheduler.busy * (self.now - self.step_began)
        heapq.heappush(self.entering, (self.last_in + request.id * GOLDEN % 1 * wait_s, next(self.order), request))

    def _read_elsewhere(self, request: SimulatedRequest, at: float) -> None:
        """Let an engine that only reads prompts read this one and hand its cache over."""
        speed = self.scheduler.speed
        free = heapq.heappop(self.readers)
        load_s, prompt = self._take_prefix(request), request.tokens_to_read
        found, request.cached_tokens = request.cached_tokens, prompt
        request.first_token_at = max(at, free) + load_s + speed.prefill_s(prompt - found, found)
        self.result.cached_tokens += found
        heapq.heappush(self.readers, request.first_token_at)
        enters = request.first_token_at + prompt * speed.token_bytes / HANDOVER
        heapq.heappush(self.entering, (enters, next(self.order), request))

    def _take_prefix(self, request: SimulatedRequest) -> float:
        """Look up the conversation of a request, and return the seconds to load what a tier has of it."""
        if request.id not in self.conversations:
            return 0.0
        conversation, turn = self.conversations[request.id]
        found = self.cache.take_prefix(conversation, request.input, begins=not turn)
        request.cached_tokens = max(request.cached_tokens, found.tokens)
        return found.seconds

    def _find_prefix(self, request: SimulatedRequest) -> bool:
        """Look up a conversation at admission. False if it waits for a load, which follows others over one link."""
        if self.readers or request.is_loaded or not (load_s := self._take_prefix(request)):
            return True
        ready = self.cache.start_load(request, load_s, self.now)
        heapq.heappush(self.entering, (ready, next(self.order), request))
        return False

    def _send_next(self) -> None:
        request = next(self.coming, None)
        if request is not None:
            self._send(request, request.arrival if self.workload.rate else self.now)

    def _enter_due_requests(self) -> None:
        """Submit what has arrived by now, or by the start of the running step if steps are prepared ahead."""
        ahead = self.scheduler.rules.schedules_ahead and self.scheduler.busy
        due = self.step_began if ahead else self.now
        loaded: list[SimulatedRequest] = []
        while self.entering and self.entering[0][0] <= due:
            at, _, request = heapq.heappop(self.entering)
            if request.is_loaded:
                loaded.append(request)
                continue
            if self.readers and request.first_token_at < 0:
                self._read_elsewhere(request, at)
                continue
            if request.first_token_at >= 0:
                self._count_first_token(request, request.first_token_at)
            if not (accepted := self.scheduler.submit(request)):
                self.result.rejected += 1
                self.conversations.pop(request.id, None)
            if not accepted or self.workload.rate:
                self._send_next()
        self.scheduler.waiting.extendleft(reversed(loaded))

    def _count(self, done: ScheduleSlice) -> None:
        """Add one slice to the clock and the figures."""
        result = self.result
        result.slices += 1
        self.now += done.seconds + self.cold
        self.step_began = self.now - done.seconds / max(done.steps, 1)
        if done.steps:
            self._count_gaps(done)
        else:
            begun = set(done.started) - set(done.finished)
            self.stalls.append((self.scheduler.running - len(begun), done.seconds))
        self.cold = 0.0
        for request in done.started:
            if request.first_token_at < 0:
                request.first_token_at = self.now
                self._count_first_token(request, self.now)
        for request in done.finished:
            result.completed += 1
            result.input_tokens += request.input
            result.cached_tokens += 0 if self.readers else request.cached_tokens
            result.output_tokens += request.output
            result.e2el.add(self.now - request.arrival)
            if request.output > 1:
                result.tpot.add((self.now - request.first_token_at) / (request.output - 1))
            self._continue_after(request)
        result.peak_kv_tokens = max(result.peak_kv_tokens, self.scheduler.kept_tokens)
        result.peak_batch = max(result.peak_batch, self.scheduler.running)

    def _count_first_token(self, request: SimulatedRequest, at: float) -> None:
        self.result.ttft.add(at - request.arrival)
        if self.conversations.get(request.id, (0, 0))[1]:
            self.result.returning.add(at - request.arrival)

    def _count_gaps(self, done: ScheduleSlice) -> None:
        """Count gaps between tokens; the first after prompts were read is longer, less so for later sequences."""
        each = (done.seconds + self.cold) / done.steps
        stalled, counted = sum(seconds for _, seconds in self.stalls), 0
        for waiting, seconds in (*self.stalls, (done.batch, 0.0)):
            if waiting > counted:
                self.result.itl.add(each + stalled, waiting - counted)
                counted = waiting
            stalled -= seconds
        if done.steps > 1:
            self.result.itl.add(each, done.batch * (done.steps - 1.0))
        self.stalls = []

    def _continue_after(self, request: SimulatedRequest) -> None:
        """Send the next turn of the conversation that `request` belongs to, or another request."""
        conversation, turn = self.conversations.pop(request.id, (-1, 0))
        if conversation >= 0:
            self.cache.keep_tokens(conversation, request.input, request.output)
        following = next(self.coming, None) if not self.workload.rate else None
        if following is None:
            return
        if conversation < 0 or turn + 1 >= self.workload.turns:
            self._send(following, self.now)
            return
        following.input += request.input + request.output
        self.conversations[following.id] = (conversation, turn + 1)
        self._send(following, self.now + self.workload.think_s)
