"""Many times in little memory."""

import math
from dataclasses import dataclass, field

BIN = math.log(1.01)
FLOOR = 1e-6  # seconds; shorter times share a bin


@dataclass(slots=True)
class Histogram:
    """Times in logarithmic bins of 1%: mean, least and greatest exact, quantiles within half a bin."""

    bins: dict[int, float] = field(default_factory=dict)
    total: float = 0.0
    weight: float = 0.0
    squares: float = 0.0
    least: float = math.inf
    greatest: float = 0.0

    def add(self, seconds: float, weight: float = 1.0) -> None:
        """Count `seconds`, `weight` times."""
        place = math.floor(math.log(max(seconds, FLOOR)) / BIN)
        self.bins[place] = self.bins.get(place, 0.0) + weight
        self.total += seconds * weight
        self.weight += weight
        self.squares += seconds * seconds * weight
        self.least, self.greatest = min(self.least, seconds), max(self.greatest, seconds)

    @property
    def mean(self) -> float:
        """The mean, or 0 when nothing was counted."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(max(self.squares / self.weight - self.mean**2, 0.0)) if self.weight else 0.0

    def quantile(self, share: float) -> float:
        """The time that `share` of the counts do not exceed."""
        left = share * self.weight
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 1e-9:
                return min(max(math.exp((place + 0.5) * BIN), self.least), self.greatest)
        return 0.0
