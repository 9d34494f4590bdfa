"""What a forecast is worth: the goal's figure, discounted for what is less proven.

The candidate with the highest discounted figure is chosen. Every discount depends on the candidate alone, never on the
box or on what else fits, so a larger box or a looser constraint, which only add candidates, never worsen the choice.
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from moebox.core import catalogue, registry
from moebox.core.model import Checkpoint, Model
from moebox.engines.support import estimated_slow_rows
from moebox.planner.candidates import LEAST_BITS, START_UTILIZATION
from moebox.planner.rate import Candidate

# An engine that is not the first choice must be forecast this much better: the forecast's own error is about as large.
TOLERANCE = 0.85
THIRD_PARTY = 0.90  # weights that a third party made smaller
FEW_ROWS = 0.90  # an engine with few published results
ROUNDED_TWICE = 0.75  # third-party weights with as many bits as the makers' own: nothing saved, and rounded again
OTHER_FORMAT = 0.97  # a smaller format from the makers themselves
ROUNDED_CACHE = 0.93
ROUNDED = {"fp8": "an fp8", "q8_0": "a q8_0", "q4_0": "a q4_0", "nvfp4": "an nvfp4"}  # such caches
UNMEASURED = 0.85  # the expert kernel's speed is a neighbour's
LESS_PLAIN = 0.97  # pipeline stages, expert parallelism, tensor parallelism over nodes: more that can go wrong
DIVIDED_CACHE = 0.90  # decode context parallelism: measured on one box only
ONE_SLOT = 0.90  # a second request waits
READING_TOK_S = 15.0  # most people read no slower: below it, goal context gives up cache for speed
PER_HIGHER_UTILIZATION = 3.0  # per share of a GPU used beyond a careful start: 6% at 0.92, 15% at 0.95
LAST_RESORT = 0.20  # drafts and patched images: tried after a plain start works, or if nothing plain fits
FEW_BITS = 0.5  # below LEAST_BITS, and once more for each whole bit below


@dataclass(frozen=True, slots=True)
class Discount:
    """A reason to choose a candidate only if it is better by this factor."""

    factor: float
    reason: str
    always: bool = False  # also with --bold


def all_discounts(rated: Candidate) -> tuple[Discount, ...]:
    """Return everything about a candidate that is less proven than the plainest one."""
    recipe, parallel, model, checkpoint = rated.recipe, rated.recipe.parallel, rated.inputs.model, rated.checkpoint
    engine, step = registry.engine_traits(recipe.engine), rated.speed.gpu_step
    preferred = min((each for each in registry.all_traits() if not each.offloads_experts), key=lambda each: each.rank)
    bits, answer_rate = checkpoint.bits_per_weight(model), rated.score / rated.streams
    quant = "" if step is None or step.kernel.measured or rated.speed.measured else step.kernel.quant
    is_rounded = recipe.kv in ROUNDED and recipe.kv != ("fp8" if recipe.runtime.preset else "bf16")
    is_slow = rated.inputs.constraints.goal == "context" and answer_rate < READING_TOK_S
    share = recipe.memory_utilization or 0
    beyond = 0 if recipe.hybrid else share - START_UTILIZATION
    slow = f"{answer_rate:.1f} tok/s of one answer is slower than reading"
    rows = (
        (bits < LEAST_BITS, Discount(FEW_BITS ** (1 + LEAST_BITS - bits), f"{bits:.2f} bits a weight", always=True)),
        (engine.rank > preferred.rank, Discount(TOLERANCE, f"{preferred.title} is the default")),
        (not engine.is_proven, Discount(FEW_ROWS, f"few have measured {engine.title}")),
        (not checkpoint.native and not checkpoint.path, format_discount(model, checkpoint)),
        (quant, Discount(UNMEASURED, f"no published {quant} results on such GPUs")),
        (is_rounded, Discount(ROUNDED_CACHE, f"{ROUNDED.get(recipe.kv)} cache rounds keys and values")),
        (is_slow, Discount(answer_rate / READING_TOK_S, slow, always=True)),
        *(
            (True, Discount(row.factor or 1.0, f"reported slower than this: {row.text}", always=True))
            for row in estimated_slow_rows(rated.deployment)
        ),
        (parallel.dcp > 1, Discount(DIVIDED_CACHE, "a cache divided by DCP is less proven")),
        (parallel.pp > 1, Discount(LESS_PLAIN, "pipeline stages add what can go wrong")),
        (parallel.group_nodes > 1, Discount(LESS_PLAIN, "tensor parallelism over nodes depends on the network")),
        (parallel.ep, Discount(LESS_PLAIN, "expert parallelism adds what can go wrong")),
        (recipe.max_seqs == 1, Discount(ONE_SLOT, "it answers one request at a time")),
        (
            beyond > 0,
            Discount(1 - PER_HIGHER_UTILIZATION * beyond, f"a memory utilization of {share} leaves less for peaks"),
        ),
        (recipe.speculate, Discount(LAST_RESORT, "drafts are tried once it runs")),
        (recipe.runtime.preset, Discount(LAST_RESORT, "the image is a third party's patch")),
    )
    return tuple(discount for applies, discount in rows if applies)


def format_discount(model: Model, checkpoint: Checkpoint) -> Discount:
    """Return the discount of weights that are not as the makers published them first."""
    if checkpoint.repo.partition("/")[0].lower() == model.repo.partition("/")[0].lower():
        return Discount(OTHER_FORMAT, "a smaller format of its makers")
    # A GGUF of that size keeps what the makers' rounded weights hold.
    bits = checkpoint.bits_per_weight(model)
    if checkpoint.format != "gguf" and native_bits_per_weight(model.name) <= 1.05 * bits:
        return Discount(ROUNDED_TWICE, "a third party rounded the makers' rounded weights once more")
    return Discount(THIRD_PARTY, "weights that a third party made smaller")


@functools.cache
def native_bits_per_weight(name: str) -> float:
    """Bits per weight of the smallest format that a model's makers published; infinite if none is known."""
    own = [checkpoint for checkpoint in catalogue.published_checkpoints(name) if checkpoint.native]
    return min((checkpoint.bits_per_weight(catalogue.find_model(name)) for checkpoint in own), default=math.inf)


def applied_discounts(rated: Candidate) -> tuple[Discount, ...]:
    """Return the discounts that apply; with --bold, only the mandatory ones."""
    return tuple(discount for discount in all_discounts(rated) if not rated.inputs.constraints.bold or discount.always)


def goal_figure(rated: Candidate) -> float:
    """Return the goal's figure: answer tokens per second, or cache tokens for `context`."""
    return float(rated.memory.kv_tokens) if rated.inputs.constraints.goal == "context" else rated.score


def discounted_figure(rated: Candidate) -> float:
    return math.prod((discount.factor for discount in applied_discounts(rated)), start=goal_figure(rated))


def deciding_discounts(rejected: Candidate, best: Candidate) -> Iterator[Discount]:
    """Yield what is less proven than the choice, the largest discounts first, until they explain the choice."""
    shared = applied_discounts(best)
    own = sorted((each for each in applied_discounts(rejected) if each not in shared), key=lambda each: each.factor)
    ahead = discounted_figure(rejected) / discounted_figure(best) / math.prod(each.factor for each in own)
    for discount in own:
        if ahead > 1:
            yield discount
        ahead *= discount.factor
