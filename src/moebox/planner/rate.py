"""Candidates with their memory, known issues and forecast: what the choice is made from."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import ArithmeticLine, Forecast, Memory, PlanWarning
from moebox.core.recipe import Recipe
from moebox.core.setting import with_settings
from moebox.core.support_matrix import SupportRow
from moebox.engines import memory_budget
from moebox.engines.support import failures_fixed_by_settings
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_issues
from moebox.sizing.constants import memory_constant_bytes, reserved_bytes, visible_bytes

# The request that candidates are compared by: prompt and answer of an ordinary agent turn.
PROMPT_TOKENS, ANSWER_TOKENS = 4096, 1024
USUAL_CONTEXT = 8192  # tokens; plans begin with the speed of one stream near it, and explain that
STREAMS = {"throughput": 32, "latency": 1, "context": 1}
CONTEXTS = (1024, 8192, 32768, 65536, 131072, 262144)
HIGHER_UTILIZATIONS = (0.92, 0.94, 0.95)  # to try if 0.90 does not hold the model
CONCURRENCIES = (1, 8, 32, 64, 128)


def comparison_request(context: int) -> tuple[int, int]:
    """Prompt and answer tokens that candidates of this context are compared by: four to one if it is short."""
    answer = max(1, min(ANSWER_TOKENS, context // 5))
    return max(1, min(PROMPT_TOKENS, context - answer)), answer


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What is planned: a model with its checkpoints, on a box, within constraints."""

    box: Box
    model: Model
    checkpoints: tuple[Checkpoint, ...]
    constraints: Constraints

    def with_constraints(self, **changes: Any) -> "PlanInputs":
        return replace(self, constraints=replace(self.constraints, **changes))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A recipe and what it is made from; memory, issues and speed are computed when first needed."""

    inputs: PlanInputs
    recipe: Recipe
    checkpoint: Checkpoint
    tier: int  # how far it is from the plainest one
    needed: tuple[SupportRow, ...] = ()  # failures that settings of its recipe avoid

    def change_recipe(self, **changes: Any) -> "Candidate":
        return replace(self, recipe=replace(self.recipe, **changes))

    @cached_property
    def deployment(self) -> Deployment:
        return Deployment(self.recipe, self.inputs.model, self.checkpoint, self.inputs.box)

    @cached_property
    def memory(self) -> Memory:
        return memory_of_deployment(self.deployment)

    @cached_property
    def known_issues(self) -> tuple[PlanWarning, ...]:
        return known_issues(self.deployment)

    @property
    def fatal_issue(self) -> str:
        """Why it would not start, or ""."""
        return next((issue.text for issue in self.known_issues if issue.severity == "fatal"), "")

    @property
    def is_viable(self) -> bool:
        """True if it fits in memory and has no fatal issue; others are never planned, even if constrained to."""
        return self.memory.fits and not self.fatal_issue

    @cached_property
    def speed(self) -> Speed:
        return Speed.for_deployment(self.deployment)

    @property
    def streams(self) -> int:
        """Streams it is compared at: as many as requested and as the cache holds."""
        constraints = self.inputs.constraints
        wanted = constraints.concurrency or STREAMS[constraints.goal]
        length = min(self.recipe.context, PROMPT_TOKENS + ANSWER_TOKENS)
        if constraints.context and constraints.concurrency:
            length = self.recipe.context
        limit = self.recipe.max_seqs or wanted
        return max(1, min(wanted, limit, self.memory.held_sequences(length, self.recipe.context)))

    @cached_property
    def score(self) -> float:
        """Answer tokens per second while `streams` comparison requests are read and answered together."""
        prompt, answer = comparison_request(self.recipe.context)
        step = self.speed.step_s(self.streams, prompt + answer // 2) / self.speed.tokens_per_step
        return self.streams * answer / (self.speed.prefills_s(prompt, self.streams) + answer * step)


def complete_settings(candidate: Candidate) -> Candidate:
    """The candidate with a share of memory that it fits in, and if there is one, with what it is known to need."""
    raised = raise_utilization(candidate)
    return add_needed_settings(raised) if raised.memory.fits else raised


def add_needed_settings(candidate: Candidate) -> Candidate:
    """The candidate with the flags, or the smaller share of memory, without which it is known to fail."""
    with_share = not candidate.inputs.constraints.memory_utilization
    rows = failures_fixed_by_settings(candidate.deployment, with_share=with_share)
    if not rows:
        return candidate
    recipe = with_settings(candidate.recipe, {path: value for row in rows for path, value in row.change.items()})
    changed = replace(candidate, recipe=recipe, needed=tuple(rows))
    return changed if changed.memory.fits or not candidate.memory.fits else candidate


def memory_of_deployment(deployment: Deployment) -> Memory:
    """Return the memory budget; the cache is as large as a calibration of this box measured it, if there is one.

    CPU+GPU engines make the cache as large as requested, whatever memory is left.
    """
    memory = memory_budget(deployment)
    if deployment.engine.offloads_experts or not deployment.required_box.calibrations or not memory.fits:
        return memory
    measured = Speed.for_deployment(deployment).measured
    if measured is None or not measured.cache_tokens:
        return memory
    line = ArithmeticLine(
        what="cache, measured",
        formula=f"{memory.kv_tokens:,} by arithmetic; the engine's own allocation extrapolated to "
        f"{measured.layers} layers",
        value=measured.cache_tokens,
        unit="tokens",
        source=measured.calibration.id,
    )
    return replace(memory, kv_tokens=measured.cache_tokens, lines=(*memory.lines, line))


def raise_utilization(candidate: Candidate) -> Candidate:
    """Retry with higher memory utilization if that makes the candidate fit, unless the user constrained it."""
    utilization, box = candidate.recipe.memory_utilization, candidate.inputs.box
    if candidate.memory.fits or utilization is None or candidate.inputs.constraints.memory_utilization:
        return candidate
    used = candidate.recipe.used_gpus(box)
    largest = max(gpu.memory for gpu in box.all_gpus)
    for higher in HIGHER_UTILIZATIONS:
        share = limit_utilization(box, used, higher)
        if candidate.memory.shortfall > (share - utilization) * largest:
            continue  # adds less than what the fullest GPU is short of
        raised = candidate.change_recipe(memory_utilization=share)
        if raised.memory.fits:
            return raised
    return candidate


def limit_utilization(box: Box, used: tuple[int, ...], share: float) -> float:
    """Return `share`, or less if other programs hold a part of a GPU."""
    all_gpus = box.all_gpus
    for gpu in {all_gpus[index] for index in used}:
        visible = visible_bytes(gpu)
        free = visible - reserved_bytes(gpu) - memory_constant_bytes("load", "margin")
        share = min(share, math.floor(100 * free / visible) / 100)
    return max(share, 0.01)


def forecast_rows(candidate: Candidate) -> Iterator[Forecast]:
    """Yield the forecast by context and concurrency, as far as the cache holds them."""
    for context in sizes_up_to(candidate.recipe.context, CONTEXTS)[-4:]:
        for streams in sorted({*CONCURRENCIES, candidate.inputs.constraints.concurrency or 1}):
            held = streams <= candidate.memory.held_sequences(context, candidate.recipe.context)
            if streams > 1 and not (held and streams <= (candidate.recipe.max_seqs or streams)):
                continue
            rate, reading = candidate.speed.decode_tok_s(streams, context), candidate.speed.prefill_s(context)
            prompt_rate = candidate.speed.prefill_tok_s(context)
            low, high = candidate.speed.step_range(streams, context)
            slow, fast = candidate.speed.prompt_range(context)
            yield Forecast(
                context=context,
                concurrency=streams,
                decode_tok_s=round(rate, 2),
                low_tok_s=round(rate * low, 2),
                high_tok_s=round(rate * high, 2),
                prefill_tok_s=round(prompt_rate, 1),
                prefill_low_tok_s=round(prompt_rate * slow, 1),
                prefill_high_tok_s=round(prompt_rate * fast, 1),
                ttft_s=round(reading, 4),
            )


def sizes_up_to(limit: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes below `limit`, then `limit` itself."""
    return (*(size for size in sizes if size < limit), limit)
