"""Which steps are timed, in which order, within which time."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from moebox.core.recipe import Recipe
from moebox.units import plural

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 4096, 16384)
PROMPTS = (128, 512, 2048)
LONG = 2.5  # the longest prompt, in chunks: attention to earlier chunks shows from it
MOST_TOKENS = 262_144  # cached at once in one point; more would be spent on reading prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPoint:
    """A step to time: a prompt alone (`batch` 0), or `batch` streams decoding."""

    batch: int = 0
    context: int  # the prompt's tokens

    @property
    def text(self) -> str:
        """In a few words."""
        if not self.batch:
            return f"a prompt of {self.context:,} tokens"
        return f"{plural(self.batch, 'stream')} at {self.context:,} tokens"


def timing_grid(recipe: Recipe, *, chunk: int, longest: int, cache_tokens: int) -> list[TimingPoint]:
    """Every point, the most telling first, so that whatever time allows is the best that can be had of it.

    `longest` is what one request may hold, prompt and reply; `cache_tokens` what all together may.
    """
    longest = max(longest - 192, 16)  # room for the reply
    room = min(MOST_TOKENS, cache_tokens or MOST_TOKENS)
    contexts = at_most(longest, CONTEXTS)
    prompts = at_most(longest, (*PROMPTS, chunk, round(LONG * chunk)))
    batches = order_outer_first(batches_of(recipe.slots))
    decode = [
        TimingPoint(batch=size, context=context)
        for context in (contexts[0], *reversed(contexts[1:]))
        for size in batches
        if size * context <= room
    ]
    reading = [TimingPoint(context=tokens) for tokens in order_outer_first(prompts)]
    first, second = reading[:1] + decode[:2], reading[1:3]
    return [*first, *second, *reading[3:], *decode[2:]]


def at_most(longest: int, sizes: Iterable[int]) -> list[int]:
    """`sizes` in order, none above `longest`."""
    return sorted({min(size, longest) for size in sizes})


def batches_of(most: int) -> list[int]:
    """Sizes up to the most sequences a step holds, and that size itself."""
    sizes = [size for size in BATCHES if size <= most]
    return [*sizes, most] if most not in sizes and most <= BATCHES[-1] else sizes


def order_outer_first(sizes: list[int]) -> list[int]:
    """The ends, then what lies between them, widest gap first: 1 64 8 2 32 4 16."""
    left = sorted(sizes)
    taken = [left[0], left[-1]] if len(left) > 1 else left
    while len(taken) < len(left):
        known = sorted(taken)
        gaps = [(left.index(high) - left.index(low), low, high) for low, high in itertools.pairwise(known)]
        _, low, high = max(gaps)
        taken.append(left[(left.index(low) + left.index(high)) // 2])
    return taken
