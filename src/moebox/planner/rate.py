"""Candidates with their memory, troubles and forecast: what the choice is made from."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from moebox.core import gpu_list
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import ArithmeticLine, Forecast, Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines import memory_budget
from moebox.planner.candidates import Candidate, limit_utilization
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_issues

# The request that candidates are compared by: a prompt and an answer of ordinary agent turns.
PROMPT_TOKENS, ANSWER_TOKENS = 4096, 1024
STREAMS = {"throughput": 32, "latency": 1, "context": 1}
CONTEXTS = (1024, 8192, 32768, 65536, 131072, 262144)
HIGHER_UTILIZATIONS = (0.92, 0.94, 0.95)  # claims to try where 0.90 does not hold the model
CONCURRENCIES = (1, 8, 32, 64, 128)


def comparison_request(context: int) -> tuple[int, int]:
    """Tokens of prompt and answer that candidates of this context are compared by: four to one where it is short."""
    answer = max(1, min(ANSWER_TOKENS, context // 5))
    return max(1, min(PROMPT_TOKENS, context - answer)), answer


@dataclass(frozen=True, kw_only=True)
class RatedCandidate:
    """A candidate that was looked at."""

    box: Box
    model: Model
    candidate: Candidate
    memory: Memory
    constraints: Constraints

    @property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return self.candidate.recipe

    @cached_property
    def deployment(self) -> Deployment:
        """It on its box, as everything after the plan takes it."""
        return Deployment.from_parts(self.recipe, self.model, self.checkpoint, self.box)

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint."""
        return self.candidate.checkpoint

    @cached_property
    def known_issues(self) -> tuple[PlanWarning, ...]:
        """What is known to go wrong."""
        return known_issues(self.deployment)

    @property
    def fatal_issue(self) -> str:
        """Why it would not start, or ""."""
        return next((one.text for one in self.known_issues if one.severity == "fatal"), "")

    @property
    def is_viable(self) -> bool:
        """Whether it fits and is not known to fail at the start: what is, is never a plan, whoever pinned it."""
        return self.memory.fits and not self.fatal_issue

    @cached_property
    def speed(self) -> Speed:
        """Its speed model."""
        return Speed.for_deployment(self.deployment)

    @property
    def streams(self) -> int:
        """Streams it is compared at: as many as asked for and as its cache holds."""
        wanted = self.constraints.concurrency or STREAMS[self.constraints.goal]
        length = min(self.recipe.context, PROMPT_TOKENS + ANSWER_TOKENS)
        if self.constraints.context and self.constraints.concurrency:
            length = self.recipe.context
        most = self.recipe.max_seqs or wanted
        return max(1, min(wanted, most, self.memory.kv_tokens // max(length, 1)))

    @cached_property
    def score(self) -> float:
        """Answer tokens a second when `streams` such requests are read and answered together."""
        prompt, answer = comparison_request(self.recipe.context)
        step = self.speed.step_s(self.streams, prompt + answer // 2) / self.speed.tokens_per_step
        reading = self.speed.prefills_s(prompt, self.streams)
        return self.streams * answer / (reading + answer * step)

    def memory_with(self, other: Candidate) -> Memory:
        """What another candidate would take in its place."""
        return memory_of_deployment(Deployment.from_parts(other.recipe, self.model, other.checkpoint, self.box))

    @cached_property
    def decode_rate(self) -> float:
        """Decode tokens a second at the streams it is compared at."""
        return self.speed.decode_tok_s(self.streams, min(PROMPT_TOKENS, self.recipe.context))


def rate_candidates(
    box: Box, model: Model, candidates: Iterable[Candidate], constraints: Constraints
) -> list[RatedCandidate]:
    """The memory of every candidate; speed and troubles are worked out when asked for."""
    return [
        RatedCandidate(
            box=box,
            model=model,
            candidate=one,
            memory=memory_of_deployment(Deployment.from_parts(one.recipe, model, one.checkpoint, box)),
            constraints=constraints,
        )
        for one in candidates
    ]


def memory_of_deployment(deployment: Deployment) -> Memory:
    """The budget; the cache holds what a calibration of this box saw the engine allocate, where there is one.

    Engines that share the work with the CPU make the cache as large as they are asked to, whatever memory is left.
    """
    memory = memory_budget(deployment)
    if deployment.engine.offloads_experts or not deployment.required_box.calibrations or not memory.fits:
        return memory
    measured = Speed.for_deployment(deployment).measured
    if measured is None or not measured.cache_tokens:
        return memory
    tokens = measured.cache_tokens
    formula = f"{memory.kv_tokens:,} by arithmetic; carried to {measured.layers} layers from what the engine allocated"
    line = ArithmeticLine(
        what="cache, measured", formula=formula, value=tokens, unit="tokens", source=measured.calibration.id
    )
    return replace(memory, kv_tokens=tokens, lines=(*memory.lines, line))


def raise_utilization(candidate: RatedCandidate) -> RatedCandidate:
    """It with the least higher claim on each GPU that holds it, where the usual one does not and one would."""
    claim = candidate.recipe.memory_utilization
    if candidate.memory.fits or claim is None or candidate.constraints.memory_utilization:
        return candidate
    for share in _higher_claims(candidate, claim):
        larger = replace(candidate.candidate, recipe=replace(candidate.recipe, memory_utilization=share))
        memory = candidate.memory_with(larger)
        if memory.fits:
            return replace(candidate, candidate=larger, memory=memory)
    return candidate


def _higher_claims(one: RatedCandidate, claim: float) -> Iterator[float]:
    """Claims above `claim` that add as much as the fullest GPU lacks."""
    used = gpu_list.used_gpus(one.box, one.recipe)
    largest = max(gpu.memory for gpu in gpu_list.all_gpus(one.box))
    shares = (limit_utilization(one.box, used, share) for share in HIGHER_UTILIZATIONS)
    return (share for share in shares if one.memory.shortfall <= (share - claim) * largest)


def forecast_rows(candidate: RatedCandidate) -> tuple[Forecast, ...]:
    """Rows by context and concurrency, as far as the cache holds them."""
    lengths = sizes_up_to(candidate.recipe.context, CONTEXTS)[-4:]
    many = sorted({*CONCURRENCIES, candidate.constraints.concurrency or 1})
    pairs = itertools.product(lengths, many)
    return tuple(_row(candidate, *pair) for pair in pairs if _holds(candidate, *pair))


def sizes_up_to(limit: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that a context holds, and the context itself."""
    return (*(size for size in sizes if size < limit), limit)


def _holds(one: RatedCandidate, context: int, streams: int) -> bool:
    most = one.recipe.max_seqs or streams
    return streams == 1 or (streams <= most and streams * context <= one.memory.kv_tokens)


def _row(one: RatedCandidate, context: int, streams: int) -> Forecast:
    low, high = one.speed.decode_range
    rate, reading = one.speed.decode_tok_s(streams, context), one.speed.prefill_s(context)
    return Forecast(
        context=context,
        concurrency=streams,
        decode_tok_s=round(rate, 2),
        low_tok_s=round(rate * low, 2),
        high_tok_s=round(rate * high, 2),
        prefill_tok_s=round(context / reading, 1) if reading else 0.0,
        ttft_s=round(reading, 4),
    )
