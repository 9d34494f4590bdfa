"""The support matrix: rows are valid, the narrowest and newest row wins, forks and unknown versions are named."""

import json
import tomllib
from dataclasses import replace
from itertools import product

import pytest
from scripts.support_rows import dump, problems

from moebox.core.catalogue import find_checkpoint, find_model
from moebox.core.recipe import Parallel, Recipe, Runtime, Speculate
from moebox.core.start_rules import start_refusals
from moebox.core.support import support_for
from moebox.core.support_matrix import Setup, build_of, layout_holds, support_rows
from moebox.core.support_settings import BUILD_KEYS
from moebox.core.versions import in_versions
from moebox.data import FOLDER

ROWS = tomllib.loads((FOLDER / "support.toml").read_text(encoding="utf-8"))["row"]
RECIPE = Recipe(name="x", engine="vllm", model="x", checkpoint="x", served_name="", max_seqs=16)


def setup(
    engine: str, version: str, gpu: str, model: str, checkpoint: str = "", kv: str = "bf16", **more: object
) -> Setup:
    """A setup of a catalogue model on a GPU generation."""
    recipe = replace(RECIPE, engine=engine, engine_version=version, kv=kv, **more)  # type: ignore[arg-type]
    found = find_checkpoint(model, checkpoint) if checkpoint else None
    return Setup(
        engine=engine, version=version, gpu=gpu, model=find_model(model), checkpoint=found, kv=kv, recipe=recipe
    )


def test_rows_are_valid_and_the_compact_form_is_current() -> None:
    """Every row of support.toml can be read, and support.json was written from it."""
    assert problems(ROWS) == []
    assert (FOLDER / "support.json").read_text(encoding="utf-8") == dump(ROWS), "run scripts/support_rows.py"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"versions": "0.25"}, "is not a version range"),
        ({"layout": "tp8"}, "is not a layout"),
        ({"state": "broken"}, "state"),
        ({"state": "slow"}, "a slow row has a factor"),
        ({"change": {"no.such": 1}}, "no setting"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_row_that_is_not_valid_is_named(change: dict[str, object], problem: str) -> None:
    """The checker names the row and what is wrong with it."""
    (found,) = problems([{**ROWS[0], **change}])
    assert found.startswith(ROWS[0]["id"])
    assert problem in found


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("0.25.1", ">=0.25,<0.27", True),
        ("0.27.0", ">=0.25,<0.27", False),
        ("0.5.12.post1", ">0.5.12", True),
        ("0.28.1rc1", ">=0.28,<0.29", True),
        ("b10000", "b9840..b10260", True),
        ("b10261", "b9840..b10260", False),
        ("2026-08", "2026-07-15..", True),
        ("0.2.0-dev", "..b7600", False),  # another way of counting: not comparable
        ("nightly", ">=0.25", False),
        ("nightly", "", True),
        ("0.1.dev19253+g5f76ae224", "<0.27", False),  # built without a tag: not version 0.1
        ("1a2b3c4d", ">=0.25", False),  # a commit
        ("nightly-2026-11-01", ">=0.25", False),
        ("v0.25.1", ">=0.25", True),
        ("b1166901", "b9840..", True),  # a build, though every sign of it may stand in a commit
    ],
)
def test_versions_are_compared_in_their_own_way_of_counting(version: str, wanted: str, holds: bool) -> None:
    """Releases, builds and dates compare with their own kind alone."""
    assert in_versions(version, wanted) == holds


@pytest.mark.parametrize(
    ("layout", "parallel", "holds"),
    [
        ("tp=8 ep=8", Parallel(tp=8, ep=True), True),
        ("tp=8 ep", Parallel(tp=8), False),
        ("nodes>1", Parallel(tp=8, nodes=2), True),
        ("pp>1", Parallel(tp=8), False),
        ("gpus>1", Parallel(tp=2), True),
    ],
)
def test_layouts(layout: str, parallel: Parallel, holds: bool) -> None:
    """A layout names sizes of the recipe's parallelism."""
    assert layout_holds(layout, parallel) == holds


def test_deepseek_v4_flash_starts_on_sm120_from_025() -> None:
    """vLLM before 0.24 has no SM120 path for DeepSeek V4, 0.24 is broken, 0.25 runs."""
    states = {
        version: support_for(
            setup("vllm", version, "sm120", "deepseek-v4-flash", kv="fp8", parallel=Parallel(tp=8))
        ).state
        for version in ("0.20.0", "0.23.0", "0.24.0")
    }
    assert set(states.values()) == {"no-start"}
    later = support_for(setup("vllm", "0.25.0", "sm120", "deepseek-v4-flash", kv="fp8", parallel=Parallel(tp=8)))
    assert later.state != "no-start", later


def test_fp8_cache_of_latent_attention_is_refused_below_sm89() -> None:
    """vLLM's own checks refuse it, with their place in the sources."""
    support = support_for(setup("vllm", "0.32.0", "sm80", "kimi-k2.6", kv="fp8"))
    assert support.state == "no-start"
    assert "SM89" in support.refusals[0].text
    assert ".py:" in support.refusals[0].at
    assert support_for(setup("vllm", "0.32.0", "sm80", "kimi-k2.6")).state != "no-start"


def test_a_report_is_not_contradicted_by_one_that_does_not_mention_its_setting() -> None:
    """A tool-call problem stays, however many reports say that the model runs."""
    support = support_for(setup("vllm", "0.32.0", "sm120", "kimi-k2.6", tool_parser="kimi_k2"))
    assert "vllm-kimi-malformed-json-passed" in {match.row.id for match in support.matches}


def test_a_setup_that_the_checks_accept_should_start() -> None:
    """Without a report the answer names the kernels that the release chooses, or only that it has the model."""
    support = support_for(setup("vllm", "0.24.0", "sm90", "glm-4.7", "fp8", parallel=Parallel(tp=8)))
    assert support.state == "accepted"
    assert "its own checks accept it, with" in support.basis
    newer = support_for(setup("vllm", "0.40.0", "sm90", "glm-5", "fp8", parallel=Parallel(tp=8)))
    assert newer.basis.endswith("as read in 0.32.0")
    older = support_for(setup("vllm", "0.10.0", "sm90", "glm-4.7", "fp8", "auto", parallel=Parallel(tp=8)))
    assert (older.state, "what it checks of GPU and format is not known" in older.basis) == ("accepted", True)
    assert support_for(setup("vllm", "0.10.0", "sm120", "qwen3-235b", "fp8", "auto")).state == "unknown"


def test_experts_by_a_backend_that_the_release_has_for_other_gpus_only_are_refused() -> None:
    """triton_kernels' experts exist for SM90 and SM100 in 0.20, not for SM121; Marlin's do."""
    refused = support_for(setup("vllm", "0.20.0", "sm121", "gpt-oss-120b", "mxfp4", flags={"moe-backend": "triton"}))
    assert "TRITON has no kernel for experts in mxfp4-gpt-oss on sm121" in refused.refusals[0].text
    assert not support_for(
        setup("vllm", "0.20.0", "sm121", "gpt-oss-120b", "mxfp4", flags={"moe-backend": "marlin"})
    ).refusals


@pytest.mark.parametrize(("model", "tp", "state"), [("kimi-k2.5", 8, "no-start"), ("deepseek-r1", 4, "no-start")])
def test_latent_attention_of_aiter_takes_16_or_128_heads_a_rank(model: str, tp: int, state: str) -> None:
    """Kimi has 64 heads and DeepSeek 128: 16 a rank at TP 4 and TP 8."""
    env = {"VLLM_ROCM_USE_AITER": "1"}
    asked = [
        support_for(setup("vllm", "0.17.1", "gfx942", model, env=env, parallel=Parallel(tp=each))).state
        for each in (tp, 12 - tp)
    ]
    assert asked[0] == state
    assert asked[1] != state


def test_a_build_between_releases_is_refused_only_if_both_refuse() -> None:
    """0.23.1 may have MiniMax M3, which 0.24.0 has and 0.23.0 has not."""
    states = {
        version: support_for(setup("vllm", version, "sm100", "minimax-m3", "bf16", flags={"block-size": 128})).state
        for version in ("0.23.0", "0.23.1", "0.24.0")
    }
    assert states["0.23.0"] == "no-start"
    assert "no-start" not in (states["0.23.1"], states["0.24.0"])


def test_decode_context_parallelism_needs_a_backend_that_returns_its_sums() -> None:
    """FLASHMLA_SPARSE of 0.27.1 cannot; FLASHINFER_MLA_SPARSE on SM100 can."""
    parallel = Parallel(tp=8, dcp=8)
    refused = support_for(setup("vllm", "0.27.1", "sm90", "glm-5.2", "fp8", kv="fp8", parallel=parallel))
    assert "decode context parallelism" in refused.refusals[0].text
    assert not support_for(setup("vllm", "0.27.1", "sm100", "glm-5.2", "fp8", kv="fp8", parallel=parallel)).refusals


def test_aiter_has_kernels_that_the_rules_were_not_read_for() -> None:
    """DeepSeek V4 runs on MI325X since 0.20; MXFP4 with AITER or a backend by name is not refused."""
    asked = setup("vllm", "0.25.0", "gfx942", "deepseek-v4-flash", "fp8-mxfp4", kv="fp8", parallel=Parallel(tp=8))
    assert support_for(asked).refusals == ()
    plain = setup("vllm", "0.22.0", "gfx950", "gpt-oss-120b", "mxfp4")
    unlike = replace(plain, model=find_model("minimax-m2.5"))
    assert start_refusals(unlike)
    assert not start_refusals(replace(unlike, recipe=replace(unlike.recipe, env={"VLLM_ROCM_USE_AITER": "1"})))


def test_a_report_that_something_runs_does_not_hide_what_happens_sometimes() -> None:
    """Kimi K2.6 can answer NaN on vLLM 0.19 to 0.24: a warning that does not decide the state."""
    support = support_for(setup("vllm", "0.22.0", "sm90", "kimi-k2.6", "int4", parallel=Parallel(tp=8)))
    assert "vllm-k26-nan-exclamation" in {match.row.id for match in support.matches}
    assert support.state == "runs"


def test_the_narrower_row_wins() -> None:
    """RawINT4 with the Triton GEMM runs, though the same version without it garbles long prompts."""
    broken = setup("ktransformers", "0.6.4", "sm120", "kimi-k2.6", "int4")
    assert support_for(broken).state == "wrong"
    fixed = replace(broken, recipe=replace(broken.recipe, flags={"fp8-gemm-backend": "triton"}))
    assert support_for(fixed).state == "runs"


def test_a_narrower_failure_does_not_hide_that_it_does_not_start() -> None:
    """KTransformers 0.6.1 dies in its warm-up: that long prompts would crash it too is no contradiction."""
    flags = {"kt-gpu-prefill-token-threshold": 400}
    asked = setup("ktransformers", "0.6.1", "sm120", "deepseek-v4-flash", "fp8-mxfp4", kv="auto", flags=flags)
    support = support_for(asked)
    assert {match.row.state for match in support.matches} >= {"no-start", "crashes"}
    assert support.state == "no-start"


def test_a_condition_that_a_recipe_does_not_show_makes_a_row_possible_only() -> None:
    """A hang that needs an IOMMU setting is no certain hang."""
    support = support_for(setup("vllm", "0.32.0", "sm120", "qwen3-235b", parallel=Parallel(tp=4)))
    assert "vllm-pro6000-p2p-hang-iommu" in {match.row.id for match in support.possible}
    assert support.state != "hangs"


@pytest.mark.parametrize(("features", "state"), [((), "possible"), (("avx2",), "no-start"), (("avx2", "avx512f"), "")])
def test_what_a_cpu_lacks_decides_a_row_if_it_is_known(features: tuple[str, ...], state: str) -> None:
    """kt-kernel before 0.6.3 needs AVX-512; of a CPU that nobody looked at the row may hold."""
    asked = setup("ktransformers", "0.6.2", "sm89", "glm-4.5-air")
    found = support_for(replace(asked, cpu_features=features))
    row = "kt-cpu-without-avx512"
    assert ([match.row.state for match in found.matches if match.row.id == row] == [state]) == (state == "no-start")
    assert (row in [match.row.id for match in found.possible]) == (state == "possible")


def test_a_report_about_another_architecture_is_no_evidence_that_this_one_runs() -> None:
    """A row on all-reduce over four GPUs names no architecture: whether GLM-5.3-Flash runs is not known from it."""
    support = support_for(setup("vllm", "0.32.0", "sm120", "glm-5.3-flash", "awq", kv="fp8", parallel=Parallel(tp=4)))
    assert "vllm-custom-ar-pcie4-off" in {match.row.id for match in support.matches}
    assert support.answers == ()
    assert support.state not in ("runs", "slow")


def test_measured_factors_only_enter_a_forecast() -> None:
    """An estimated factor is shown and counts as 1.0."""
    measured = setup("vllm", "0.21.0", "gfx950", "kimi-k2.6", "int4")
    assert support_for(measured).factor == pytest.approx(0.62)
    drafted = setup(
        "vllm", "0.15.0", "sm90", "deepseek-v3.2", parallel=Parallel(tp=8), speculate=Speculate(method="mtp")
    )
    support = support_for(drafted)
    assert support.state == "slow"
    assert support.factor == 1.0


def test_a_fork_is_not_the_release_it_is_named_after() -> None:
    """A fork's own rows hold for it; the release's rows are possible only, and a note names the fork."""
    image = "ghcr.io/jasl/vllm:deepseek-v4"
    stock = setup("vllm", "0.20.0", "sm120", "deepseek-v4-flash", kv="fp8", parallel=Parallel(tp=2))
    assert support_for(stock).state == "no-start"
    recipe = replace(stock.recipe, runtime=Runtime(kind="docker", image=image))
    assert build_of(recipe.engine_version, recipe.runtime, "vllm/vllm-openai:v{version}") == image
    forked = support_for(replace(stock, recipe=recipe, fork=image))
    assert forked.state != "no-start"
    assert image in forked.note
    assert "vllm-dsv4-sm120-before-024" in {match.row.id for match in forked.possible}


@pytest.mark.parametrize(
    ("version", "image", "fork"),
    [
        ("0.25.0", "", False),
        ("0.25.0", "vllm/vllm-openai:v0.25.0", False),
        ("0.27.1+sm120.cu133", "", True),
        ("0.25.0", "vllm/vllm-openai:nightly", True),
        ("0.28.1.dev12+g1a2b3c4", "", True),
        ("0.28.0+cu128", "", False),
        ("main", "", True),
        ("1a2b3c4d", "", True),
        ("", "", False),
    ],
)
def test_forks_and_nightly_builds_are_recognised(version: str, image: str, fork: bool) -> None:
    """A build with its own suffix, a nightly or another image is not the release."""
    kind = "docker" if image else "native"
    recipe = replace(RECIPE, engine_version=version, runtime=Runtime(kind=kind, image=image))  # type: ignore[arg-type]
    assert bool(build_of(recipe.engine_version, recipe.runtime, "vllm/vllm-openai:v{version}")) == fork


def test_a_version_that_is_none_has_no_rows_with_a_range() -> None:
    """It is named, and the state is not known."""
    support = support_for(setup("vllm", "main", "sm120", "deepseek-v4-flash", kv="fp8"))
    assert "'main' is not a version" in support.note


# Reports of something that runs although the release's own source refuses it, with the reason.
KNOWN_CONTRADICTIONS = {
    "vllm-recipe-qwen36-35b-sm12x": "the text-only name is in the registry from 0.27; the report is of the other",
    "sweep-sglang-qwen35moe-fp8-gfx950": "launched with the prefix cache off, which the check was not asked for",
    "sweep-sglang-qwen35moe-mxfp4-gfx950": "launched with the prefix cache off, which the check was not asked for",
}


def test_engine_checks_and_reports_that_disagree_are_listed() -> None:
    """Reports that something runs where the engine's own source refuses it: each is known and has its reason here."""
    model, found = find_model("kimi-k2.6"), {}
    for row in (row for rows in support_rows().values() for row in rows if row.state == "runs" and row.architecture):
        if any(key in BUILD_KEYS for key in row.settings):
            continue
        releases = _releases(row.engine)
        for version in (release for release in releases if row.versions and in_versions(release, row.versions)):
            for gpu, architecture, kv in product(row.gpu, row.architecture, row.kv or ("auto",)):
                recipe = replace(RECIPE, engine=row.engine, kv=kv)
                changed = replace(model, architecture=architecture)
                asked = Setup(engine=row.engine, version=version, gpu=gpu, model=changed, kv=kv, recipe=recipe)
                if refused := start_refusals(asked):
                    found[row.id] = f"{version} {gpu} {architecture} {kv}: {refused[0].text}"
    assert found.keys() == KNOWN_CONTRADICTIONS.keys(), found


def _releases(engine: str) -> list[str]:
    names = {"vllm": "vllm", "sglang": "sglang"}
    if engine not in names:
        return []
    file = FOLDER / "start_rules" / f"{names[engine]}.json"
    releases: list[str] = json.loads(file.read_text(encoding="utf-8"))["releases"]
    return releases
