"""What is planned is what is launched: every model, many boxes, every engine, the constraints."""

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
from tests.chain.parse_back import parse_command
from tests.sampling import one_in

SAMPLE, SEED = 20, 20261115
PARTS = 64  # of the sweep, so that every core has its share
KIMI = "kimi-k2.6"
HOME = {True: "8x-b200", False: "2x-rtx-pro-6000-max-q"}  # a box that engines serving from GPUs, or sharing, fit on
CONSTRAINTS = (
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
    """Yield all cases; contradictory constraints are not a case."""
    for model, box, constraints in itertools.product(catalogue.models(), BOXES, settings()):
        yield Case(model=model, box=box, constraints=constraints)


def settings() -> Iterator[Constraints]:
    """Yield every engine, and none, with every constraint that it accepts."""
    for engine, constraints in itertools.product((None, *registry.engine_names()), CONSTRAINTS):
        with contextlib.suppress(BadInput):
            yield Constraints(engine=engine, **constraints)  # type: ignore[arg-type]


def sampled() -> list[Case]:
    """Return every engine with every constraint on a box that suits it, and a seeded sample of the rest."""
    every = list(cases())
    return [*at_home(every), *random.Random(SEED).sample(every, SAMPLE)]


def at_home(every: list[Case], engine: str = "") -> list[Case]:
    """Return every engine, or one, with every constraint on a box that suits it."""
    homes = {
        traits.name: HOME[not traits.offloads_experts]
        for traits in registry.all_traits()
        if engine in ("", traits.name)
    }
    return [case for case in every if (case.model, case.box) == (KIMI, homes.get(case.constraints.engine or ""))]


@pytest.mark.parametrize("case", one_in(2, sampled()), ids=lambda case: case.title)
def test_a_sample_of_plans_holds_together(case: Case) -> None:
    """The launch parsed back equals the recipe, and all figures come from the same deployment."""
    assert problems(case) == []


@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_every_plan_holds_together(part: int) -> None:
    """Every case holds together: `make test-chain`, about an hour of two cores."""
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
    """By default the planner chooses another engine or none; on request the error names reason and alternative."""
    forms, where = catalogue.published_checkpoints(model), box_of(box)
    tried, _ = search_candidates(where, catalogue.find_model(model), forms, Constraints())
    assert engine not in {rated.recipe.engine for rated in tried}
    with pytest.raises(DoesNotFit, match=why) as caught:
        choose_plan(where, catalogue.find_model(model), forms, Constraints(engine=engine))
    assert (caught.value.hint or "").startswith("it runs without --engine")


def test_expert_parallelism_reaches_every_engine_that_has_it() -> None:
    """`--ep 8` was planned and forecast, and never launched."""
    for traits in registry.all_traits():
        if "ep" not in traits.shards:
            continue
        plan = choose_plan(
            box_of("8x-b200"),
            catalogue.find_model(KIMI),
            catalogue.published_checkpoints(KIMI),
            Constraints(engine=traits.name, tp=8, ep=8),
        )
        assert plan.recipe.parallel.ep
        back = parse_command(traits.name, engines.build_launch(deploy(plan.recipe)).argv)
        assert back.parallel == plan.recipe.parallel
