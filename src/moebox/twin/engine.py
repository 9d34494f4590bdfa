"""Run the planner's scheduler against the wall clock: one step at a time, each as long as the speed model computes.

Its counters are shown as Prometheus text, under vLLM's metric names.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from moebox.planner.kv_tiers import CacheTier, PrefixCache
from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.speed import Speed
from moebox.twin.request import CHARS_PER_TOKEN, TwinRequest

# vLLM 0.32's buckets, seconds.
SHORT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
TTFT = (*SHORT, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
BLOCK = 16  # tokens, vLLM's default


@dataclass(slots=True)
class LatencyHistogram:
    bounds: tuple[float, ...]
    counts: Counter[float] = field(default_factory=Counter)  # of values up to each bound
    total: float = 0.0
    number: int = 0

    def observe(self, seconds: float) -> None:
        self.counts.update(bound for bound in self.bounds if seconds <= bound)
        self.total += seconds
        self.number += 1

    def text_lines(self, name: str, label: str) -> list[str]:
        rows = [f'{name}_bucket{{le="{bound}",{label}}} {self.counts[bound]}' for bound in self.bounds]
        rows += [f'{name}_bucket{{le="+Inf",{label}}} {self.number}', f"{name}_count{{{label}}} {self.number}"]
        return [f"# TYPE {name} histogram", *rows, f"{name}_sum{{{label}}} {self.total:.6f}"]


@dataclass(slots=True, kw_only=True)
class TwinCounters:
    """Totals since the twin started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"length": 0, "abort": 0})
    ttft: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(TTFT))
    ttft_by_tier: dict[str, LatencyHistogram] = field(default_factory=dict)  # "" if all was computed
    cached_tokens: dict[str, int] = field(default_factory=dict)  # by tier
    itl: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(ITL))
    e2e: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(E2E))


def metrics_text(counters: TwinCounters, scheduler: Scheduler, *, model: str, context: int) -> str:
    name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    label = f'engine="0",model_name="{name}"'
    kv_tokens, cached = scheduler.rules.kv_tokens, counters.cached_tokens
    share = min(scheduler.used_tokens / kv_tokens, 1.0) if kv_tokens else 0.0
    lines = ["# SIMULATION: these figures come from moebox twin, not from an engine"]
    for metric, kind, value in (
        ("num_requests_running", "gauge", scheduler.running + len(scheduler.reading)),
        ("num_requests_waiting", "gauge", len(scheduler.waiting)),
        ("kv_cache_usage_perc", "gauge", f"{share:.6f}"),
        ("num_preemptions_total", "counter", scheduler.preemptions),
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("generation_tokens_total", "counter", counters.generation_tokens),
        ("prefix_cache_queries_total", "counter", counters.prompt_tokens),
        ("prefix_cache_hits_total", "counter", cached.get("GPUs", 0)),
        ("external_prefix_cache_hits_total", "counter", sum(cached.values()) - cached.get("GPUs", 0)),
    ):
        lines += [f"# TYPE vllm:{metric} {kind}", f"vllm:{metric}{{{label}}} {value}"]
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, number in counters.finished.items():
        lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {number}')
    info = (
        f'block_size="{BLOCK}",num_gpu_blocks="{kv_tokens // BLOCK}",kv_cache_size_tokens="{kv_tokens}",'
        f'kv_cache_max_concurrency="{kv_tokens / context:.2f}",simulation="true",engine="0"'
    )
    lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1"]
    lines += counters.ttft.text_lines("vllm:time_to_first_token_seconds", label)
    lines += counters.itl.text_lines("vllm:inter_token_latency_seconds", label)
    lines += counters.e2e.text_lines("vllm:e2e_request_latency_seconds", label)
    return "\n".join(lines) + "\n"


@dataclass(slots=True, kw_only=True, eq=False)
class TwinJob:
    """A request and the client that waits for it."""

    request: SimulatedRequest
    wanted: TwinRequest
    conversation: int = 0
    tier: str = ""  # that its cached tokens came from
    sent: int = 0  # tokens reported to the client
    last: float = 0.0  # time of the last report
    progress: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)  # tokens made so far


class TwinEngine:
    """Steps while there is work; `faster` divides every time. Without `tiers` (None) no prefix is cached."""

    def __init__(
        self, speed: Speed, rules: SchedulerRules, tiers: Sequence[CacheTier] | None = None, *, faster: float = 1.0
    ) -> None:
        self.scheduler = Scheduler(speed=speed, rules=rules)
        self.cache = PrefixCache(self.scheduler, tiers=tiers or ())
        self.scheduler.find_prefix = None if tiers is None else self._find_prefix
        self.prefixes: dict[int, tuple[int, int]] = {}  # hash of a prompt's first blocks -> conversation, blocks kept
        self.counters = TwinCounters()
        self.faster = faster
        self._jobs: dict[int, TwinJob] = {}
        self._ids = itertools.count()
        self._has_work = asyncio.Event()

    async def run(self) -> None:
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

    def _find_prefix(self, request: SimulatedRequest) -> bool:
        """Look up the kept conversation that a prompt begins like. False if it waits for a load from a tier.

        A prompt that continues a conversation takes its cache; one that only begins alike has a cache of its own.
        """
        job = self._jobs.get(request.id)
        if job is None or request.is_loaded or request.preemptions:
            return True
        marks = hash_blocks(job.wanted.prompt)
        alike = next((place for place in range(len(marks), 0, -1) if marks[place - 1] in self.prefixes), 0)
        owner, kept = self.prefixes[marks[alike - 1]] if alike else (-1, 0)
        tokens = alike * request.input // max(len(marks), 1)
        if alike == kept and alike:
            job.conversation, found = owner, self.cache.take_prefix(owner, tokens + 1, begins=False)
        else:
            job.conversation, found = request.id, self.cache.find_prefix(owner, min(tokens, request.input - 1))
        now = time.monotonic() * self.faster
        job.tier, job.wanted.cached_tokens = found.tier, found.tokens
        request.cached_tokens = found.tokens
        if found.tier:
            counted = self.counters.cached_tokens
            counted[found.tier] = counted.get(found.tier, 0) + request.cached_tokens
        if found.seconds:
            ready = self.cache.start_load(request, found.seconds, now)
            asyncio.get_running_loop().call_later((ready - now) / self.faster, self._enter_loaded, request)
        return not request.is_loaded

    def _enter_loaded(self, request: SimulatedRequest) -> None:
        if request.id in self._jobs:
            self.scheduler.waiting.appendleft(request)
            self._has_work.set()

    def _keep_prefix(self, job: TwinJob) -> None:
        """Keep a finished conversation, and forget the prompts of those that every tier has dropped."""
        wanted = job.wanted
        self.cache.keep_tokens(job.conversation, wanted.prompt_tokens, wanted.output)
        marks = hash_blocks(f"{wanted.prompt}\n{wanted.text_part(0, wanted.output)}" if wanted.chat else wanted.prompt)
        held = set().union(*self.cache.held)
        self.prefixes = {mark: known for mark, known in self.prefixes.items() if known[0] in held}
        self.prefixes |= dict.fromkeys(marks, (job.conversation, len(marks)))

    async def generate(self, wanted: TwinRequest) -> AsyncGenerator[int, None]:
        """Generate the reply to a request; yield the number of tokens made so far each time it grows."""
        now, prompt, output = time.monotonic(), wanted.prompt_tokens, wanted.output
        request = SimulatedRequest(id=next(self._ids), input=prompt, output=output, arrival=now)
        if not self.scheduler.submit(request):
            kv_tokens = self.scheduler.rules.kv_tokens
            raise ValueError(f"{prompt} + {output} tokens do not fit in the cache of {kv_tokens} tokens")
        job = self._jobs[request.id] = TwinJob(request=request, wanted=wanted, last=now)
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
                own = self.counters.ttft_by_tier.setdefault(self._jobs[request.id].tier, LatencyHistogram(TTFT))
                for histogram in (self.counters.ttft, own):
                    histogram.observe(now - request.arrival)
        for job in self._jobs.values():
            made = int(self.scheduler.tokens_made(job.request) + 1e-9) if job.request.first_token_at >= 0 else 0
            if made > job.sent:
                if job.sent:
                    self.counters.itl.observe(now - job.last)
                self.counters.generation_tokens += made - job.sent
                job.last, job.sent = now, made
                job.progress.put_nowait(made)
        for request in done.finished:
            if (ended := self._jobs.pop(request.id, None)) is not None:
                if self.scheduler.find_prefix:
                    self._keep_prefix(ended)
                self.counters.finished["length"] += 1
                self.counters.e2e.observe(now - request.arrival)


def hash_blocks(text: str) -> list[int]:
    """Hash a prompt up to the end of each whole block, as engines name the blocks of their cache."""
    size, marks, mark = BLOCK * CHARS_PER_TOKEN, [], 0
    for start in range(0, len(text) - size + 1, size):
        mark = hash((mark, text[start : start + size]))
        marks.append(mark)
    return marks
