"""What drafts gain: tokens of a step by how often a guess is taken, and how far requests differ in that."""

import functools
import math

RANKS = 200  # of requests, over which acceptance is averaged


def tokens_per_step(accept: float, draft_tokens: int) -> float:
    """Expected tokens a sequence gains in a step: 1 + p + p² + … for each draft token taken."""
    return sum(accept**place for place in range(draft_tokens + 1))


@functools.lru_cache(maxsize=4096)
def draft_slowdown(accept: float, draft_tokens: int, rank: float) -> float:
    """The mean of steps a token at one rank over that of all ranks, where acceptance differs between requests.

    A request's own acceptance is rank^((1 - a) / a), the power law with the mean a: most are guessed well, a few hardly
    at all. It has no constant of its own; Lambda's P99 TPOT (40.2 ms at a mean of 21.1) comes out within a few percent.
    """
    power = (1 - accept) / accept if accept else math.inf

    def steps(at: float) -> float:
        return 1 / tokens_per_step(float(at**power), draft_tokens)

    ranks = [(number + 0.5) / RANKS for number in range(RANKS)]
    return steps(rank) / (sum(map(steps, ranks)) / RANKS)


def acceptance_per_token(share: float, draft_tokens: int) -> float:
    """The chance of each draft token, given those before it, at which `share` of all of them are taken."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        taken = (tokens_per_step(middle, draft_tokens) - 1) / draft_tokens
        low, high = (middle, high) if taken < share else (low, middle)
    return low
