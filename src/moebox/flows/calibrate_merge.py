"""A second rehearsal refines the first: depths are added, points of the same depth are averaged."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from moebox.core.calibration import Boot, Calibration, StepT
from moebox.errors import UnknownName
from moebox.store import calibrations

T = TypeVar("T")
DEPTH, POINT, PROMPT = attrgetter("layers", "gpu_experts"), attrgetter("batch", "context"), attrgetter("tokens")


def merge_with_stored(found: Calibration) -> Calibration:
    """`found` together with what the store has under its id, where that was measured here."""
    try:
        earlier = calibrations.find_calibration(found.id)
    except UnknownName:
        return found
    if earlier.id != found.id or earlier.imported or earlier.place != found.place:
        return found
    return replace(
        found,
        boots=merge_boots(earlier.boots, found.boots),
        expected=merge_by_key(earlier.expected, found.expected, POINT, lambda before, after: after),
    )


def merge_by_key(
    earlier: Iterable[T], later: Iterable[T], key: Callable[[T], Any], both: Callable[[T, T], T]
) -> tuple[T, ...]:
    """What is in either, by `key`; what is in both, put together by `both`."""
    table = {key(each): each for each in earlier}
    for each in later:
        table[key(each)] = both(table[key(each)], each) if key(each) in table else each
    return tuple(table[place] for place in sorted(table))


def merge_boots(earlier: tuple[Boot, ...], later: tuple[Boot, ...]) -> tuple[Boot, ...]:
    """Boots of both, one for each depth."""
    return merge_by_key(earlier, later, DEPTH, merge_boot_pair)


def merge_boot_pair(before: Boot, after: Boot) -> Boot:
    """Two boots of the same depth."""
    decode = merge_by_key(before.decode, after.decode, POINT, average_timing)
    return replace(after, decode=decode, prefill=merge_by_key(before.prefill, after.prefill, PROMPT, average_timing))


def average_timing(before: StepT, after: StepT) -> StepT:
    """The mean of two looks; its error is theirs together, or half of what they disagree by."""
    seconds = (before.seconds + after.seconds) / 2
    apart = abs(before.seconds - after.seconds) / 2 / seconds
    return replace(after, seconds=seconds, spread=max(math.hypot(before.spread, after.spread) / 2, apart))
