"""SGLang: its log, what it refuses, and the object that moebox uses."""

import math
from collections.abc import Callable

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.engines.engine import Engine
from moebox.engines.refusals import layer_override, plan_warning, require_fp8_cache, weight_format_refusals
from moebox.engines.sglang import argv, memory
from moebox.engines.sglang.traits import TRAITS
from moebox.units import format_gib

# Dummy weights route every token to the same few experts; this routes evenly, as real routers do (environ.py).
EVEN_ROUTING = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}
DUMMY_FLAGS: dict[str, Flag] = {"load-format": "dummy"}

# deepseek_v4_memory_pool.py asserts a store of packed fp8 on every GPU; "auto" becomes fp8 (arg_groups/overrides.py).
COMPRESSED = "https://github.com/sgl-project/sglang/issues/33194; SGLang deepseek_v4_memory_pool.py, August 2026"


def bf16_cache_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Refuse DeepSeek V4's cache in bf16; the fork under KTransformers has the same pool."""
    model = deployment.known_model
    refused = model is not None and model.has_compressed_cache and deployment.recipe.kv == "bf16"
    return [require_fp8_cache(COMPRESSED)] if refused else []


def small_tier_refusals(deployment: Deployment, budget: Callable[[Deployment], Memory]) -> list[PlanWarning]:
    """Refuse less RAM than HiCache starts with: more whole GB for each rank than its GPU has cache."""
    recipe = deployment.recipe
    if not (recipe.tiers.ram_gib and deployment.is_known and deployment.box):
        return []
    held = max((device.kv for device in budget(deployment).devices if device.device != "ram"), default=0)
    if argv.rank_gb(recipe) > held // argv.GB:
        return []
    least = math.ceil((held // argv.GB + 1) * argv.GB * recipe.parallel.gpu_count / 2**30)
    text = f"HiCache does not start with less RAM than a GPU has cache: {format_gib(held)} for each rank"
    remedy = f"kv_tiers.ram_gib = {least} or more"
    return [plan_warning("fatal", text, remedy, "sglang memory_pool_host.py, 0.5.23")]


class SglangEngine(Engine):
    """Reads prompts before it decodes, and reserves cache for what requests have yet to write."""

    traits = TRAITS
    fields = argv.FIELDS
    variables = argv.VARIABLES
    arguments = staticmethod(argv.arguments)
    draft_arguments = staticmethod(argv.draft_arguments)
    environment = staticmethod(argv.environment)
    entry_command = staticmethod(argv.entry_command)
    hide_api_key = staticmethod(argv.hide_api_key)
    memory_budget = staticmethod(memory.memory_budget)
    memory_lines = staticmethod(memory.memory_lines)
    setting_reasons = staticmethod(memory.setting_reasons)
    default_max_seqs = 4096  # at most, on GPUs of 70 GiB and more
    prompts_first = True
    reserves_output = True
    schedules_ahead = True  # the overlap scheduler, the default since 0.4
    even_routing = EVEN_ROUTING
    dummy_flags = DUMMY_FLAGS

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens that one step may read: by default more on larger GPUs."""
        return memory.chunk_and_batch(gpu, recipe)[0] if gpu else recipe.batched_tokens or TRAITS.step_tokens

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        return {**DUMMY_FLAGS, "json-model-override-args": layer_override(deployment, layers)}

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe = deployment.recipe
        found = [*super().find_refusals(deployment), *weight_format_refusals(deployment)]
        found += bf16_cache_refusals(deployment)
        found += small_tier_refusals(deployment, memory.memory_budget)
        if recipe.speculate and recipe.parallel.dcp > 1:
            text = "speculative decoding under DCP is not proven in SGLang"
            found.append(plan_warning("warning", text, "parallel.dcp = 1"))
        return found


ENGINE = SglangEngine()
