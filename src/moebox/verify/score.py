"""How sure a share of successes is."""

import math

from moebox.core.verdict import Score

Z95 = 1.959963984540054  # the normal quantile that leaves 2.5% on either side


def wilson(passed: int, trials: int, z: float = Z95) -> Score:
    """Wilson's score interval: honest for few trials and for shares near 0 or 1."""
    if trials == 0:
        return Score(passed=0, trials=0, low=0.0, high=1.0)
    share = passed / trials
    weight = 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / weight
    reach = z / weight * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return Score(passed=passed, trials=trials, low=max(0.0, middle - reach), high=min(1.0, middle + reach))


def share_text(score: Score) -> str:
    """A score in words: "19 of 20 (76-99%)"."""
    return f"{score.passed} of {score.trials} ({score.low * 100:.0f}-{score.high * 100:.0f}%)"
