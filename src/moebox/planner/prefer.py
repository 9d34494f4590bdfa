"""What a forecast is worth: the figure that the goal asks for, less for what is less proven.

The choice is the candidate that is worth most. Every discount hangs on the candidate alone, never on the box or on what
else fits, so a larger box or a looser pin, which only add candidates, never lead to a choice that is worth less.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from moebox.core import catalogue, registry
from moebox.core.traits import Traits
from moebox.planner.candidates import LEAST_BITS, START_UTILIZATION
from moebox.planner.rate import RatedCandidate

# An engine that is not the first choice must be forecast this much better: the forecast's own error is about as large.
TOLERANCE = 0.85
THIRD_PARTY = 0.90  # weights somebody else made smaller
FEW_ROWS = 0.90  # an engine with few published results
ROUNDED_TWICE = 0.75  # the same, where the makers' own have as few bits: nothing is saved, and they are rounded again
OTHER_FORMAT = 0.97  # a smaller form from the makers themselves
ROUNDED_CACHE = 0.93
ROUNDED = {"fp8": "an fp8", "q8_0": "a q8_0", "q4_0": "a q4_0"}  # such caches
UNMEASURED = 0.85  # the expert kernel's speed is a neighbour's
LESS_PLAIN = 0.97  # pipeline stages, expert parallelism, tensor parallelism over nodes: more that can go wrong
DIVIDED_CACHE = 0.90  # decode context parallelism: rows of one rig only
ONE_SLOT = 0.90  # whoever asks second waits
PER_HIGHER_UTILIZATION = (
    3.0  # taken off for each part of a GPU that is claimed beyond a careful start: 6% at 0.92, 15% at 0.95
)
LAST_RESORT = 0.20  # drafts and patched images: tried after a plain start stands, or when nothing plain fits
KNOWN_SLOW = 0.20  # somebody measured a fraction of what the forecast says, for a reason that it does not know
SLOW_SYMPTOMS = ("kv-fp8-sglang-slow",)  # such symptoms
FEW_BITS = 0.5  # and what a form below that counts, once more for each whole bit below


@dataclass(frozen=True, slots=True)
class Discount:
    """One reason to take a candidate only when it is better by so much."""

    factor: float
    reason: str
    always: bool = False  # for the bold as well


def all_discounts(weighed: RatedCandidate) -> tuple[Discount, ...]:
    """Everything about a candidate that is less proven than the plainest one."""
    parallel, recipe = weighed.recipe.parallel, weighed.recipe
    claim = recipe.memory_utilization or 0
    beyond = 0 if recipe.hybrid else claim - START_UTILIZATION
    slow = any(trouble.symptom in SLOW_SYMPTOMS for trouble in weighed.known_issues)
    plainness = (
        (parallel.dcp > 1, Discount(DIVIDED_CACHE, "a cache divided by DCP is less proven")),
        (parallel.pp > 1, Discount(LESS_PLAIN, "pipeline stages add what can go wrong")),
        (parallel.group_nodes > 1, Discount(LESS_PLAIN, "tensor parallelism over nodes hangs on the network")),
        (parallel.ep, Discount(LESS_PLAIN, "expert parallelism adds what can go wrong")),
        (recipe.max_seqs == 1, Discount(ONE_SLOT, "it answers one request at a time")),
        (
            beyond > 0,
            Discount(1 - PER_HIGHER_UTILIZATION * beyond, f"a claim of {claim} of each GPU leaves less for peaks"),
        ),
        (slow, Discount(KNOWN_SLOW, "known to run at a fraction of this", always=True)),
        (recipe.speculate, Discount(LAST_RESORT, "drafts are tried once it runs")),
        (recipe.runtime.preset, Discount(LAST_RESORT, "the image is a third party's patch")),
    )
    less_plain = (discount for applies, discount in plainness if applies)
    return (*_bits(weighed), *_engine(weighed), *_kernel(weighed), *_cache(weighed), *less_plain)


def _bits(weighed: RatedCandidate) -> Iterator[Discount]:
    bits = weighed.checkpoint.bits_per_weight(weighed.model)
    if bits < LEAST_BITS:
        yield Discount(FEW_BITS ** (1 + LEAST_BITS - bits), f"{bits:.2f} bits a weight", always=True)


def _engine(weighed: RatedCandidate) -> Iterator[Discount]:
    """Another engine or other weights than the first choice."""
    checkpoint, engine = weighed.checkpoint, registry.engine_traits(weighed.recipe.engine)
    if engine.rank > preferred_engine().rank:
        yield Discount(TOLERANCE, f"{preferred_engine().title} is preferred where speeds are close")
    if not engine.is_proven:
        yield Discount(FEW_ROWS, f"few have measured {engine.title}")
    if not checkpoint.native and not checkpoint.path:
        yield _other_form(weighed)


def _kernel(weighed: RatedCandidate) -> Iterator[Discount]:
    step = weighed.speed.gpu_step
    if step and not step.kernel.measured and not weighed.speed.measured:
        yield Discount(UNMEASURED, f"no published {step.kernel.quant} results on such GPUs")


def _cache(weighed: RatedCandidate) -> Iterator[Discount]:
    kv = weighed.recipe.kv
    usual = "fp8" if weighed.recipe.runtime.preset else "bf16"
    if kv in ROUNDED and kv != usual:
        yield Discount(ROUNDED_CACHE, f"{ROUNDED[kv]} cache rounds keys and values")


def _other_form(weighed: RatedCandidate) -> Discount:
    """What weights count that are not as the makers published them."""
    model, checkpoint = weighed.model, weighed.checkpoint
    if _owner(checkpoint.repo) == _owner(model.repo):
        return Discount(OTHER_FORMAT, "a smaller form of its makers")
    rounded = native_bits_per_weight(model.name) <= 1.05 * checkpoint.bits_per_weight(model)
    if rounded and checkpoint.format != "gguf":  # those that large keep what the makers' rounded ones hold
        return Discount(ROUNDED_TWICE, "a third party rounded the makers' rounded weights once more")
    return Discount(THIRD_PARTY, "weights that a third party made smaller")


@functools.cache
def native_bits_per_weight(name: str) -> float:
    """Bits a weight of the smallest form that a model's makers published; without end where none is known."""
    own = [checkpoint for checkpoint in catalogue.published_checkpoints(name) if checkpoint.native]
    return min((checkpoint.bits_per_weight(catalogue.find_model(name)) for checkpoint in own), default=math.inf)


@functools.cache
def preferred_engine() -> Traits:
    """The engine that is taken where forecasts tie."""
    return min((engine for engine in registry.all_traits() if engine.is_gpu_only), key=lambda engine: engine.rank)


def discounted_figure(weighed: RatedCandidate) -> float:
    """The goal's figure, discounted unless bold."""
    return math.prod((discount.factor for discount in applied_discounts(weighed)), start=goal_figure(weighed))


def goal_figure(weighed: RatedCandidate) -> float:
    """What the goal asks for: answer tokens a second, or cache with `context`."""
    return float(weighed.memory.kv_tokens) if weighed.constraints.goal == "context" else weighed.score


def deciding_discounts(lost: RatedCandidate, best: RatedCandidate) -> Iterator[Discount]:
    """What is less proven about a candidate than about the choice, the most first, until it explains the choice."""
    shared = applied_discounts(best)
    own = sorted((each for each in applied_discounts(lost) if each not in shared), key=lambda each: each.factor)
    ahead = discounted_figure(lost) / discounted_figure(best) / math.prod(each.factor for each in own)
    for discount in own:
        if ahead > 1:
            yield discount
        ahead *= discount.factor


def applied_discounts(weighed: RatedCandidate) -> tuple[Discount, ...]:
    """Those discounts that count: for the bold only some."""
    return tuple(discount for discount in all_discounts(weighed) if not weighed.constraints.bold or discount.always)


def _owner(repo: str) -> str:
    return repo.partition("/")[0].lower()
