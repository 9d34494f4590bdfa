"""`moebox fleet plan`: how many of which box, by simulated fleets with their cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from moebox import codec
from moebox.core.box import Box
from moebox.core.recipe import Recipe
from moebox_fleet.cost import Cost, Prices, fleet_cost
from moebox_fleet.simulate import BoxModel, FleetOutcome, FleetQuestion
from moebox_fleet.size import MAX_BOXES, SizedFleet, size_fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCandidate:
    """A box with the recipe it would run."""

    box: Box
    recipe: Recipe
    model: BoxModel

    @property
    def gpu_watts(self) -> float:
        return float(sum(gpu.tdp for gpu in self.box.gpus) * self.box.nodes)

    @property
    def speed_range(self) -> tuple[float, float]:
        """Factors on its forecast speed that contain four of five published results."""
        return self.model.speed.range_factors("serving")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """One kind of box, with the number needed and the cost."""

    candidate: FleetCandidate
    sized: SizedFleet
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The answers, best first, and the fleet as its file lists it."""

    question: FleetQuestion
    workload: str
    answers: tuple[FleetAnswer, ...]
    refused: dict[str, str]  # box -> reason
    listed: FleetOutcome | None = None


def plan_fleet(
    candidates: list[FleetCandidate],
    question: FleetQuestion,
    workload: str,
    prices: Prices,
    *,
    refused: dict[str, str],
    most: int = MAX_BOXES,
    on_outcome: Callable[[FleetOutcome], None] | None = None,
) -> FleetPlan:
    """Size every candidate. Order by price if known, then by number of boxes, then by watts."""
    answers = []
    for candidate in candidates:
        sized = size_fleet(candidate.model, question, most=most, on_outcome=on_outcome)
        paid = fleet_cost(sized.outcome, prices, box=candidate.box.name, gpu_watts=candidate.gpu_watts)
        answers.append(FleetAnswer(candidate=candidate, sized=sized, cost=paid))
    answers.sort(
        key=lambda answer: (
            answer.sized.enough is None,
            math.inf if answer.cost.box_hour is None else answer.cost.box_hour,
            answer.sized.enough or MAX_BOXES,
            answer.cost.watts,
        )
    )
    return FleetPlan(question=question, workload=workload, answers=tuple(answers), refused=refused)


def plan_document(found: FleetPlan) -> dict[str, object]:
    question = found.question
    return {
        "simulated": True,
        "users": question.users,
        "workload": found.workload,
        "slo": codec.to_plain(question.slo),
        "policy": question.policy,
        "virtual_s": question.seconds,
        "answers": list(map(answer_row, found.answers)),
        "refused": found.refused,
        "listed": None if found.listed is None else outcome_row(found.listed),
    }


def answer_row(answer: FleetAnswer) -> dict[str, object]:
    sized, candidate = answer.sized, answer.candidate
    low, high = candidate.speed_range
    return {
        "box": candidate.box.name,
        "recipe": codec.to_plain(candidate.recipe),
        "kv_tokens": candidate.model.rules.kv_tokens,
        "speed_band": {"low": round(low, 3), "high": round(high, 3)},
        "boxes": sized.enough,
        "boxes_with_one_down": sized.spare,
        "fleet": outcome_row(sized.outcome),
        "round_robin": outcome_row(sized.round_robin),
        "one_down": None if sized.with_failure is None else outcome_row(sized.with_failure),
        "tried": [{"boxes": number, "good_share": round(share, 4)} for number, share in sized.tried],
        "cost": codec.to_plain(answer.cost),
    }


def outcome_row(outcome: FleetOutcome) -> dict[str, object]:
    tally, seconds = outcome.tally, outcome.seconds or 1.0
    row: dict[str, object] = {
        "boxes": len(outcome.boxes),
        "policy": outcome.question.policy,
        "completed": tally.requests,
        "refused": tally.refused,
        "lost": tally.lost,
        "good_share": round(outcome.good_share, 4),
        "good_share_after_failure": round(outcome.good_after_failure, 4) if outcome.question.fail_at else None,
        "prefix_hit_share": round(outcome.hit_share, 4),
        "input_tok_s": round(tally.input_tokens / seconds, 1),
        "output_tok_s": round(tally.output_tokens / seconds, 1),
        "request_throughput": round(tally.requests / seconds, 4),
        "by_box": codec.to_plain(outcome.boxes),
    }
    for name, times in (("ttft", tally.ttft), ("tpot", tally.tpot), ("e2el", tally.e2el)):
        row[f"mean_{name}_ms"] = round(times.mean * 1e3, 2)
        for share in (50, 90, 99):
            row[f"p{share}_{name}_ms"] = round(times.quantile(share / 100) * 1e3, 2)
    return row
