"""Log-probabilities of texts as one server gave them, and the reasons why they cannot be used."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from moebox.quality.wire import NextToken, TokenKey

MIN_TOP = 2
MIN_POSITIONS = 40  # fewer give no figure worth showing
ROUNDED_DECIMALS = 3  # so few decimals are a rounded figure: a float has six or more
CLAMPED_SHARE = 0.05  # of all values that may be equal to the lowest one
UNEQUAL_LEAST = 0.05  # of positions must have a prediction of their own
UNEQUAL_SHARE = 0.2  # of positions at which a server may not write its most likely token: near ties


@dataclass(frozen=True, slots=True, kw_only=True)
class TextReading:
    """One text: its tokens by the server's tokenizer, and what the server predicted."""

    kind: str
    name: str
    tokens: tuple[TokenKey, ...]
    positions: tuple[NextToken, ...]


def tokenizer_hash(readings: Sequence[TextReading]) -> str:
    """Hash of the tokens of all texts, their special tokens included."""
    rows = [[reading.name, *reading.tokens] for reading in readings]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def find_reading_problem(readings: Sequence[TextReading]) -> str:
    """Return why log-probabilities are not usable, or "": too few, rounded, clamped, or not of this text."""
    positions = [position for reading in readings for position in reading.positions]
    if len(positions) < MIN_POSITIONS:
        return f"only {len(positions)} positions have log-probabilities"
    sizes = Counter(len(position.top) for position in positions)
    if sizes.most_common(1)[0][0] < MIN_TOP:
        return "it gives only the most likely token"
    values = [value for position in positions for value in position.top.values()]
    if max(values) > 1e-3 or not all(map(math.isfinite, values)):
        return f"log-probabilities must be at most 0, and one is {max(values):.3g}"
    lowest = min(values)
    if values.count(lowest) > max(10, CLAMPED_SHARE * len(values)):
        return f"log-probabilities are clamped at {lowest:g}"
    total = max(math.fsum(map(math.exp, position.top.values())) for position in positions)
    if total > 1.01:
        return f"probabilities of one position add up to {total:.2f}"
    if len({tuple(position.top.values()) for position in positions}) < UNEQUAL_LEAST * len(positions):
        return "log-probabilities do not depend on the text"
    scaled = 10.0**ROUNDED_DECIMALS
    if sum(abs(value * scaled - round(value * scaled)) < 1e-6 for value in values) > 0.9 * len(values):
        return f"log-probabilities are rounded to {ROUNDED_DECIMALS} decimals or fewer"
    return ""
