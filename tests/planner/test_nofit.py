"""The error if nothing fits: the nearest remedy, smaller requests before more hardware."""

import contextlib

import pytest

from moebox.checkpoint import deploy
from moebox.core import catalogue
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


def hint(model: str, box: str, constraints: Constraints, ram: str = "") -> str:
    """Return the remedies for a box on which nothing fits."""
    with pytest.raises(DoesNotFit) as problem:
        choose_plan(
            parse_box(box, ram=ram), catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
        )
    error: MoeboxError = problem.value
    return error.hint or ""


@pytest.mark.parametrize("model", RAM_MODELS)
def test_every_model_runs_from_ram(model: str) -> None:
    """One GPU and 768 GiB of RAM hold a checkpoint of each; 72 of 72 such errors used to suggest more GPUs."""
    box = parse_box("1x-rtx-pro-6000-max-q", ram="768GiB", ram_bandwidth="614GB/s")
    plan = choose_plan(box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints())
    assert plan.memory.fits
    assert plan.forecast[0].decode_tok_s > 0


def test_remedies_name_ram_and_no_other_gpus() -> None:
    """A single 5090: how much RAM would be enough; boxes of other GPUs are not planned."""
    remedies = hint("kimi-k2.6", "1x-rtx-5090", Constraints())
    assert remedies.index("--ram 320GiB") < remedies.index("464GiB is enough for IQ3_K, closer to the original")
    assert "fits on" not in remedies.replace("fits on this GPU", "")


def test_smaller_requests_are_suggested_first() -> None:
    """A shorter context and fewer requests at a time."""
    remedies = hint("kimi-k2.6", "1x-rtx-5090", Constraints(context=65536, concurrency=8), ram="768GiB")
    assert remedies.startswith("--context 32768 fits; --concurrency 4 fits")


def test_an_unverified_file_is_suggested_as_such() -> None:
    """Kimi K2.7 Code has no verified GGUF: the one that should exist is suggested, and not chosen."""
    remedies = hint("kimi-k2.7-code", "1x-rtx-5090", Constraints(), ram="768GiB")
    assert "--checkpoint Q4_X (583.7 GB, a file not verified to exist) fits" in remedies


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ("glm-5.1", "1x-rtx-5090"),
        ("kimi-k2.6", "2x-rtx-pro-6000-max-q"),
        ("kimi-k2.6", "1x-h200"),
        ("gpt-oss-120b", "4090"),
    ],
)
def test_the_suggested_ram_fits_and_is_the_least(model: str, gpus: str) -> None:
    """The RAM that a remedy names holds the model; two steps of it less do not."""
    remedies = hint(model, gpus, Constraints())
    size = int(remedies.partition("--ram ")[2].partition("GiB")[0])
    for less, fits in ((0, True), (32, False)):
        box = parse_box(gpus, ram=f"{size - less}GiB", ram_bandwidth="460GB/s")
        with contextlib.nullcontext() if fits else pytest.raises(DoesNotFit):
            choose_plan(box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints())


def test_a_checkpoint_that_needs_fewer_constraints_is_suggested_with_them() -> None:
    """vLLM does not read GGUF: following the hint literally was refused."""
    assert "--checkpoint UD-Q2_K_XL (340.0 GB) fits without --engine" in hint(
        "kimi-k2.6", "4x-rtx-pro-6000-server", Constraints(engine="vllm")
    )


@pytest.mark.parametrize(
    ("model", "gpus", "why"),
    [
        ("kimi-k2.6-reap-519b", "8x-mi300x", "NVFP4 is a format of NVIDIA's GPUs"),
        ("glm-5.2-reap-504b", "4x-rtx-3090", "no sparse attention kernels"),
    ],
)
def test_what_no_engine_runs_there_has_no_plan(model: str, gpus: str, why: str) -> None:
    """It was planned with a warning that it does not start, or refused for a layout that was not requested."""
    with pytest.raises(DoesNotFit, match=f"does not run on {gpus}: .*{why}"):
        choose_plan(parse_box(gpus), catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints())


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(pp=1),
        *(
            pytest.param(other, marks=pytest.mark.sweep)
            for other in (
                Constraints(tp=8),
                Constraints(engine="vllm"),
                Constraints(engine="sglang"),
                Constraints(speculate="none"),
                Constraints(goal="context"),
            )
        ),
    ],
)
def test_no_constraint_makes_a_plan_of_what_does_not_start(constraints: Constraints) -> None:
    """Exit code 1 without constraints, and a full plan at 0 with `--pp 1`."""
    model = "glm-5.2-reap-504b"
    with pytest.raises(DoesNotFit, match="NVFP4 is a format of NVIDIA's GPUs"):
        choose_plan(
            parse_box("8x-mi300x"), catalogue.find_model(model), catalogue.published_checkpoints(model), constraints
        )


def test_a_higher_utilization_is_tried_if_what_fits_does_not_start() -> None:
    """A candidate that fits and fails at the start kept the rest from being tried at a higher utilization."""
    model, box = "glm-5.2-reap-504b", parse_box("4x-rtx-pro-6000-server")
    _, fitting = search_candidates(
        box, catalogue.find_model(model), catalogue.published_checkpoints(model), Constraints(engine="vllm")
    )
    assert all(rated.is_viable for rated in fitting)


def test_another_engine_is_tried_if_the_first_cannot_start() -> None:
    """MiniMax in nvfp4 fits an MI300X and does not start there; llama.cpp holds a checkpoint that does."""
    plan = choose_plan(
        parse_box("mi300x"),
        catalogue.find_model("minimax-m2.7"),
        catalogue.published_checkpoints("minimax-m2.7"),
        Constraints(),
    )
    assert not [warning.text for warning in plan.warnings if warning.severity == "fatal"]


def test_memory_that_gpu_and_cpu_share_is_counted_once() -> None:
    """A DGX Spark has no other RAM, and two of them are two machines."""
    assert "--ram" not in hint("qwen3-235b", "dgx-spark", Constraints())
    with pytest.raises(BadInput, match="use the same memory"):
        parse_box("dgx-spark", ram="48GiB")
    assert (parse_box("2x-dgx-spark").nodes, len(parse_box("2x-dgx-spark").gpus)) == (2, 1)


@pytest.mark.parametrize("gpus", ["mi300x", "4x-rtx-3090", "8x-rtx-pro-6000-server", "8x-a100"])
def test_what_does_not_start_never_competes(gpus: str) -> None:
    """At any context: what fits and is known not to start must not prevent a shorter one from being tried."""
    for model in ("minimax-m2.7", "glm-5.2-reap-504b", "kimi-k2.6"):
        _, fitting = search_candidates(
            parse_box(gpus, ram="512GiB"),
            catalogue.find_model(model),
            catalogue.published_checkpoints(model),
            Constraints(),
        )
        assert not [rated.fatal_issue for rated in fitting if rated.fatal_issue]


def test_a_context_beyond_the_models_own_gives_one_warning() -> None:
    """It was planned, with two warnings in two wordings; a recipe that a user wrote gives one warning."""
    with pytest.raises(BadInput, match="--context 65536: qwen3-235b has 40,960"):
        choose_plan(
            parse_box("8x-h200"),
            catalogue.find_model("qwen3-235b"),
            catalogue.published_checkpoints("qwen3-235b"),
            Constraints(context=65536),
        )
    recipe = Recipe(name="t", engine="vllm", model="qwen3-235b", checkpoint="bf16", served_name="t", context=65536)
    warnings = [each.text for each in known_issues(deploy(recipe, parse_box("8x-h200"))) if "40,960" in each.text]
    assert len(warnings) == 1
