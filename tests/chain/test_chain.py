"""What is planned is what is launched: every model, a spread of boxes, every engine, the pins."""

import contextlib
import itertools
import random
from collections.abc import Iterator

import pytest

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core import catalogue, registry
from moebox.errors import BadInput, DoesNotFit
from moebox.planner.choose import choose_plan, search_candidates
from moebox.planner.constraints import Constraints
from tests.chain.links import BOXES, Case, box_of, problems

SAMPLE, SEED = 40, 20261115
PARTS = 64  # of the sweep, so that every core has its share
KIMI = "kimi-k2.6"
HOME = {True: "8x-b200", False: "2x-rtx-pro-6000-max-q"}  # a box that engines serving from GPUs, or sharing, fit on
PINS = (
    {},
    {"goal": "latency"},
    {"goal": "context"},
    {"bold": True},
    {"ep": 8, "tp": 8},
    {"ep": 1},
    {"dcp": 4},
    {"kv": "fp8"},
    {"kv": "bf16"},
    {"kv": "q8_0"},
    {"speculate": "eagle3"},
    {"speculate": "mtp"},
    {"speculate": "ngram"},
    {"context": 8192, "concurrency": 16},
    {"memory_utilization": 0.85},
    {"image": "community"},
    {"experts": (3, 3), "ubatch": 4096},
    {"experts": (0,)},
    {"mla": 1, "threads": 15},
)


def cases() -> Iterator[Case]:
    """All of them: pins that contradict each other are no case."""
    for model, box, pins in itertools.product(catalogue.models(), BOXES, settings()):
        yield Case(model=model, box=box, pins=pins)


def settings() -> Iterator[Constraints]:
    """Every engine, and none, with every pin that it takes."""
    for engine, pins in itertools.product((None, *registry.engine_names()), PINS):
        with contextlib.suppress(BadInput):
            yield Constraints(engine=engine, **pins)  # type: ignore[arg-type]


def sampled() -> list[Case]:
    """Every engine with every pin on a box that suits it, and a seeded spread over all the rest."""
    every = list(cases())
    return [*at_home(every), *random.Random(SEED).sample(every, SAMPLE)]


def at_home(every: list[Case], engine: str = "") -> list[Case]:
    """Every engine, or one, with every pin on a box that suits it."""
    homes = {traits.name: HOME[traits.is_gpu_only] for traits in registry.all_traits() if engine in ("", traits.name)}
    return [case for case in every if (case.model, case.box) == (KIMI, homes.get(case.pins.engine or ""))]


@pytest.mark.parametrize("case", sampled(), ids=lambda case: case.title)
def test_a_sample_of_plans_holds_together(case: Case) -> None:
    """The launch read back says what the recipe says, and all figures come from the same deployment."""
    assert problems(case) == []


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_every_plan_holds_together(part: int) -> None:
    """The same for all of them: `make test-chain`, about an hour of two cores."""
    mine = list(itertools.islice(cases(), part, None, PARTS))
    print(f"{len(mine):,} of {sum(1 for _ in cases()):,} cases")
    assert [problem for case in mine for problem in problems(case)] == []


@pytest.mark.parametrize(
    ("model", "box", "engine", "why"),
    [
        ("kimi-k2.6", "8x-mi300x", "ik_llama.cpp", "has no kernels"),
        ("deepseek-v3.2", "8x-a100-80gb", "vllm", "no sparse attention kernels"),
        ("glm-5", "8x-a100-80gb", "sglang", "no sparse attention kernels"),
    ],
)
def test_what_traits_exclude_is_never_planned(model: str, box: str, engine: str, why: str) -> None:
    """Left to choose, the planner takes another engine or none; asked for, it says why not and what runs instead."""
    forms, where = catalogue.published_checkpoints(model), box_of(box)
    tried, _ = search_candidates(where, catalogue.find_model(model), forms, Constraints())
    assert engine not in {weighed.recipe.engine for weighed in tried}
    with pytest.raises(DoesNotFit, match=why) as told:
        choose_plan(where, catalogue.find_model(model), forms, Constraints(engine=engine))
    assert (told.value.hint or "").startswith("it runs without --engine")


def test_expert_parallelism_reaches_every_engine_that_has_it() -> None:
    """`--ep 8` was planned, weighed and forecast, and never launched."""
    for traits in registry.all_traits():
        if not traits.can_shard("ep"):
            continue
        plan = choose_plan(
            box_of("8x-b200"),
            catalogue.find_model(KIMI),
            catalogue.published_checkpoints(KIMI),
            Constraints(engine=traits.name, tp=8, ep=8),
        )
        assert plan.recipe.parallel.ep
        back = engines.parse_command(traits.name, engines.build_launch(deploy(plan.recipe)).argv)
        assert back.parallel == plan.recipe.parallel
