"""How many boxes are enough: the smallest fleet that keeps to the SLO, by simulation; with one box down; by policy."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from moebox.core.measure import Slo
from moebox.errors import refuse_if
from moebox.fleet.route import Policy
from moebox.fleet.simulate import BoxModel, FleetOutcome, FleetQuestion, simulate_fleet

MAX_BOXES = 64  # boxes tried
OutcomeListener = Callable[[FleetOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedFleet:
    """One kind of box: how many of it, and how each fleet does."""

    box: BoxModel
    enough: int | None  # boxes that meet the SLO; None: not even MOST do
    outcome: FleetOutcome  # of that fleet, or of the largest tried
    round_robin: FleetOutcome  # the same fleet, requests sent round and round
    with_failure: FleetOutcome | None  # the same fleet when a box dies half-way; None for a single box
    spare: int | None  # boxes that meet the SLO after one of them died
    tried: tuple[tuple[int, float], ...]  # boxes and share of good requests, every fleet that was simulated


def size_fleet(
    box: BoxModel, question: FleetQuestion, *, most: int = MAX_BOXES, on_outcome: OutcomeListener | None = None
) -> SizedFleet:
    """The smallest fleet of `box` for `question`, and what becomes of it when one box dies."""
    no_limit = question.slo == Slo(share=question.slo.share)
    refuse_if(no_limit, "how many boxes are enough depends on what is enough", hint="--slo ttft=2s,tpot=50ms")
    search = _Search(box, question, most, on_outcome)
    enough = search.least(lambda number: search.good(number, fail=False))
    number = enough or most
    # With one box down for long, what is left must be enough; and so must it be while conversations move.
    spare = search.least(lambda count: search.good(count, fail=True), start=number + 1) if enough else None
    return SizedFleet(
        box=box,
        enough=enough,
        outcome=search.at(number),
        round_robin=search.at(number, policy="round-robin"),
        with_failure=search.at(number, fail=True) if number > 1 else None,
        spare=spare,
        tried=tuple(
            sorted((key[0], value.good_share) for key, value in search.done.items() if key[1:] == search.usual)
        ),
    )


class _Search:
    """Simulated fleets, each once."""

    def __init__(self, box: BoxModel, question: FleetQuestion, most: int, watch: OutcomeListener | None) -> None:
        self.box, self.question, self.most, self.watch = box, question, most, watch
        self.usual: tuple[Policy, bool] = (question.policy, False)
        self.done: dict[tuple[int, Policy, bool], FleetOutcome] = {}

    def at(self, number: int, *, policy: Policy | None = None, fail: bool = False) -> FleetOutcome:
        key = (number, policy or self.question.policy, fail)
        if key not in self.done:
            half = self.question.warm_s + (self.question.seconds - self.question.warm_s) / 2
            asked = replace(self.question, policy=key[1], fail_at=half if fail else 0.0)
            self.done[key] = simulate_fleet([self.box] * number, asked)
            if self.watch:
                self.watch(self.done[key])
        return self.done[key]

    def good(self, number: int, *, fail: bool) -> bool:
        """The fleet keeps to the SLO; with a failure, what comes after it does."""
        outcome = self.at(number, fail=fail)
        share = outcome.good_after_failure if fail else outcome.good_share
        return share >= self.question.slo.share

    def least(self, enough: Callable[[int], bool], *, start: int = 1) -> int | None:
        """The smallest number that is enough: stride until one is, then halve the gap."""
        low, high, step = start - 1, start, 1
        while high > self.most or not enough(high):
            if high >= self.most:
                return None
            low, high, step = high, min(high + step, self.most), step * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high
