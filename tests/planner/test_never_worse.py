"""More never makes a plan worse: boxes that contain others, looser constraints; and forecasts have no jumps."""

import functools
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.plan import Goal
from moebox.core.recipe import Parallel, Recipe
from moebox.detect.declared import parse_box
from moebox.errors import DoesNotFit
from moebox.planner import choose, explain, prefer
from moebox.planner.constraints import Constraints
from moebox.planner.rate import Candidate
from moebox.planner.speed import Speed
from tests.sampling import one_in

GPUS = ("rtx-pro-6000-server", "h200", "b200", "b300", "rtx-3090")
MODELS = ("kimi-k2.6", "glm-5.1", "gpt-oss-120b", "qwen3-235b", "qwen3.5-397b", "minimax-m2.5")


def best(box: Box, model: str, constraints: Constraints) -> Candidate | None:
    """Return the choice, or None if nothing fits."""
    known = catalogue.find_model(model)
    _, fitting = choose.search_candidates(box, known, catalogue.published_checkpoints(model), constraints)
    return choose.rank_by_worth(fitting)[0] if fitting else None


def worth(box: Box, model: str, constraints: Constraints) -> float:
    """Return the choice's discounted figure, or 0 if nothing fits."""
    found = best(box, model, constraints)
    return prefer.discounted_figure(found) if found else 0.0


@settings(max_examples=12, deadline=None)
@given(
    gpu=st.sampled_from(GPUS),
    model=st.sampled_from(MODELS),
    few=st.sampled_from([1, 2, 4, 8]),
    more=st.sampled_from([2, 4, 8, 16]),
    goal=st.sampled_from(["throughput", "latency"]),
)
def test_more_of_the_same_gpus_is_never_worse(gpu: str, model: str, few: int, more: int, goal: str) -> None:
    """With every GPU of a smaller box and others beside them, the plan is worth at least as much."""
    constraints = Constraints(goal=goal, context=16384)  # type: ignore[arg-type]
    small, large = sorted((few, more))
    assert (
        worth(parse_box(f"{large}x-{gpu}"), model, constraints)
        >= worth(parse_box(f"{small}x-{gpu}"), model, constraints) * 0.9999
    )


@settings(max_examples=8, deadline=None)
@given(
    model=st.sampled_from(("kimi-k2.6", "glm-4.7", "qwen3-235b", "deepseek-v3")),
    gpus=st.sampled_from([1, 2]),
    ram=st.sampled_from([128, 256, 512]),
    bandwidth=st.sampled_from([200, 460, 614]),
)
def test_more_ram_or_bandwidth_is_never_worse(model: str, gpus: int, ram: int, bandwidth: int) -> None:
    """Twice the RAM, or twice its rate, on a box that keeps experts there."""
    constraints = Constraints(context=16384)
    here = parse_box(f"{gpus}x-rtx-pro-6000-max-q", ram=f"{ram}GiB", ram_bandwidth=f"{bandwidth}GB/s")
    larger = replace(here, ram=2 * here.ram)
    quicker = replace(here, ram_bandwidth=2 * here.ram_bandwidth)
    assert worth(larger, model, constraints) >= worth(here, model, constraints) * 0.9999
    assert worth(quicker, model, constraints) >= worth(here, model, constraints) * 0.9999


@pytest.mark.parametrize("gpu", one_in(2, ["rtx-pro-6000-server", "b200"]))
@pytest.mark.parametrize(
    "constraint", [{"tp": 4}, {"kv": "fp8"}, {"engine": "sglang"}, {"dcp": 2}, {"checkpoint": "nvfp4"}, {"pp": 2}]
)
def test_a_looser_constraint_is_never_worse(gpu: str, constraint: dict[str, object]) -> None:
    """The constrained plan is among those considered without the constraint."""
    constrained = worth(parse_box(f"8x-{gpu}"), "kimi-k2.6", Constraints(context=16384, **constraint))  # type: ignore[arg-type]
    assert unconstrained(gpu) >= constrained * 0.9999


@functools.cache
def unconstrained(gpu: str) -> float:
    """Return the discounted figure of eight GPUs without a constraint."""
    return worth(parse_box(f"8x-{gpu}"), "kimi-k2.6", Constraints(context=16384))


@pytest.mark.parametrize("goal", one_in(2, ["latency", "throughput"]))
@pytest.mark.parametrize(
    ("model", "box", "tp"),
    [
        ("gpt-oss-120b", "2x-gb10", 2),
        ("minimax-m3", "4x-gb10", 4),
        ("deepseek-v4-flash", "4x-gb10", 4),
        ("deepseek-v3.2", "2x8x-rtx-pro-6000-server", 16),
    ],
)
def test_tensor_parallelism_over_nodes_is_considered_by_default(model: str, box: str, tp: int, goal: Goal) -> None:
    """With one GPU a node only stages were considered: 4.2 tok/s although --tp 4 gave 13.2."""
    constrained, free = (worth(parse_box(box), model, Constraints(goal=goal, tp=size)) for size in (tp, None))
    assert free >= constrained


@pytest.mark.parametrize(
    ("parallel", "nodes"),
    [
        (Parallel(tp=8), 1),
        (Parallel(tp=16, nodes=2), 2),
        (Parallel(tp=8, pp=2, nodes=2), 1),
        (Parallel(tp=4, pp=3, nodes=2), 2),  # six GPUs a node: the second stage is on both
        (Parallel(tp=2, pp=3, nodes=2), 2),
        (Parallel(tp=1, pp=3, nodes=3), 1),
    ],
)
def test_a_group_that_spans_nodes_uses_the_network(parallel: Parallel, nodes: int) -> None:
    """TP4×PP3 on two nodes of six was forecast as if every group were within a node."""
    assert parallel.group_nodes == nodes


def test_a_spanning_group_is_no_faster_than_its_network() -> None:
    """The same layout on the same GPUs: the network between the nodes counts."""
    quick, slow = (
        best(parse_box(f"2x6x-rtx-pro-6000-server@{rate}"), "kimi-k2.6", Constraints(tp=4, pp=3))
        for rate in ("50GB/s", "1GB/s")
    )
    assert quick is not None
    assert slow is not None
    assert quick.score > 1.1 * slow.score


def test_eight_b300_are_not_slower_than_eight_b200() -> None:
    """GLM-5.1 went from 1,763 tok/s to 1,087, because the larger box used the larger weights."""
    small, large = (best(parse_box(f"8x-{gpu}"), "glm-5.1", Constraints()) for gpu in ("b200", "b300"))
    assert small is not None
    assert large is not None
    assert large.score >= small.score


def test_an_engine_that_is_not_the_first_must_be_clearly_better() -> None:
    """SGLang is chosen from 18% ahead on, and not before."""
    box, model = parse_box("8x-h200"), catalogue.find_model("kimi-k2.6")
    _, fitting = choose.search_candidates(box, model, catalogue.published_checkpoints(model.name), Constraints())
    plain = [
        rated
        for rated in fitting
        if rated.recipe.parallel == Parallel(tp=8) and rated.checkpoint.native and rated.recipe.kv == "bf16"
        if rated.recipe.speculate is None
    ]
    first = next(rated for rated in plain if rated.recipe.engine == "vllm")
    second = next(rated for rated in plain if rated.recipe.engine == "sglang")
    for ahead, chosen in ((1.0, first), (1.1, first), (1.17, first), (1.19, second), (1.5, second)):
        first.__dict__["score"], second.__dict__["score"] = 100.0, 100.0 * ahead
        assert choose.rank_by_worth([second, first])[0] is chosen, ahead


def test_an_unverified_checkpoint_is_never_chosen() -> None:
    """Not even with --bold; by name it is planned. Few bits are chosen only if nothing larger fits."""
    box = parse_box("2x-rtx-pro-6000-max-q", ram="768GiB", ram_bandwidth="614GB/s")
    bold = best(box, "kimi-k2.6", Constraints(bold=True))
    assert bold is not None
    assert not bold.checkpoint.unverified
    assert bold.checkpoint.bits_per_weight(bold.inputs.model) >= prefer.LEAST_BITS
    named = best(box, "kimi-k2.6", Constraints(checkpoint="smol-IQ3_KS"))
    assert named is not None
    assert named.checkpoint.unverified


def speed(gpu: str, count: int, model: str = "kimi-k2.6", checkpoint: str = "int4", **settings: object) -> Speed:
    """Return the speed of a plain recipe."""
    recipe = Recipe(
        name="t",
        engine="vllm",
        model=model,
        checkpoint=checkpoint,
        served_name="t",
        kv="bf16",
        parallel=Parallel(tp=count),
    )
    return Speed.for_deployment(deploy(replace(recipe, **settings), parse_box(f"{count}x-{gpu}")))  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", ["rtx-pro-6000-server", "h200", "b200", "mi300x"])
@pytest.mark.parametrize("context", [0, 8192, 65536])
def test_one_more_stream_is_never_slower(gpu: str, context: int) -> None:
    """Throughput grows with every stream, across every threshold (4 to 5 streams fell from 246 to 231)."""
    model = speed(gpu, 8)
    rates = [model.decode_tok_s(streams, context) for streams in range(1, 130)]
    assert all(after >= before * 0.999 for before, after in itertools.pairwise(rates))


@pytest.mark.parametrize("model", ["kimi-k2.6", "deepseek-v4-flash", "qwen3.5-397b", "gpt-oss-120b"])
def test_a_longer_context_never_decodes_faster(model: str) -> None:
    """Across windows, selectors and compressed entries too."""
    form = catalogue.published_checkpoints(model)[0].name
    here = speed("b200", 8, model, form)
    steps = [here.step_s(16, context) for context in range(0, 20_000, 250)]
    assert all(after >= before for before, after in itertools.pairwise(steps))


def test_sixteen_h100_are_two_machines() -> None:
    """Eight to a board; the second eight are behind a network. 3090s have bridges between two, not a mesh."""
    box = parse_box("16x-h100")
    assert (len(box.gpus), box.nodes) == (8, 2)
    pair, four = (speed("rtx-3090", count, "gpt-oss-120b", "mxfp4").gpu_step for count in (2, 4))
    assert pair is not None
    assert four is not None
    assert pair.fabric.wire.name == "nvlink"
    assert four.fabric.wire.name == "pcie"


@pytest.mark.parametrize("ram", ["9TB/s", "50000GB/s"])
def test_a_bandwidth_that_no_platform_has_is_refused(ram: str) -> None:
    """One line with both numbers."""
    with pytest.raises(Exception, match=r"no platform has more than 1,690 GB/s"):
        parse_box("1x-rtx-5090", ram="768GiB", ram_bandwidth=ram)


def test_a_search_without_a_fit_returns_nothing() -> None:
    """No candidate is viable."""
    with pytest.raises(DoesNotFit):
        choose.choose_plan(
            parse_box("1x-rtx-3090"),
            catalogue.find_model("kimi-k2.6"),
            catalogue.published_checkpoints("kimi-k2.6"),
            Constraints(),
        )


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_one_more_sequence_than_stages_is_never_slower(stages: int) -> None:
    """Stages wait for each other the more of them have work: from 8 to 9 streams 488 tok/s fell to 321."""
    model = speed("rtx-pro-6000-server", stages, parallel=Parallel(pp=stages))
    rates = [model.decode_tok_s(streams, 4096) for streams in range(1, 40)]
    assert all(after >= before * 0.999 for before, after in itertools.pairwise(rates))


def test_more_memory_never_holds_less_if_context_is_the_goal() -> None:
    """GPUs a third larger held fp8 weights, and with them a shorter cache than GGUF weights had left before."""
    constraints = Constraints(goal="context", context=16384, concurrency=16)
    small = parse_box("3x-gb200", ram="768GiB", ram_bandwidth="100GB/s")
    large = replace(small, gpus=tuple(replace(gpu, memory=int(1.3 * gpu.memory)) for gpu in small.gpus))
    assert worth(large, "deepseek-r1", constraints) >= worth(small, "deepseek-r1", constraints)


@pytest.mark.parametrize("goal", ["latency", "throughput", "context"])
@pytest.mark.parametrize(("model", "few"), [("minimax-m3", 2), ("kimi-k2-thinking", 5), ("kimi-k2-instruct", 4)])
def test_a_larger_box_may_use_the_utilization_of_a_smaller_one(model: str, few: int, goal: Goal) -> None:
    """Two H200 held it at a utilization of 0.92; three used stages at 0.90 and lost a third of the speed."""
    small, large = (worth(parse_box(f"{count}x-h200"), model, Constraints(goal=goal)) for count in (few, few + 1))
    assert large >= small * 0.9999


def test_the_choice_is_not_listed_as_rejected() -> None:
    """The usual utilization was too low; the plan used more, and listed itself as rejected."""
    model, constraints = "kimi-k2-thinking", Constraints(goal="latency", engine="vllm")
    plan = choose.choose_plan(
        parse_box("5x-h200"), catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
    )
    parallel = plan.recipe.parallel
    assert plan.recipe.memory_utilization == 0.92
    assert f"vLLM, {parallel.text}, {plan.recipe.kv} cache" not in plan.refused


GOALS: tuple[Goal, ...] = get_args(Goal)
PAIRS = (
    ("minimax-m3", "h200"),
    ("minimax-m3", "mi300x"),
    ("minimax-m3", "mi355x"),
    ("minimax-m3", "l40s"),
    ("minimax-m2.7", "h100"),
    ("minimax-m2.7", "gb10"),
    ("gpt-oss-120b", "gb10"),
)


def not_worse(model: str, boxes: Iterable[Box], goal: Goal) -> None:
    """Each box's plan is worth at least as much as the previous one; a figure that falls is among the runners-up."""
    constraints, before = Constraints(goal=goal), None
    for box in boxes:
        _, fitting = choose.search_candidates(
            box, catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
        )
        chosen, *others = choose.rank_by_worth(fitting) or [None]
        assert chosen or not before, f"{box.name}: nothing fits"
        if not chosen or not before:
            before = chosen
            continue
        alike = 0.9999 if chosen.recipe.context == before.recipe.context else 0.95  # a longer one has larger buffers
        assert prefer.discounted_figure(chosen) >= alike * prefer.discounted_figure(before), box.name
        if prefer.goal_figure(chosen) < 0.99 * alike * prefer.goal_figure(before):
            other = explain.list_alternatives(chosen, others)[0]
            shown = other.kv_tokens if goal == "context" else other.answer_tok_s
            assert shown >= 0.99 * alike * prefer.goal_figure(before), box.name
            assert other.loses.startswith("no difference that we can forecast; ") or ", but " in other.loses
        before = chosen


@pytest.mark.parametrize(
    ("model", "gpu", "goal"), one_in(3, [(*pair, GOALS[at % len(GOALS)]) for at, pair in enumerate(PAIRS)], unpack=True)
)
def test_one_gpu_more_is_never_worse(model: str, gpu: str, goal: Goal) -> None:
    """One engine's group was considered only if nothing of another's fitted: a second GB10 halved the speed."""
    not_worse(model, (parse_box(f"{count}x-{gpu}") for count in (1, 2, 3, 4, 8)), goal)


@pytest.mark.sweep
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(("model", "gpu"), PAIRS)
def test_one_gpu_more_is_never_worse_for_any_goal(model: str, gpu: str, goal: Goal) -> None:
    """The same for every goal and every number of GPUs."""
    not_worse(model, (parse_box(f"{count}x-{gpu}") for count in (*range(1, 9), 16)), goal)


@pytest.mark.parametrize("goal", one_in(2, GOALS))
@pytest.mark.parametrize(
    ("model", "box"), [("glm-5", "1x-rtx-pro-6000-max-q"), ("glm-4.7", "3x-rtx-3090"), ("glm-5.2", "1x-rtx-5090")]
)
def test_more_ram_is_never_worse_and_the_faster_weights_are_listed(model: str, box: str, goal: Goal) -> None:
    """With 384 GiB it uses weights of 4.84 bits instead of 2.59 and is slower: the plan lists the faster ones."""
    not_worse(model, (parse_box(box, ram=f"{ram}GiB") for ram in (128, 192, 256, 384, 512, 768)), goal)


def test_larger_gpus_list_the_faster_weights_of_smaller_ones() -> None:
    """Four B300 hold the makers' weights, four B200 only 2.89 bits of each, which is faster."""
    not_worse("kimi-k2-instruct", (parse_box(f"4x-{gpu}") for gpu in ("b200", "b300")), "latency")


def test_every_engine_is_considered_even_if_others_fit() -> None:
    """vLLM held gpt-oss on a GB10, so ik_llama.cpp at twice its speed was never considered."""
    model, constraints = "gpt-oss-120b", Constraints(goal="latency")
    plan = choose.choose_plan(
        parse_box("1x-gb10"), catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
    )
    engines = {other.recipe.engine for other in plan.alternatives} | {plan.recipe.engine}
    assert plan.recipe.engine == "ik_llama.cpp"
    assert {"vllm", "llama.cpp"} <= engines
    assert any(reason.startswith("ik_llama.cpp over vLLM") for reason in plan.reasons)


def test_the_reason_against_a_faster_plan_is_the_deciding_one() -> None:
    """A draft was rejected with "31% faster, but vLLM is preferred if speeds are close"."""
    model, constraints = "minimax-m3", Constraints(goal="latency")
    plan = choose.choose_plan(
        parse_box("2x-h200"), catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
    )
    draft = next(other for other in plan.alternatives if other.recipe.speculate)
    assert draft.loses.startswith("no difference that we can forecast; drafts are tried once it runs")
