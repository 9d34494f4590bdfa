"""Simulated workloads: conversations, cold starts, separate engines for prompts."""

from dataclasses import replace

import pytest

from moebox.checkpoint import deploy
from moebox.core.recipe import Speculate
from moebox.detect.declared import parse_box
from moebox.errors import BadInput
from moebox.planner.simulate import SimulatedWorkload, scheduler_rules, simulate
from moebox.planner.speed import Speed
from tests.planner.deployed import kimi

RECIPE = kimi(context=262144)
SPEED = Speed.for_deployment(deploy(RECIPE, parse_box("8x-b200")))
BASE = SimulatedWorkload(input=2000, output=200, requests=64, concurrency=4)


def run(workload: SimulatedWorkload, kv_tokens: int = 10**6):  # type: ignore[no-untyped-def]
    """Run the simulation."""
    return simulate(SPEED, scheduler_rules(RECIPE, kv_tokens, SPEED), workload)


def test_later_turns_find_the_earlier_ones_in_the_cache() -> None:
    """16 turns cost far less than 16 prompts of the same length, and every turn ends."""
    agents = run(replace(BASE, turns=16))
    assert agents.completed == 64
    assert agents.rejected == 0
    # The last turns have prompts of about 2,000 + 15 × 2,200 tokens; read afresh the mean would be several times this.
    fresh = run(replace(BASE, input=2000 + 8 * 2200))
    assert agents.ttft.mean < fresh.ttft.mean / 2
    assert agents.input_tokens > fresh.input_tokens * 0.8


def test_thinking_leaves_the_machine_idle() -> None:
    """With ten seconds between turns a run takes at least as long as the pauses."""
    quick, slow = run(replace(BASE, turns=4)), run(replace(BASE, turns=4, think_s=10.0))
    assert slow.duration_s > quick.duration_s + 3 * 10
    assert slow.completed == quick.completed


def test_a_cold_start_is_paid_once_by_the_first_wave() -> None:
    """The mean grows by the wait of one wave, the median hardly."""
    warm, cold = run(BASE), run(replace(BASE, cold_s=20.0))
    assert cold.duration_s == pytest.approx(warm.duration_s + 20, rel=0.05)
    assert cold.ttft.quantile(0.5) < 1.0
    assert cold.ttft.quantile(0.99) > 19


def test_prompts_read_elsewhere_do_not_disturb_decoding() -> None:
    """With engines of their own for prompts, the longest gap between tokens is one step."""
    together = run(replace(BASE, input=16384, concurrency=16, requests=64))
    apart = run(replace(BASE, input=16384, concurrency=16, requests=64, prefill_engines=2))
    assert apart.completed == together.completed == 64
    assert apart.itl.quantile(0.99) < together.itl.quantile(0.99) / 3
    assert apart.ttft.weight == 64


def test_acceptance_given_is_acceptance_used() -> None:
    """Half of three draft tokens accepted are one and a half more per step."""
    drafting = Speed.for_deployment(deploy(replace(RECIPE, speculate=Speculate(tokens=3)), parse_box("8x-b200")))
    assert drafting.with_acceptance(0.5).tokens_per_step == pytest.approx(2.5, rel=1e-6)
    assert drafting.with_acceptance(0.0).tokens_per_step == pytest.approx(1.0, rel=1e-6)
    assert SPEED.with_acceptance(0.5).tokens_per_step == 1.0


@pytest.mark.parametrize("change", [{"turns": 0}, {"think_s": -1.0}, {"cold_s": 1e9}])
def test_invalid_settings_are_refused(change: dict[str, float]) -> None:
    """Each is one line."""
    with pytest.raises(BadInput):
        run(replace(BASE, **change))  # type: ignore[arg-type]


def test_conversations_have_no_rate() -> None:
    """The next turn waits for the one before."""
    with pytest.raises(BadInput, match="concurrency"):
        run(replace(BASE, concurrency=0, rate=1.0, turns=3))
