"""The arithmetic of a search over settings: which combinations to measure next, and which are worth showing."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from moebox.core.recipe import Flag

Changes = dict[str, Any]  # recipe path -> value
Single = tuple[str, Hashable]
T = TypeVar("T")

BEAM = 256  # combinations kept while settings are added one by one
LEAST_GAIN = 0.01  # logarithm; what gains less alone is not combined: fewer changes are easier to keep


def single_key(path: str, value: Flag) -> Single:
    return path, repr(value)


def combine_changes(
    settings: Mapping[str, Sequence[Flag]], gains: Mapping[Single, float], *, width: int
) -> list[Changes]:
    """The `width` combinations with the largest sum of gains (logarithms of each change alone), best first.

    Gains of settings seldom add up exactly; that is why the best combinations are measured.
    """
    found: list[tuple[float, Changes]] = [(0.0, {})]
    for path, values in settings.items():
        useful = [(gains.get(single_key(path, value), 0.0), value) for value in values]
        useful = [(gain, value) for gain, value in useful if gain >= LEAST_GAIN]
        found += [(total + gain, {**changes, path: value}) for total, changes in found for gain, value in useful]
        found = sorted(found, key=lambda row: (-row[0], len(row[1])))[:BEAM]
    return [changes for _, changes in found if changes][:width]


def halve_pool(pool: Sequence[T], scores: Sequence[float], *, least: int) -> list[T]:
    """The better half of a pool by its scores, best first, but at least `least` of it."""
    order = sorted(range(len(pool)), key=lambda index: -scores[index])
    return [pool[index] for index in order[: max(least, math.ceil(len(pool) / 2))]]


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points (cost, value) that no other one beats in both: less cost, more value; by ascending cost."""
    front: list[tuple[float, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or value > front[-1][1]:
            front.append((cost, value))
    return front
