"""The cost of a fleet: boxes rented or bought, electricity, and the same tokens from a hosted API."""

import math
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from moebox.errors import require_all

if TYPE_CHECKING:
    from moebox_fleet.simulate import FleetOutcome

HOURS_A_YEAR = 8766.0
# A serving GPU between requests draws far below its limit; H100 and RTX PRO 6000 with a loaded model idle at 70-130 W
# of 600-700 W (nvidia-smi of published runs). Host, fans and power supply come on top of the GPUs.
IDLE_SHARE = 0.2
AROUND_GPUS = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPrice:
    """The price of one kind of box: rented by the hour, or bought and written off."""

    hour: float = 0.0
    buy: float = 0.0
    years: float = 4.0
    watts: float = 0.0  # of the whole box under load, at the wall; 0: estimated from its GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """The price of a hosted API per million tokens."""

    name: str = "hosted API"
    input: float
    output: float
    cached: float | None = None  # input tokens from its cache; None: the price of input


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Known prices; there are no defaults."""

    currency: str = "USD"
    kwh: float = 0.0
    hours_per_day: float = 24.0  # with users; boxes are paid for around the clock
    box: dict[str, BoxPrice] = field(default_factory=dict)  # box name -> price
    api: ApiPrice | None = None

    def validate(self, where: str) -> None:
        numbers = [self.kwh, self.hours_per_day, *chain.from_iterable(map(astuple, self.box.values()))]
        if self.api:
            numbers += [self.api.input, self.api.output, self.api.cached or 0.0]
        written_off = all(not price.buy or price.years > 0 for price in self.box.values())
        require_all(
            where,
            {
                "prices.box: a bought box needs years above 0": written_off,
                "prices are numbers, and not negative": all(0 <= number < math.inf for number in numbers),
                "prices.hours_per_day is above 0 and at most 24": 0 < self.hours_per_day <= 24,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a fleet at a simulated load; None if no price was given."""

    watts: float  # mean during the hours with users
    box_hour: float | None  # all boxes and their electricity
    per_million: float | None  # for a million tokens, input and output together, over the whole day
    per_million_output: float | None
    api_per_million: float | None  # the same tokens from the API
    api_hour: float | None
    break_even: float | None  # share of this load at which the API costs the same


def fleet_cost(outcome: "FleetOutcome", prices: Prices, *, box: str, gpu_watts: float) -> Cost:
    known = prices.box.get(box)
    tally, hours = outcome.tally, outcome.seconds / 3600
    measured = known.watts if known else 0.0
    busy_watts = gpu_watts * AROUND_GPUS  # of a box with its GPUs at their limit
    draw = sum(measured or busy_watts * (IDLE_SHARE + (1 - IDLE_SHARE) * member.busy) for member in outcome.boxes)
    hour = None
    if known and (known.hour or known.buy):
        each = known.hour + known.buy / (known.years * HOURS_A_YEAR)
        hour = len(outcome.boxes) * each + draw / 1000 * prices.kwh
    in_use = prices.hours_per_day / 24
    output = tally.output_tokens / hours / 1e6 * in_use
    tokens = (tally.input_tokens + tally.output_tokens) / hours / 1e6 * in_use
    api_hour = None
    if api := prices.api:
        cached = api.input if api.cached is None else api.cached
        fresh = tally.input_tokens - tally.cached_tokens
        total = (fresh * api.input + tally.cached_tokens * cached + tally.output_tokens * api.output) / 1e6
        api_hour = _ratio(total, hours / in_use)
    return Cost(
        watts=draw,
        box_hour=hour,
        per_million=_ratio(hour, tokens),
        per_million_output=_ratio(hour, output),
        api_per_million=_ratio(api_hour, tokens),
        api_hour=api_hour,
        break_even=_ratio(hour, api_hour),
    )


def _ratio(amount: float | None, of: float | None) -> float | None:
    """The ratio, or None if one is unknown or the second is 0."""
    return amount / of if amount is not None and of else None
