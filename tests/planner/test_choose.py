"""The choice: what an expert who knows the box would write, within the constraints, and the same every time."""

import functools
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox import codec
from moebox.checkpoint import deploy, resolve_model
from moebox.core import catalogue
from moebox.core.box import Box, Host
from moebox.core.plan import Plan
from moebox.core.recipe import Recipe
from moebox.detect.declared import parse_box
from moebox.engines import build_launch, check_recipe
from moebox.errors import BadInput, DoesNotFit, UnknownName
from moebox.phantom import gguf_path
from moebox.planner import choose, prefer
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints
from moebox.planner.speed import Speed
from tests.chain.parse_back import parse_command
from tests.planner.boxes import EIGHT, MAX_Q_BOX, box_with, facts
from tests.planner.deployed import on


@functools.cache  # several tests look at the same plan
def plan(name: str = "kimi-k2.6", box: object = EIGHT, **constraints: object) -> Plan:
    """The plan for a catalogue model."""
    return choose_plan(box, *facts(name), Constraints(**constraints))  # type: ignore[arg-type]


def test_the_first_recipe_on_eight_rtx_pro_6000_is_the_careful_one() -> None:
    """Stock vLLM, TP8, published weights, bf16 cache, no draft, 65,536, text only, 0.90, and max_num_seqs set."""
    recipe = plan().recipe

    assert (recipe.engine, recipe.checkpoint, recipe.kv, recipe.runtime.preset) == ("vllm", "int4", "bf16", "")
    assert (recipe.parallel.tp, recipe.parallel.pp, recipe.parallel.dcp) == (8, 1, 1)
    assert (recipe.context, recipe.memory_utilization, recipe.speculate, recipe.vision) == (65536, 0.90, None, False)
    assert recipe.max_seqs == 64
    assert (recipe.tool_parser, recipe.reasoning_parser) == ("kimi_k2", "kimi_k2")


def test_the_plan_explains_why_not_fp8_and_what_the_patched_image_gains() -> None:
    """fp8 with Triton MLA does not start on SM120 up to 0.32; the community image holds twice the tokens with it."""
    chosen = plan()
    gain = next(one for one in chosen.warnings if "community" in one.text)

    assert any("not fp8: " in line for line in chosen.reasons)
    assert "--image community" in gain.remedy
    assert any("fp8" in name for name in chosen.refused)
    assert any(one.recipe.runtime.preset == "community" for one in chosen.alternatives)


def test_a_checkpoint_can_be_given_by_its_quantisation() -> None:
    """The planner accepts every name that the error for an unknown one lists, in any case."""
    assert plan("kimi-k2.6", checkpoint="INT4-G32").recipe.checkpoint == "int4"


def test_an_installed_engine_is_chosen_if_no_forecast_tells_it_from_the_best() -> None:
    """A file that the embedded engine can run is not planned for one that has to be built; GPUs need another engine."""
    model, forms = resolve_model(str(gguf_path()))
    embedded = Host(engines={"llama.cpp (embedded)": "0.2.14"})
    cpu = Box(name="no-gpu", ram=32 << 30, host=embedded)

    first = choose_plan(replace(cpu, host=None), model, forms, Constraints()).recipe
    here = choose_plan(cpu, model, forms, Constraints()).recipe
    assert (first.engine, first.runtime.kind) == ("ik_llama.cpp", "native")
    assert (here.engine, here.runtime.kind) == ("llama.cpp", "embedded")
    for engine, installed in (("ik_llama.cpp", {"ik_llama.cpp": "1"}), ("llama.cpp", {"llama.cpp": "b9000"})):
        both = replace(cpu, host=Host(engines=installed | embedded.engines))
        found = choose_plan(both, model, forms, Constraints()).recipe
        assert (found.engine, found.runtime.kind) == (engine, "native")
    hosted = choose_plan(replace(EIGHT, host=embedded), *facts("kimi-k2.6"), Constraints())
    assert hosted.recipe == plan().recipe


def test_a_single_expert_layer_is_singular() -> None:
    """A runner-up with a single expert layer on the GPU is not described in the plural."""
    titles = [each.title for each in plan("kimi-k2.6", MAX_Q_BOX, engine="llama.cpp").alternatives]

    assert titles
    assert not any(" 1 expert layers" in title for title in titles)


def test_constraints_that_crash_give_no_plan() -> None:
    """--kv fp8 --image stock was planned with a warning, and scripts took exit code 0 for success."""
    with pytest.raises(DoesNotFit, match=r"--engine vllm --kv fp8 --image stock: .*SM120 has 101,376") as caught:
        plan(engine="vllm", kv="fp8", image="stock")

    assert caught.value.exit_code == 1
    assert caught.value.hint == "it runs without --engine or without --kv or without --image"


def test_fp8_alone_goes_to_the_image_that_can() -> None:
    """With only the cache constrained, the patched image makes it start, and the plan explains that."""
    chosen = plan(engine="vllm", kv="fp8")

    assert chosen.recipe.runtime.preset == "community"
    assert any("stock vLLM does not start" in one.text for one in chosen.warnings)


@pytest.mark.parametrize(("dcp", "seen"), [(1, 491_200), (4, 1_964_992), (8, 3_929_600)])
def test_constraints_reproduce_the_published_pools(dcp: int, seen: int) -> None:
    """kimi-k26-v2: tokens that the community image holds at 0.94 and a context of 262,144."""
    chosen = plan(image="community", dcp=dcp, memory_utilization=0.94, speculate="none", context=262144, kv="fp8")

    assert chosen.memory.kv_tokens == pytest.approx(seen, rel=0.02)


def test_sglang_gets_its_fraction_with_a_reason() -> None:
    """By default SGLang would hold a few thousand tokens of a vision model's cache; the recipe sets the fraction."""
    chosen = plan(name="kimi-k2.5", engine="sglang")

    assert chosen.recipe.memory_utilization == 0.85
    assert chosen.memory.kv_tokens > 150_000
    assert any("by default SGLang would use 0.771" in line for line in chosen.reasons)


def test_the_max_q_box_gets_a_layout_as_good_as_its_owner_found() -> None:
    """Two Max-Q GPUs, EPYC 9175F, 768 GiB: ik_llama.cpp, and forecast no slower than any layout the owner tried."""
    model, _ = facts("kimi-k2.6")
    chosen = plan(box=MAX_Q_BOX)
    ours = Speed.for_deployment(
        on(MAX_Q_BOX, model, catalogue.find_checkpoint(model.name, chosen.recipe.checkpoint), chosen.recipe)
    )

    assert chosen.recipe.engine == "ik_llama.cpp"
    assert chosen.recipe.hybrid is not None
    assert chosen.recipe.hybrid.threads == 15
    for form, counts, ubatch in (
        ("IQ3_K", (0, 0), 512),
        ("IQ3_K", (3, 3), 512),
        ("IQ3_K", (8, 2), 4096),
        ("IQ3_K", (2, 2), 4096),
        ("Q4_X", (5, 5), 4096),
    ):
        tried = plan(box=MAX_Q_BOX, engine="ik_llama.cpp", checkpoint=form, experts=counts, ubatch=ubatch).recipe
        his = Speed.for_deployment(on(MAX_Q_BOX, model, catalogue.find_checkpoint(model.name, form), tried))
        assert ours.decode_tok_s(1, 4096) >= his.decode_tok_s(1, 4096)


def test_expert_layers_go_to_the_head_and_the_tail() -> None:
    """3+3 is layers 1 to 3 on the first GPU and 58 to 60 on the second, as in the write-up."""
    recipe = plan(box=MAX_Q_BOX, experts=(3, 3), checkpoint="IQ3_K").recipe

    assert recipe.hybrid is not None
    assert recipe.hybrid.experts == ((1, 2, 3), (58, 59, 60))


def test_the_error_names_the_missing_bytes_and_remedies() -> None:
    """One RTX 5090 and unknown RAM: exit code 1, missing bytes, GPUs or RAM that would be enough."""
    with pytest.raises(DoesNotFit) as problem:
        plan(box=box_with(1, "rtx-5090"))

    assert problem.value.exit_code == 1
    assert problem.value.shortfall > 100e9
    assert "GB" in problem.value.message
    assert "RAM" in str(problem.value.hint)


def test_a_context_too_long_names_the_one_that_fits() -> None:
    """The model's own context does not fit this layout; three quarters of it do."""
    with pytest.raises(DoesNotFit) as problem:
        plan(context=262144, engine="vllm", tp=8, pp=1, dcp=1, image="stock", kv="bf16")

    assert "--context 196608 fits" in str(problem.value.hint)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_number_of_gpus_has_a_plan(gpus: int) -> None:
    """Odd counts use what the heads and layers allow, over all GPUs or fewer."""
    recipe = plan(name="gpt-oss-120b", box=box_with(gpus, "h200")).recipe

    assert recipe.parallel.gpu_count <= gpus
    assert 64 % recipe.parallel.tp == 0


def test_three_gpus_become_stages() -> None:
    """64 heads are not divisible by three: Kimi on three B300 runs in pipeline stages or on fewer GPUs."""
    parallel = plan(box=box_with(3, "b300")).recipe.parallel

    assert parallel.tp in (1, 2)
    assert parallel.gpu_count in (2, 3)


def test_mixed_gpus_make_a_group_of_equals() -> None:
    """Four large GPUs and a small one: the recipe names the four."""
    small = catalogue.find_gpu("rtx-4090")
    box = replace(EIGHT, gpus=(small, *EIGHT.gpus[:4]), name="mixed")
    recipe = plan(name="gpt-oss-120b", box=box, tp=4).recipe

    assert recipe.env["CUDA_VISIBLE_DEVICES"] == "1,2,3,4"


def test_memory_in_use_lowers_the_utilization() -> None:
    """A GPU with 86 GiB free of 95 cannot be used to 0.90; the plan uses less and warns."""
    busy = replace(EIGHT.gpus[0], memory_free=84 * 2**30)
    chosen = plan(box=replace(EIGHT, gpus=(busy, *EIGHT.gpus[1:])))

    assert chosen.recipe.memory_utilization is not None
    assert chosen.recipe.memory_utilization < 0.90
    assert any("other programs hold" in one.text for one in chosen.warnings)


def test_no_gpu_runs_from_ram() -> None:
    """A machine without GPUs and with enough RAM gets llama.cpp or its fork, nothing on a GPU."""
    box = box_with(0, "h200", ram=768 * 2**30, ram_bandwidth=400_000_000_000)
    chosen = plan(box=box)

    assert chosen.recipe.hybrid is not None
    assert chosen.recipe.hybrid.gpu_layers == 0
    assert [one.device for one in chosen.memory.devices] == ["ram"]


def test_mig_slices_give_a_warning() -> None:
    """Tensor parallelism over slices of a GPU does not start."""
    gpu = replace(catalogue.find_gpu("h200"), mig=True)
    chosen = plan(name="gpt-oss-120b", box=replace(EIGHT, gpus=(gpu,) * 2, name="slices"))

    assert any("MIG" in one.text for one in chosen.warnings)


def test_goals_differ() -> None:
    """For context the pool is several times larger; bold uses a draft or the patched image."""
    plain, context, bold = plan(), plan(goal="context"), plan(bold=True)

    assert context.memory.kv_tokens > 3 * plain.memory.kv_tokens
    assert context.recipe.context == 262144
    assert bold.recipe.speculate is not None or bold.recipe.runtime.preset


def test_many_long_requests_get_context_parallelism() -> None:
    """Sixteen requests of 65,536 tokens are more than one copy of the cache holds on every GPU."""
    recipe = plan(context=65536, concurrency=16).recipe

    assert recipe.parallel.dcp > 1 or recipe.parallel.pp > 1


@pytest.mark.parametrize(
    ("constraints", "kind"),
    [
        ({"checkpoint": "nothing"}, UnknownName),
        ({"engine": "vllm", "checkpoint": "IQ3_K"}, BadInput),
        ({"tp": 3}, BadInput),
        ({"dcp": 3}, BadInput),
        ({"tp": 16}, BadInput),
        ({"experts": (90,)}, BadInput),
    ],
)
def test_invalid_constraints_are_one_clear_error(constraints: dict[str, object], kind: type[Exception]) -> None:
    """Only our own errors are raised."""
    with pytest.raises(kind):
        plan(**constraints)


@pytest.mark.parametrize("field", ["goal", "engine", "kv", "speculate", "image"])
def test_unknown_names_are_refused(field: str) -> None:
    """A misspelt setting is never ignored."""
    with pytest.raises(UnknownName):
        Constraints(**{field: "wrong"})  # type: ignore[arg-type]


@settings(max_examples=6, deadline=None)
@given(
    name=st.sampled_from(("kimi-k2.6", "glm-4.7", "qwen3-235b", "deepseek-v3")),
    gpu=st.sampled_from(("rtx-pro-6000-server", "h200", "b200", "h100")),
    count=st.sampled_from((1, 2, 4, 8)),
    goal=st.sampled_from(("throughput", "latency", "context")),
    bold=st.booleans(),
)
def test_recipes_are_whole_and_the_same_every_time(name: str, gpu: str, count: int, goal: str, bold: bool) -> None:
    """A plan's recipe parses again to itself, passes the engine's checks, launches, and does not change on a rerun."""
    box = box_with(count, gpu, ram=1024 * 2**30, ram_bandwidth=400_000_000_000)
    model, forms = facts(name)
    constraints = Constraints(goal=goal, bold=bold)  # type: ignore[arg-type]
    try:
        chosen = choose_plan(box, model, forms, constraints)
    except DoesNotFit:
        return
    again = codec.decode(Recipe, tomllib.loads(codec.to_toml(chosen.recipe)), where="recipe")

    assert again == chosen.recipe
    check_recipe(deploy(chosen.recipe, box))
    assert build_launch(deploy(chosen.recipe, box)).argv
    assert codec.to_json(choose_plan(box, model, forms, constraints)) == codec.to_json(chosen)
    assert all(one.free >= 0 for one in chosen.memory.devices)


@settings(max_examples=10, deadline=None)
@given(count=st.integers(1, 8), ram=st.integers(0, 800), more=st.integers(0, 400))
def test_a_larger_box_never_fits_less(count: int, ram: int, more: int) -> None:
    """What fits some GPUs and some RAM also fits those GPUs with more RAM."""
    small = box_with(count, "rtx-pro-6000-server", ram=ram * 2**30, ram_bandwidth=400_000_000_000)
    large = replace(small, ram=(ram + more) * 2**30)
    try:
        plan(box=small)
    except DoesNotFit:
        return
    if ram:  # without a value RAM is unknown, not absent
        assert plan(box=large).memory.fits


def test_nvfp4_is_not_chosen_on_amd() -> None:
    """A neighbour's figures made NVIDIA's format look twice as fast on MI300X, where no kernel reads it."""
    found = plan("kimi-k2-thinking", parse_box("8x-mi300x"))
    assert found.recipe.checkpoint == "int4"
    assert any("no kernel for it runs on AMD" in reason for reason in found.refused.values())


@pytest.mark.parametrize(("box", "name"), [("2x-mi300x", "ROCm"), ("2x-rtx-pro-6000-server", "CUDA")])
def test_experts_are_placed_by_the_device_name_of_the_build(box: str, name: str) -> None:
    """A HIP build has no CUDA0: llama.cpp ended with "unknown buffer type" on every AMD box."""
    where = parse_box(box, ram="512GiB", ram_bandwidth="400GB/s")
    recipe = plan("minimax-m2.7", where, engine="llama.cpp").recipe
    argv = build_launch(deploy(recipe, where)).argv
    placed = [word for word in argv if "_exps=" in word]

    assert [word.rpartition("=")[2] for word in placed] == [f"{name}{gpu}" for gpu in range(len(placed))]
    assert placed
    assert codec.decode(Recipe, tomllib.loads(codec.to_toml(recipe)), where="test") == recipe
    back = parse_command("llama.cpp", argv)
    assert back.hybrid is not None
    assert recipe.hybrid is not None
    assert (back.hybrid.device, back.hybrid.experts) == (name, recipe.hybrid.experts)


def test_a_plan_promises_only_climbs_that_are_possible():
    """Nothing that does not fit, and nothing over several nodes, on which climbs start no engine."""
    short = choose_plan(replace(parse_box("1x-rtx-5090"), ram=512 * 2**30), *resolve_model("glm-4.7"), Constraints())
    assert short.recipe.climb.contexts == (49152,)
    spread = choose_plan(parse_box("2x8x-h100"), *resolve_model("kimi-k2.6"), Constraints())
    assert spread.recipe.parallel.nodes == 2
    assert (len(spread.recipe.climb.contexts), spread.recipe.climb.speculate) == (1, ())
    assert not any("moebox climb" in reason for plan in (short, spread) for reason in plan.reasons)
    whole = choose_plan(parse_box("8x-h200"), *resolve_model("kimi-k2.6"), Constraints())
    assert whole.recipe.climb.contexts[:2] == (65536, 98304)
    assert any("`moebox climb` raises the context and then tries eagle3 drafts" in reason for reason in whole.reasons)


def test_of_equal_forecasts_the_one_with_several_slots_is_chosen() -> None:
    """A single slot makes a second request wait: it must be forecast a tenth better."""
    constraints = Constraints(engine="vllm", concurrency=1)
    model, checkpoints = facts("kimi-k2.6")
    several = choose.search_candidates(EIGHT, model, checkpoints, constraints)[1][0]
    recipe = replace(several.recipe, max_seqs=1)
    single = replace(several, recipe=recipe)

    assert single.score == several.score
    assert choose.rank_by_worth([single, several]) == [several, single]
    assert "it answers one request at a time" in [each.reason for each in prefer.all_discounts(single)]
