"""Decode steps at a depth that was not booted, where the GPU works while the host prepares the next step.

Such a step lasts as long as the slower of the two. With few layers that is the host, whose time has nothing to do with
layers, and a line through two shallow boots then says that layers cost next to nothing: Qwen3-235B on an H200 took
1.56 ms for one stream with 4 layers, 1.55 ms with 8 and 4.73 ms with 36. So the boots are read together with what the
forecast from published rows expects of the same steps. That is a line in the layers too, and the boots correct it:

* its fixed seconds by one figure for all steps, the lowest that several of them agree on: in a shallow boot the host
  and whatever disturbs it only ever add time;
* its seconds a layer, for every step, by what the deepest boot took; where that boot shows the host as well, because it
  took no longer than the shallow one, by no more than the next larger batch.
"""

import math
from collections.abc import Mapping, Sequence

from moebox.core.calibration import ExpectedStep

Depth = tuple[int, int]  # layers, of these with experts on GPUs
Series = Mapping[Depth, tuple[float, float]]  # seconds and their spread by depth
Key = tuple[int, int]  # batch and context

LOWEST, LOW = 0.1, 0.3  # shares of the steps that lie below the correction, and below its doubt
GROWN = 1.1  # a deeper boot that takes no longer than this times the shallow one shows the host


def extrapolate_decode(
    table: Mapping[Key, Series], expected: Mapping[Key, ExpectedStep], layers: int
) -> dict[Key, tuple[float, float]]:
    """Seconds of every step at `layers`, and their relative error."""
    known = {key: table[key] for key in sorted(table, reverse=True) if key in expected}
    moved = [fixed_seconds(series) - expected[key].fixed_s for key, series in known.items()]
    correction = quantile_of(moved, LOWEST)
    doubt = (quantile_of(moved, LOW) - correction) / 2
    factors: dict[Key, float] = {}
    found: dict[Key, tuple[float, float]] = {}
    for key, series in known.items():
        wanted = expected[key]
        base = wanted.fixed_s + correction
        deep, (seconds, spread) = max(series.items())
        factor = (seconds - base) / deep[0] / wanted.layer_s
        larger = [factors[other] for other in factors if other[1] == key[1]]
        if larger and seconds <= GROWN * min(series.items())[1][0]:
            factor = min(factor, larger[-1])
        factors[key] = factor
        total = max(base + factor * wanted.layer_s * layers, seconds)  # more layers are never faster
        beyond = doubt * abs(layers / deep[0] - 1)  # what is fixed and was taken for layers' is multiplied with them
        found[key] = (total, math.hypot(spread, beyond / total))
    return found


def fixed_seconds(series: Series) -> float:
    """Seconds of a step with no layers, on the line through the shallowest and the deepest boot."""
    (few, _), (sooner, _) = min(series.items())
    (more, _), (later, _) = max(series.items())
    return (sooner * more - later * few) / (more - few)


def quantile_of(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)
