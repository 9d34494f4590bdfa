"""What SGLang will not run, and why."""

from moebox.core.deployment import Deployment
from moebox.core.model import Model
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.common import common_refusals, fp8_cache_required, plan_warning, sm_majors, weight_format_refusals
from moebox.engines.retired import version_key

# Attention backends without kernels for consumer Blackwell (SGLang 0.5.23 arg_groups/attention_hook.py).
NOT_SM12 = ("flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "fa3", "fa4", "trtllm_mha")
# deepseek_v4_memory_pool.py asserts a store of packed fp8 on every GPU; "auto" becomes fp8 (arg_groups/overrides.py).
COMPRESSED = "https://github.com/sgl-project/sglang/issues/33194; SGLang deepseek_v4_memory_pool.py, August 2026"


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Known reasons why this will not start, or will disappoint."""
    recipe, model = deployment.recipe, deployment.known_model
    found = [*common_refusals(deployment), *weight_format_refusals(deployment)]
    if "12" in sm_majors(deployment):
        found += _on_consumer_blackwell(recipe)
        found += _slow_fp8(recipe, model)
    found += bf16_cache_refusals(deployment)
    if recipe.memory_utilization is None and model is not None and model.total_parameters > 500e9:
        text = "its own memory fraction left 4,578 tokens of cache on 8×96 GB: it is lowered for vision models"
        found.append(
            plan_warning("warning", text, "memory_utilization = 0.93", "SM120 deployment report, 29 January 2026")
        )
    if recipe.speculate and recipe.parallel.dcp > 1:
        found.append(
            plan_warning("warning", "speculative decoding under DCP is not proven in SGLang", "parallel.dcp = 1")
        )
    return found


def _on_consumer_blackwell(recipe: Recipe) -> list[PlanWarning]:
    found, backend = [], str(recipe.flags.get("attention-backend", ""))
    if backend in NOT_SM12:
        found.append(
            plan_warning("fatal", f"{backend} has no kernel for SM 12.x", 'flags.attention-backend = "flashinfer"')
        )
    old = bool(recipe.engine_version) and version_key(recipe.engine_version) < version_key("0.5.7")
    if old and backend in ("", "triton"):
        found.append(
            plan_warning(
                "fatal",
                "its extend attention kernel wants 106,496 bytes of shared memory and SM120 has 101,376: "
                "short prompts work, the first long one crashes",
                'engine_version = "0.5.23", or flags.attention-backend = "flashinfer"',
                "SM120 deployment report, 29 January 2026; https://github.com/sgl-project/sglang/pull/14311",
            )
        )
    return found


def _slow_fp8(recipe: Recipe, model: Model | None) -> list[PlanWarning]:
    """Not so where a model's kernels have no other cache."""
    if recipe.kv != "fp8" or (model is not None and model.has_compressed_cache):
        return []
    text = "fp8 cache on SM120 gave 16 tok/s where bf16 gave 90 (March 2026); not measured since"
    return [plan_warning("warning", text, 'kv = "bf16"', "rtx6kpro wiki, kimi-k25")]


def bf16_cache_refusals(deployment: Deployment) -> list[PlanWarning]:
    """DeepSeek V4's cache in bf16; the fork under KTransformers has the same pool."""
    model = deployment.known_model
    refused = model is not None and model.has_compressed_cache and deployment.recipe.kv == "bf16"
    return [fp8_cache_required(COMPRESSED)] if refused else []
