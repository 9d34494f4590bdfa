"""NVFP4 caches, and drafts by DFlash and DSpark."""

import pytest

from moebox.core import catalogue
from moebox.core.box import Box
from moebox.errors import BadInput, MoeboxError
from moebox.planner.candidates import default_draft_method, make_draft
from moebox.planner.choose import choose_plan
from moebox.planner.constraints import Constraints

PRO = Box(name="2x-rtx-pro-6000-server", gpus=(catalogue.find_gpu("rtx-pro-6000-server"),) * 2)


def test_an_nvfp4_cache_is_planned_where_vllm_has_one() -> None:
    """0.32 on SM120 holds 16/9 of the tokens of fp8 (9 bits of 16 a value); a latent cache is refused by the matrix."""
    model, checkpoints = catalogue.find_model("qwen3-235b"), catalogue.published_checkpoints("qwen3-235b")
    tokens = {}
    for kv in ("fp8", "nvfp4"):
        wanted = Constraints(engine="vllm", kv=kv, checkpoint="gptq-int4", context=32768)
        tokens[kv] = choose_plan(PRO, model, checkpoints, wanted).memory.kv_bytes_per_token

    assert tokens["nvfp4"] / tokens["fp8"] == pytest.approx(9 / 16, rel=0.01)
    kimi = catalogue.find_model("kimi-k2.6")
    eight = Box(name="8x-rtx-pro-6000-server", gpus=PRO.gpus[:1] * 8)
    wanted = Constraints(engine="vllm", kv="nvfp4", checkpoint="int4", context=32768)
    with pytest.raises(MoeboxError, match="nvfp4"):
        choose_plan(eight, kimi, catalogue.published_checkpoints(kimi.name), wanted)


def test_drafts_are_of_the_method_that_is_asked_for() -> None:
    """DeepSeek V4 Flash 0731 has DSpark in its checkpoint, GLM-5.3-Flash a DFlash repository and its own layer."""
    deepseek, glm = catalogue.find_model("deepseek-v4-flash-0731"), catalogue.find_model("glm-5.3-flash")

    assert default_draft_method(deepseek) == "dspark"
    assert make_draft(deepseek, "dspark").draft == ""
    assert default_draft_method(glm) == "mtp"
    assert make_draft(glm, "dflash").draft == "incoai/GLM-5.3-Flash-DFlash2"
    with pytest.raises(BadInput, match="no DSpark draft"):
        make_draft(glm, "dspark")
