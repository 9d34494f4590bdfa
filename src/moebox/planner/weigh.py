"""Candidates with their memory, troubles and forecast: what the choice is made from."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from moebox.core import gpu_list
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Caution, Forecast, Line, Memory
from moebox.core.recipe import Recipe
from moebox.engines import budget
from moebox.planner.candidates import Candidate, utilization
from moebox.planner.pins import Pins
from moebox.planner.speed import Speed
from moebox.planner.warnings import known_troubles

# The request that candidates are compared by: a prompt and an answer of ordinary agent turns.
PROMPT, ANSWER = 4096, 1024
STREAMS = {"throughput": 32, "latency": 1, "context": 1}
CONTEXTS = (1024, 8192, 32768, 65536, 131072, 262144)
HIGHER = (0.92, 0.94, 0.95)  # claims to try where 0.90 does not hold the model
CONCURRENCIES = (1, 8, 32, 64, 128)


def request(context: int) -> tuple[int, int]:
    """Tokens of prompt and answer that candidates of this context are compared by: four to one where it is short."""
    answer = max(1, min(ANSWER, context // 5))
    return max(1, min(PROMPT, context - answer)), answer


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """A candidate that was looked at."""

    box: Box
    model: Model
    candidate: Candidate
    memory: Memory
    pins: Pins

    @property
    def recipe(self) -> Recipe:
        """Its recipe."""
        return self.candidate.recipe

    @cached_property
    def deployment(self) -> Deployment:
        """It on its box, as everything after the plan takes it."""
        return Deployment.of(self.recipe, self.model, self.checkpoint, self.box)

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint."""
        return self.candidate.checkpoint

    @cached_property
    def troubles(self) -> tuple[Caution, ...]:
        """What is known to go wrong."""
        return known_troubles(self.deployment)

    @property
    def refused(self) -> str:
        """Why it would not start, or ""."""
        return next((one.text for one in self.troubles if one.severity == "fatal"), "")

    @property
    def able(self) -> bool:
        """Whether it fits and is not known to fail at the start: what is, is never a plan, whoever pinned it."""
        return self.memory.fits and not self.refused

    @cached_property
    def speed(self) -> Speed:
        """Its speed model."""
        return Speed.of(self.deployment)

    @property
    def streams(self) -> int:
        """Streams it is compared at: as many as asked for and as its cache holds."""
        wanted = self.pins.concurrency or STREAMS[self.pins.goal]
        length = min(self.recipe.context, PROMPT + ANSWER)
        if self.pins.context and self.pins.concurrency:
            length = self.recipe.context
        most = self.recipe.max_seqs or wanted
        return max(1, min(wanted, most, self.memory.kv_tokens // max(length, 1)))

    @cached_property
    def score(self) -> float:
        """Answer tokens a second when `streams` such requests are read and answered together."""
        prompt, answer = request(self.recipe.context)
        step = self.speed.step_s(self.streams, prompt + answer // 2) / self.speed.tokens_per_step
        reading = self.speed.prefills_s(prompt, self.streams)
        return self.streams * answer / (reading + answer * step)

    def memory_as(self, other: Candidate) -> Memory:
        """What another candidate would take in its place."""
        return memory_of(Deployment.of(other.recipe, self.model, other.checkpoint, self.box))

    @cached_property
    def decode(self) -> float:
        """Decode tokens a second at the streams it is compared at."""
        return self.speed.decode_tok_s(self.streams, min(PROMPT, self.recipe.context))


def weigh(box: Box, model: Model, found: Iterable[Candidate], pins: Pins) -> list[Weighed]:
    """The memory of every candidate; speed and troubles are worked out when asked for."""
    return [
        Weighed(
            box=box,
            model=model,
            candidate=one,
            memory=memory_of(Deployment.of(one.recipe, model, one.checkpoint, box)),
            pins=pins,
        )
        for one in found
    ]


def memory_of(deployment: Deployment) -> Memory:
    """The budget; the cache holds what a calibration of this box saw the engine allocate, where there is one.

    Engines that share the work with the CPU make the cache as large as they are asked to, whatever memory is left.
    """
    memory = budget(deployment)
    if deployment.engine.offloads or not deployment.place.calibrations or not memory.fits:
        return memory
    measured = Speed.of(deployment).measured
    if measured is None or not measured.cache_tokens:
        return memory
    tokens = measured.cache_tokens
    formula = f"{memory.kv_tokens:,} by arithmetic; carried to {measured.layers} layers from what the engine allocated"
    line = Line(what="cache, measured", formula=formula, value=tokens, unit="tokens", source=measured.calibration.id)
    return replace(memory, kv_tokens=tokens, lines=(*memory.lines, line))


def claiming_enough(one: Weighed) -> Weighed:
    """It with the least higher claim on each GPU that holds it, where the usual one does not and one would."""
    claim = one.recipe.memory_utilization
    if one.memory.fits or claim is None or one.pins.memory_utilization:
        return one
    for share in _higher_claims(one, claim):
        larger = replace(one.candidate, recipe=replace(one.recipe, memory_utilization=share))
        memory = one.memory_as(larger)
        if memory.fits:
            return replace(one, candidate=larger, memory=memory)
    return one


def _higher_claims(one: Weighed, claim: float) -> Iterator[float]:
    """Claims above `claim` that add as much as the fullest GPU lacks."""
    used = gpu_list.used_gpus(one.box, one.recipe)
    largest = max(gpu.memory for gpu in gpu_list.all_gpus(one.box))
    shares = (utilization(one.box, used, share) for share in HIGHER)
    return (share for share in shares if one.memory.shortfall <= (share - claim) * largest)


def forecast(one: Weighed) -> tuple[Forecast, ...]:
    """Rows by context and concurrency, as far as the cache holds them."""
    lengths = up_to(one.recipe.context, CONTEXTS)[-4:]
    many = sorted({*CONCURRENCIES, one.pins.concurrency or 1})
    pairs = itertools.product(lengths, many)
    return tuple(_row(one, *pair) for pair in pairs if _holds(one, *pair))


def up_to(limit: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that a context holds, and the context itself."""
    return (*(size for size in sizes if size < limit), limit)


def _holds(one: Weighed, context: int, streams: int) -> bool:
    most = one.recipe.max_seqs or streams
    return streams == 1 or (streams <= most and streams * context <= one.memory.kv_tokens)


def _row(one: Weighed, context: int, streams: int) -> Forecast:
    low, high = one.speed.band
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
