"""The smallest fleet that meets the SLO by simulation, also with one box down, and by routing policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from moebox.core.measure import Slo
from moebox.errors import refuse_if
from moebox_fleet.route import Policy
from moebox_fleet.simulate import BoxModel, FleetOutcome, FleetQuestion, simulate_fleet

MAX_BOXES = 64  # boxes tried
OutcomeListener = Callable[[FleetOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedFleet:
    """The number of boxes of one kind, and the simulated fleets."""

    box: BoxModel
    enough: int | None  # boxes that meet the SLO; None if the most do not
    outcome: FleetOutcome  # of that fleet, or of the largest one
    round_robin: FleetOutcome  # the same fleet with round-robin
    with_failure: FleetOutcome | None  # the same fleet if a box dies half-way; None for a single box
    spare: int | None  # boxes that meet the SLO after one of them dies
    tried: tuple[tuple[int, float], ...]  # boxes and share of good requests of every simulated fleet


def size_fleet(
    box: BoxModel, question: FleetQuestion, *, most: int = MAX_BOXES, on_outcome: OutcomeListener | None = None
) -> SizedFleet:
    """Find the smallest fleet of `box` for `question`, and simulate it with a failure."""
    no_limit = question.slo == Slo(share=question.slo.share)
    refuse_if(no_limit, "sizing a fleet needs an SLO", hint="--slo ttft=2s,tpot=50ms")
    search = _FleetSearch(box, question, most, on_outcome)
    enough = search.find_smallest(fail=False)
    number = enough or most
    # With one box down, the rest must be enough, also while conversations move.
    spare = search.find_smallest(fail=True, start=number + 1) if enough else None
    return SizedFleet(
        box=box,
        enough=enough,
        outcome=search.simulate(number),
        round_robin=search.simulate(number, policy="round-robin"),
        with_failure=search.simulate(number, fail=True) if number > 1 else None,
        spare=spare,
        tried=tuple(
            sorted((key[0], value.good_share) for key, value in search.done.items() if key[1:] == search.usual)
        ),
    )


class _FleetSearch:
    def __init__(self, box: BoxModel, question: FleetQuestion, most: int, watch: OutcomeListener | None) -> None:
        self.box, self.question, self.most, self.watch = box, question, most, watch
        self.usual: tuple[Policy, bool] = (question.policy, False)
        self.done: dict[tuple[int, Policy, bool], FleetOutcome] = {}

    def simulate(self, number: int, *, policy: Policy | None = None, fail: bool = False) -> FleetOutcome:
        key = (number, policy or self.question.policy, fail)
        if key not in self.done:
            half = self.question.warm_s + (self.question.seconds - self.question.warm_s) / 2
            asked = replace(self.question, policy=key[1], fail_at=half if fail else 0.0)
            self.done[key] = simulate_fleet([self.box] * number, asked)
            if self.watch:
                self.watch(self.done[key])
        return self.done[key]

    def meets_slo(self, number: int, *, fail: bool) -> bool:
        """Whether the fleet meets the SLO, with `fail` after the failure."""
        outcome = self.simulate(number, fail=fail)
        share = outcome.good_after_failure if fail else outcome.good_share
        return share >= self.question.slo.share

    def find_smallest(self, *, fail: bool, start: int = 1) -> int | None:
        """The smallest number that meets the SLO: grow in steps until one does, then bisect."""
        low, high, step = start - 1, start, 1
        while high > self.most or not self.meets_slo(high, fail=fail):
            if high >= self.most:
                return None
            low, high, step = high, min(high + step, self.most), step * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets_slo(middle, fail=fail) else (middle, high)
        return high
