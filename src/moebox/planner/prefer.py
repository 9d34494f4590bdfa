"""What a forecast is worth: the figure that the goal asks for, less for what is less proven.

The choice is the candidate that is worth most. Every discount hangs on the candidate alone, never on the box or on what
else fits, so a larger box or a looser pin, which only add candidates, never lead to a choice that is worth less.
"""

import functools
import math
from dataclasses import dataclass

from moebox.core import catalogue, registry
from moebox.planner.weigh import Weighed

# An engine that is not the first choice must be forecast this much better: the forecast's own error is about as large.
TOLERANCE = 0.85
THIRD_PARTY = 0.90  # weights somebody else made smaller
ROUNDED_TWICE = 0.75  # the same, where the makers' own have as few bits: nothing is saved, and they are rounded again
OTHER_FORM = 0.97  # a smaller form from the makers themselves
ROUNDED_CACHE = 0.93
UNMEASURED = 0.85  # the expert kernel's speed is a neighbour's
LESS_PLAIN = 0.97  # pipeline stages, expert parallelism: more that can go wrong
DIVIDED = 0.90  # decode context parallelism: rows of one rig only
LAST_RESORT = 0.20  # drafts and patched images: tried after a plain start stands, or when nothing plain fits
KNOWN_SLOW = 0.20  # somebody measured a fraction of what the forecast says, for a reason that it does not know
SLOW = ("kv-fp8-sglang-slow",)  # such symptoms
LEAST_BITS = 3.5  # a weight; below, perplexity leaves the original's (makers' model cards)
FEW_BITS = 0.5  # and what a form below that counts, once more for each whole bit below


@dataclass(frozen=True, slots=True)
class Discount:
    """One reason to take a candidate only when it is better by so much."""

    factor: float
    reason: str


def discounts(weighed: Weighed) -> tuple[Discount, ...]:
    """Everything about a candidate that is less proven than the plainest one."""
    recipe, checkpoint, parallel = weighed.recipe, weighed.checkpoint, weighed.recipe.parallel
    found = []
    bits = checkpoint.bits_per_weight(weighed.model)
    if bits < LEAST_BITS:
        found.append(Discount(FEW_BITS ** (1 + LEAST_BITS - bits), f"{bits:.2f} bits a weight"))
    if recipe.hybrid is None:
        if registry.traits(recipe.engine).rank > first_rank():
            found.append(Discount(TOLERANCE, f"{_first_title()} is preferred where speeds are close"))
        if not checkpoint.native and not checkpoint.path:
            found.append(_other_form(weighed))
    step = weighed.speed.gpu_step
    if step and not step.kernel.measured and not weighed.speed.measured:
        found.append(Discount(UNMEASURED, f"no published {step.kernel.quant} results on such GPUs"))
    usual = "fp8" if recipe.runtime.preset else "bf16"
    if recipe.kv in ("fp8", "q8_0", "q4_0") and recipe.kv != usual:
        article = "an" if recipe.kv == "fp8" else "a"
        found.append(Discount(ROUNDED_CACHE, f"{article} {recipe.kv} cache rounds keys and values"))
    if parallel.dcp > 1:
        found.append(Discount(DIVIDED, "a cache divided by DCP is less proven"))
    spreads = {"pipeline stages add": parallel.pp > 1, "expert parallelism adds": parallel.ep}
    found += [Discount(LESS_PLAIN, f"{name} what can go wrong") for name, used in spreads.items() if used]
    found += _known_slow(weighed)
    if recipe.speculate:
        found.append(Discount(LAST_RESORT, "drafts are tried once it runs"))
    if recipe.runtime.preset:
        found.append(Discount(LAST_RESORT, "the image is a third party's patch"))
    return tuple(found)


def _known_slow(weighed: Weighed) -> list[Discount]:
    slow = any(trouble.symptom in SLOW for trouble in weighed.troubles)
    return [Discount(KNOWN_SLOW, "known to run at a fraction of this")] if slow else []


def _other_form(weighed: Weighed) -> Discount:
    """What weights count that are not as the makers published them."""
    model, checkpoint = weighed.model, weighed.checkpoint
    if _owner(checkpoint.repo) == _owner(model.repo):
        return Discount(OTHER_FORM, "a smaller form of its makers")
    if native_bits(model.name) <= 1.05 * checkpoint.bits_per_weight(model):
        return Discount(ROUNDED_TWICE, "a third party rounded the makers' rounded weights once more")
    return Discount(THIRD_PARTY, "weights that a third party made smaller")


@functools.cache
def native_bits(name: str) -> float:
    """Bits a weight of the smallest form that a model's makers published; without end where none is known."""
    own = [checkpoint for checkpoint in catalogue.checkpoints(name) if checkpoint.native]
    return min((checkpoint.bits_per_weight(catalogue.model(name)) for checkpoint in own), default=math.inf)


def first_rank() -> int:
    """The rank of the engine that is taken where forecasts tie."""
    return min(registry.traits(name).rank for name in registry.names() if not registry.traits(name).offloads)


def _first_title() -> str:
    first = first_rank()
    return next(engine.title for engine in registry.all_traits() if engine.rank == first)


def worth(weighed: Weighed) -> float:
    """What the goal asks for: answer tokens a second, or cache with `context`; discounted unless bold."""
    value = float(weighed.memory.kv_tokens) if weighed.pins.goal == "context" else weighed.score
    if weighed.pins.bold:
        bits = weighed.checkpoint.bits_per_weight(weighed.model)
        value *= KNOWN_SLOW if _known_slow(weighed) else 1.0
        return value if bits >= LEAST_BITS else value * FEW_BITS ** (1 + LEAST_BITS - bits)
    for discount in discounts(weighed):
        value *= discount.factor
    return value


def _owner(repo: str) -> str:
    return repo.partition("/")[0].lower()
