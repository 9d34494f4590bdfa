"""A second rehearsal refines the first: depths are added, points of the same depth are averaged."""

import math
from dataclasses import replace

from moebox.core.calibration import Boot, Calibration, Timed
from moebox.errors import UnknownName
from moebox.store import calibrations


def with_earlier(found: Calibration) -> Calibration:
    """`found` together with what the store has under its id, where that was measured here."""
    try:
        earlier = calibrations.get(found.id)
    except UnknownName:
        return found
    if earlier.id != found.id or earlier.imported or earlier.place != found.place:
        return found
    steps = {(step.batch, step.context): step for step in (*earlier.expected, *found.expected)}
    expected = tuple(steps[key] for key in sorted(steps))
    return replace(found, boots=merged(earlier.boots, found.boots), expected=expected)


def merged(earlier: tuple[Boot, ...], later: tuple[Boot, ...]) -> tuple[Boot, ...]:
    """Boots of both, one for each depth."""
    table = {(boot.layers, boot.gpu_experts): boot for boot in earlier}
    for boot in later:
        key = (boot.layers, boot.gpu_experts)
        table[key] = joined(table[key], boot) if key in table else boot
    return tuple(table[key] for key in sorted(table))


def joined(before: Boot, after: Boot) -> Boot:
    """Two boots of the same depth."""
    steps = {(step.batch, step.context): step for step in before.decode}
    steps |= {(step.batch, step.context): mean(steps.get((step.batch, step.context)), step) for step in after.decode}
    prompts = {prompt.tokens: prompt for prompt in before.prefill}
    prompts |= {prompt.tokens: mean(prompts.get(prompt.tokens), prompt) for prompt in after.prefill}
    return replace(
        after, decode=tuple(steps[key] for key in sorted(steps)), prefill=tuple(prompts[key] for key in sorted(prompts))
    )


def mean(before: Timed | None, after: Timed) -> Timed:
    """The mean of two looks; its error is theirs together, or half of what they disagree by."""
    if before is None:
        return after
    seconds = (before.seconds + after.seconds) / 2
    apart = abs(before.seconds - after.seconds) / 2 / seconds
    return replace(after, seconds=seconds, spread=max(math.hypot(before.spread, after.spread) / 2, apart))
