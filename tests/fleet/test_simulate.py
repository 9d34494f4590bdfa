"""Simulated fleets: nothing gets lost, policies differ as they should, one box agrees with the planner's simulation."""

import functools
from typing import get_args

import pytest

from moebox import detect
from moebox.checkpoint import resolve_model
from moebox.core.measure import Slo
from moebox.errors import BadInput
from moebox.planner.simulate import SimulatedWorkload, simulate
from moebox_fleet.plan_command import find_candidate
from moebox_fleet.route import Policy
from moebox_fleet.simulate import BoxModel, FleetQuestion, simulate_fleet
from moebox_fleet.size import size_fleet
from moebox_fleet.users import UserWorkload, find_workload, shipped_workloads

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
CHAT = find_workload("chat")


@functools.cache
def box() -> BoxModel:
    wanted = ["engine=vllm", "checkpoint=int4", "parallel.tp=8", "context=131072"]
    return find_candidate("kimi-k2.6", "8x-h200", CHAT, wanted).model


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another() -> None:
    question = FleetQuestion(work=CHAT, users=40, seconds=300, warm_s=60, slo=SLO)

    first, again = simulate_fleet([box()] * 2, question), simulate_fleet([box()] * 2, question)
    other = simulate_fleet([box()] * 2, FleetQuestion(work=CHAT, users=40, seconds=300, warm_s=60, slo=SLO, seed=2))

    assert first.tally.ttft.total == again.tally.ttft.total
    assert first.tally.ttft.total != other.tally.ttft.total


def test_users_stay_with_their_prefix_and_round_robin_reads_it_again() -> None:
    shares = {}
    for policy in ("prefix", "round-robin"):
        question = FleetQuestion(
            work=find_workload("agents"), users=24, seconds=600, warm_s=120, slo=SLO, policy=policy
        )
        shares[policy] = simulate_fleet([box()] * 4, question)

    assert shares["prefix"].hit_share > 0.9
    assert shares["round-robin"].hit_share < shares["prefix"].hit_share - 0.05
    assert shares["prefix"].tally.ttft.mean < shares["round-robin"].tally.ttft.mean


def test_a_new_conversation_finds_only_what_everybody_shares() -> None:
    """The same user's last conversation is no prefix of the next."""
    once = UserWorkload(first=1000, shared=400, output=50, turns=1, rest_s=5.0)
    outcome = simulate_fleet([box()], FleetQuestion(work=once, users=8, seconds=300, warm_s=60, slo=SLO))

    assert outcome.hit_share == pytest.approx(0.4, abs=0.001)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_every_policy_gives_every_box_its_share(policy: Policy) -> None:
    outcome = simulate_fleet(
        [box()] * 4, FleetQuestion(work=CHAT, users=120, seconds=600, warm_s=60, slo=SLO, policy=policy)
    )

    served = [one.requests for one in outcome.boxes]
    assert min(served) > 0.6 * max(served)
    assert sum(served) >= outcome.tally.requests


def test_a_box_that_dies_loses_its_own_requests_only_and_the_others_go_on() -> None:
    busy = UserWorkload(first=2000, output=400, turns=20, grows=100, think_s=1.0)
    outcome = simulate_fleet(
        [box()] * 3, FleetQuestion(work=busy, users=60, seconds=300, warm_s=30, slo=SLO, fail_at=150.0)
    )

    dead, *others = outcome.boxes
    assert not dead.alive
    assert 5 <= outcome.tally.lost <= 40  # about a third of sixty users
    assert all(one.alive and one.requests > dead.requests for one in others)
    assert outcome.tally.after_failure > 0


def test_a_single_box_whose_users_never_come_back_agrees_with_the_planners_simulation() -> None:
    """Users that rest for ever after one turn are a Poisson stream of single requests."""
    once = UserWorkload(first=3000, output=200, turns=1, rest_s=1e7)
    fleet = simulate_fleet([box()], FleetQuestion(work=once, users=600, seconds=700, warm_s=600, slo=SLO))
    # all arrive within the warm-up, spread evenly: count them by asking from the beginning
    whole = simulate_fleet([box()], FleetQuestion(work=once, users=600, seconds=700, warm_s=0.0, slo=SLO))
    alone = simulate(box().speed, box().rules, SimulatedWorkload(input=3000, output=200, requests=600, rate=600.0))

    assert fleet.tally.requests <= 3
    assert whole.tally.output_tokens == alone.output_tokens
    assert whole.tally.ttft.mean == pytest.approx(alone.ttft.mean, rel=0.1)


def test_a_long_conversation_waits_for_the_tokenizer_in_a_fleet_too() -> None:
    """Its history is in the cache, but is tokenized again: first tokens came in half the time that `forecast` says."""
    one = UserWorkload(first=16600, shared=15500, grows=1100, output=220, turns=36, think_s=6.0, rest_s=6.0)
    turns = SimulatedWorkload(input=1100, output=220, requests=72, concurrency=1, turns=36, prefix=15500, think_s=6.0)
    fleet = simulate_fleet([box()], FleetQuestion(work=one, users=1, seconds=700, warm_s=0.0, slo=SLO))
    alone = simulate(box().speed, box().rules, turns)

    assert fleet.tally.requests > 60
    assert fleet.tally.ttft.quantile(0.5) == pytest.approx(alone.ttft.quantile(0.5), rel=0.15)


def test_sizing_finds_the_smallest_fleet_and_one_more_when_a_box_may_die() -> None:
    question = FleetQuestion(work=CHAT, users=400, seconds=200, warm_s=60, slo=Slo(ttft_s=1.0, tpot_s=0.02))

    sized = size_fleet(box(), question, most=16)

    assert sized.enough is not None
    tried = dict(sized.tried)
    assert tried[sized.enough] >= 0.9
    assert sized.enough == 1 or tried[sized.enough - 1] < 0.9
    assert sized.spare is not None
    assert sized.spare > sized.enough


def test_sizing_says_when_no_number_is_enough() -> None:
    question = FleetQuestion(work=CHAT, users=10, seconds=100, warm_s=20, slo=Slo(tpot_s=1e-4))

    sized = size_fleet(box(), question, most=2)

    assert sized.enough is None
    assert sized.spare is None


def test_what_cannot_be_simulated_is_bad_input() -> None:
    with pytest.raises(BadInput, match="needs an SLO"):
        size_fleet(box(), FleetQuestion(work=CHAT, users=10))
    with pytest.raises(BadInput, match="at least two boxes"):
        simulate_fleet([box()], FleetQuestion(work=CHAT, users=10, fail_at=10.0))
    with pytest.raises(BadInput, match="boxes cannot be simulated"):
        simulate_fleet([], FleetQuestion(work=CHAT, users=10))


def test_workloads_that_ship_are_checked_and_have_a_source() -> None:
    for name, work in shipped_workloads().items():
        assert work.validate(name).source


def test_a_model_and_a_box_by_name_are_all_that_is_needed() -> None:
    model, _ = resolve_model("kimi-k2.6")
    assert detect.load_box("8x-h200").gpus
    assert box().rules.context <= model.context
