"""A share of successes in words."""

from moebox.core.verdict import Score


def format_share(score: Score) -> str:
    """A score in words: "19 of 20 (76-99%)"."""
    return f"{score.passed} of {score.trials} ({score.low * 100:.0f}-{score.high * 100:.0f}%)"
