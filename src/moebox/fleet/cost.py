"""What a fleet costs: boxes by the hour or bought, electricity, and the same tokens from a hosted API."""

import math
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from moebox.errors import require_all

if TYPE_CHECKING:
    from moebox.fleet.simulate import FleetOutcome

HOURS_A_YEAR = 8766.0
# A serving GPU between requests draws far below its limit; H100 and RTX PRO 6000 with a loaded model idle at 70-130 W
# of 600-700 W (nvidia-smi of published runs). Host, fans and power supply come on top of the GPUs.
IDLE_SHARE = 0.2
AROUND_GPUS = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxPrice:
    """One kind of box: rented by the hour, or bought and written off."""

    hour: float = 0.0
    buy: float = 0.0
    years: float = 4.0
    watts: float = 0.0  # of the whole box under load, measured at the wall; 0 estimates it from its GPUs

    def has_write_off(self) -> bool:
        """Whether a box that was bought says over how many years."""
        return not self.buy or self.years > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """A hosted API, for a million tokens."""

    name: str = "hosted API"
    input: float
    output: float
    cached: float | None = None  # input tokens that it found in its cache; None charges them as input


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is known of prices; nothing here is assumed."""

    currency: str = "USD"
    kwh: float = 0.0
    hours_per_day: float = 24.0  # that users are there; boxes run and are paid for around the clock
    box: dict[str, BoxPrice] = field(default_factory=dict)  # box name -> price
    api: ApiPrice | None = None

    def validate(self, where: str) -> None:
        """Raise BadInput for what cannot be meant."""
        numbers = [self.kwh, self.hours_per_day, *chain.from_iterable(map(astuple, self.box.values()))]
        if self.api:
            numbers += [self.api.input, self.api.output, self.api.cached or 0.0]
        require_all(
            where,
            {
                "prices.box: a bought box needs years above 0": all(map(BoxPrice.has_write_off, self.box.values())),
                "prices are numbers, and not negative": all(0 <= number < math.inf for number in numbers),
                "prices.hours_per_day is above 0 and at most 24": 0 < self.hours_per_day <= 24,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A fleet's cost at a simulated load; None where no price was given."""

    watts: float  # mean, while users are there
    box_hour: float | None  # all boxes and their electricity
    per_million: float | None  # for a million tokens, input and output together, over the whole day
    per_million_output: float | None
    api_per_million: float | None  # the same tokens from the API
    api_hour: float | None
    break_even: float | None  # share of this load at which the API costs the same


def box_watts(gpu_watts: float, busy: float) -> float:
    """A box's draw when it is busy for this share of the time and its GPUs run at their limit meanwhile."""
    return gpu_watts * AROUND_GPUS * (IDLE_SHARE + (1 - IDLE_SHARE) * busy)


def fleet_cost(outcome: "FleetOutcome", prices: Prices, *, box: str, gpu_watts: float) -> Cost:
    """What the simulated fleet of boxes called `box` costs."""
    known = prices.box.get(box)
    tally, hours = outcome.tally, outcome.seconds / 3600
    measured = known.watts if known else 0.0
    draw = sum(measured or box_watts(gpu_watts, member.busy) for member in outcome.boxes)
    hour = _hour(known, len(outcome.boxes), draw, prices)
    in_use = prices.hours_per_day / 24
    output = tally.output_tokens / hours / 1e6 * in_use
    tokens = (tally.input_tokens + tally.output_tokens) / hours / 1e6 * in_use
    api = _api(tally.input_tokens, tally.cached_tokens, tally.output_tokens, prices)
    api_hour = _over(api, hours / in_use)
    return Cost(
        watts=draw,
        box_hour=hour,
        per_million=_over(hour, tokens),
        per_million_output=_over(hour, output),
        api_per_million=_over(api_hour, tokens),
        api_hour=api_hour,
        break_even=_over(hour, api_hour),
    )


def _over(amount: float | None, of: float | None) -> float | None:
    """Their ratio; None where one is not known, or the second is nothing."""
    if amount is None or not of:
        return None
    return amount / of


def _hour(price: BoxPrice | None, boxes: int, draw: float, prices: Prices) -> float | None:
    if price is None or not (price.hour or price.buy):
        return None
    each = price.hour + price.buy / (price.years * HOURS_A_YEAR)
    return boxes * each + draw / 1000 * prices.kwh


def _api(inputs: int, cached: int, output: int, prices: Prices) -> float | None:
    api = prices.api
    if api is None:
        return None
    found = api.input if api.cached is None else api.cached
    return ((inputs - cached) * api.input + cached * found + output * api.output) / 1e6
