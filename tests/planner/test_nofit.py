"""What is said when nothing fits: the nearest thing that works, asking for less before buying more."""

import contextlib

import pytest

from moebox.checkpoint import deploy
from moebox.core import catalogue, registry
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.errors import BadInput, DoesNotFit, MoeboxError
from moebox.planner.choose import choose_plan, search_candidates
from moebox.planner.constraints import Constraints
from moebox.planner.warnings import known_issues

RAM_MODELS = (
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-v3.1",
    "glm-4.7",
    "glm-5.1",
    "glm-5.2",
    "qwen3-235b",
    "qwen3.5-397b",
    "minimax-m2.5",
    "minimax-m2.7",
    "gpt-oss-120b",
    "kimi-k2.6",
)


def hint(model: str, box: str, pins: Constraints, ram: str = "") -> str:
    """The remedies for a box that holds nothing."""
    with pytest.raises(DoesNotFit) as problem:
        choose_plan(parse_box(box, ram=ram), catalogue.find_model(model), catalogue.published_checkpoints(model), pins)
    error: MoeboxError = problem.value
    return error.hint or ""


@pytest.mark.parametrize("model", RAM_MODELS)
def test_every_model_runs_from_ram(model: str) -> None:
    """One GPU and 768 GiB of RAM hold a form of each; 72 of 72 such plans used to say that GPUs must be bought."""
    box = parse_box("1x-rtx-pro-6000-max-q", ram="768GiB", ram_bandwidth="614GB/s")
    plan = choose_plan(box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints())
    assert plan.memory.fits
    assert plan.forecast[0].decode_tok_s > 0


def test_ram_is_named_before_gpus() -> None:
    """A single 5090: how much RAM would do, then how many GPUs."""
    told = hint("kimi-k2.6", "1x-rtx-5090", Constraints())
    assert told.index("--ram 320GiB") < told.index("with 464GiB IQ3_K, which loses less") < told.index("it fits on 24x")


def test_asking_for_less_is_named_first() -> None:
    """A shorter context and fewer requests at a time."""
    told = hint("kimi-k2.6", "1x-rtx-5090", Constraints(context=65536, concurrency=8), ram="768GiB")
    assert told.startswith("--context 32768 fits; --concurrency 4 fits")


def test_a_file_nobody_has_seen_is_offered_as_that() -> None:
    """Kimi K2.7 Code has no GGUF that was seen: the one that should exist is named, and not chosen."""
    told = hint("kimi-k2.7-code", "1x-rtx-5090", Constraints(), ram="768GiB")
    assert "--checkpoint Q4_X (583.7 GB, a file not verified to exist) fits" in told


@pytest.mark.parametrize(
    ("model", "cards"),
    [
        ("glm-5.1", "1x-rtx-5090"),
        ("kimi-k2.6", "2x-rtx-pro-6000-max-q"),
        ("kimi-k2.6", "1x-h200"),
        ("gpt-oss-120b", "4090"),
    ],
)
def test_what_is_named_does_fit_and_is_the_nearest(model: str, cards: str) -> None:
    """The RAM that a remedy names holds the model; two steps of it less do not."""
    told = hint(model, cards, Constraints())
    size = int(told.partition("--ram ")[2].partition("GiB")[0])
    for less, fits in ((0, True), (32, False)):
        box = parse_box(cards, ram=f"{size - less}GiB", ram_bandwidth="460GB/s")
        with contextlib.nullcontext() if fits else pytest.raises(DoesNotFit):
            choose_plan(box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints())


@pytest.mark.parametrize(
    ("model", "cards"),
    [("qwen3-235b", "4x-rtx-3090"), ("kimi-k3", "2x8x-rtx-5090"), ("deepseek-v4-pro", "8x-rtx-pro-6000-server")],
)
def test_so_many_gpus_do_fit(model: str, cards: str) -> None:
    """Counted over all nodes, and no larger a box than is needed of those that are sold."""
    number, _, title = hint(model, cards, Constraints(engine=None)).partition("it fits on ")[2].partition("x ")
    engine = next(traits.name for traits in registry.all_traits() if title.endswith(f"under {traits.title}"))
    name = catalogue.gpus()[parse_box(cards).gpus[0].name].name
    assert choose_plan(
        parse_box(f"{number}x-{name}"),
        catalogue.find_model(model),
        catalogue.published_checkpoints(model),
        Constraints(engine=engine),
    )


def test_a_form_that_needs_other_pins_to_go_says_so() -> None:
    """vLLM reads no GGUF: following the hint to the letter was refused."""
    assert "--checkpoint UD-Q2_K_XL (340.0 GB) fits without --engine" in hint(
        "kimi-k2.6", "4x-rtx-pro-6000-server", Constraints(engine="vllm")
    )


@pytest.mark.parametrize(
    ("model", "cards", "why"),
    [
        ("kimi-k2.6-reap-519b", "8x-mi300x", "NVFP4 is a format of NVIDIA's GPUs"),
        ("glm-5.2-reap-504b", "4x-rtx-3090", "no sparse attention kernels"),
    ],
)
def test_what_no_engine_runs_there_is_no_plan(model: str, cards: str, why: str) -> None:
    """It was planned with a warning that it does not start, or refused for a layout that nobody had pinned."""
    with pytest.raises(DoesNotFit, match=f"does not run on {cards}: .*{why}"):
        choose_plan(
            parse_box(cards), catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints()
        )


@pytest.mark.parametrize(
    "pins",
    [
        Constraints(pp=1),
        Constraints(tp=8),
        Constraints(engine="vllm"),
        Constraints(engine="sglang"),
        Constraints(speculate="none"),
        Constraints(goal="context"),
    ],
)
def test_no_pin_makes_a_plan_of_what_does_not_start(pins: Constraints) -> None:
    """Exit code 1 without pins, and a full plan at 0 with `--pp 1`."""
    model = "glm-5.2-reap-504b"
    with pytest.raises(DoesNotFit, match="NVFP4 is a format of NVIDIA's GPUs"):
        choose_plan(parse_box("8x-mi300x"), catalogue.find_model(model), catalogue.published_checkpoints(model), pins)


def test_a_larger_claim_is_tried_where_what_fits_does_not_start() -> None:
    """What fits and fails at the start kept the rest from being weighed at a larger share."""
    model, box = "glm-5.2-reap-504b", parse_box("4x-rtx-pro-6000-server")
    _, fitting = search_candidates(
        box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints(engine="vllm")
    )
    assert all(weighed.is_viable for weighed in fitting)


def test_another_engine_is_asked_where_the_first_cannot_start() -> None:
    """MiniMax in nvfp4 fits an MI300X and does not start there; llama.cpp holds a form that does."""
    plan = choose_plan(
        parse_box("mi300x"),
        catalogue.find_model("minimax-m2.7"),
        catalogue.published_checkpoints("minimax-m2.7"),
        Constraints(),
    )
    assert not [caution.text for caution in plan.warnings if caution.severity == "fatal"]


def test_memory_that_gpu_and_cpu_share_is_counted_once() -> None:
    """A DGX Spark has no RAM beside it, and two of them are two machines."""
    assert "--ram" not in hint("qwen3-235b", "dgx-spark", Constraints())
    with pytest.raises(BadInput, match="use the same memory"):
        parse_box("dgx-spark", ram="48GiB")
    assert (parse_box("2x-dgx-spark").nodes, len(parse_box("2x-dgx-spark").gpus)) == (2, 1)


@pytest.mark.parametrize("cards", ["mi300x", "4x-rtx-3090", "8x-rtx-pro-6000-server", "8x-a100"])
def test_nothing_that_does_not_start_is_weighed_against_what_does(cards: str) -> None:
    """At any context: what fits and is known not to start must not keep a shorter one from being tried."""
    for model in ("minimax-m2.7", "glm-5.2-reap-504b", "kimi-k2.6"):
        _, fitting = search_candidates(
            parse_box(cards, ram="512GiB"),
            catalogue.find_model(model),
            catalogue.published_checkpoints(model),
            Constraints(),
        )
        assert not [weighed.fatal_issue for weighed in fitting if weighed.fatal_issue]


def test_a_context_beyond_the_models_own_is_told_once() -> None:
    """It was planned, with two warnings in two wordings; a recipe that somebody wrote is warned of once."""
    with pytest.raises(BadInput, match="--context 65536: qwen3-235b has 40,960"):
        choose_plan(
            parse_box("8x-h200"),
            catalogue.find_model("qwen3-235b"),
            catalogue.published_checkpoints("qwen3-235b"),
            Constraints(context=65536),
        )
    recipe = Recipe(name="t", engine="vllm", model="qwen3-235b", checkpoint="bf16", served_name="t", context=65536)
    told = [each.text for each in known_issues(deploy(recipe, parse_box("8x-h200"))) if "40,960" in each.text]
    assert len(told) == 1
