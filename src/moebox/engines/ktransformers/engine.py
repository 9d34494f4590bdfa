"""KTransformers: the SGLang fork's command line with what kt-kernel needs, its log, and what it refuses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, hybrid_arguments
from moebox.engines.assemble import python_entry
from moebox.engines.engine import Engine
from moebox.engines.events import LogPattern, engine_patterns
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.ktransformers import memory
from moebox.engines.ktransformers.traits import TRAITS
from moebox.engines.sglang import engine as sglang
from moebox.engines.support import plan_warning

# CPU and GPUs read the same files in these formats (Native-Precision-Tutorial.md, DeepSeek-V4-Flash.md).
METHODS = {"int4-g32": "RAWINT4", "fp8-block": "FP8", "bf16": "BF16", "mxfp4": "MXFP4"}
# From this many tokens on a prompt is read on the GPUs, layer by layer (Kimi-K2-Thinking-Native.md).
THRESHOLD = 400
# Processors without AVX-512: Zen 2 and 3, Xeons before Skylake-SP, Core of the 12th generation and later.
NO_AVX512 = re.compile(
    r"EPYC 7\w\w[123]\b|Ryzen \w+ (?:PRO )?[345]\d{3}|Threadripper (?:PRO )?[35]9\d\d|Xeon\(R\) CPU E\d|1[2-4]\d{3}K?"
)
FORK = "the parser of sglang-kt 0.7.2"
SOURCE = "kvcache-ai/ktransformers, Native-Precision-Tutorial.md"


class KTransformersEngine(Engine):
    """Batches as SGLang does, with few requests and large prefill chunks.

    It cannot be rehearsed: kt-kernel reads real experts.
    """

    traits = TRAITS
    fields = sglang.ENGINE.fields
    hybrid_fields: Mapping[str, str] = {
        "--kt-cpuinfer": "hybrid.threads",
        "--kt-threadpool-count": "hybrid.pools",
        "--kt-num-gpu-experts": "hybrid.gpu_experts",
    }
    variables: Mapping[str, str] = {**sglang.ENGINE.variables, "--kt-weight-path": "MODEL_PATH"}
    environment = staticmethod(sglang.ENGINE.environment)
    hide_api_key = staticmethod(sglang.ENGINE.hide_api_key)
    memory_budget = staticmethod(memory.memory_budget)
    max_gpu_experts = staticmethod(memory.max_gpu_experts)
    memory_lines = staticmethod(memory.memory_lines)
    setting_reasons = staticmethod(memory.setting_reasons)
    step_tokens = staticmethod(memory.step_tokens)
    default_max_seqs = 4  # --max-running-requests of the project's launches
    prompts_first = sglang.ENGINE.prompts_first
    reserves_output = sglang.ENGINE.reserves_output
    schedules_ahead = sglang.ENGINE.schedules_ahead

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        """Command-line arguments after the entry; drafts beside kt-kernel are not proven, and refused."""
        recipe, checkpoint = deployment.recipe, deployment.known_checkpoint
        known = flag_catalogue(recipe.engine, recipe.engine_version)
        undrafted = deployment.with_recipe(replace(recipe, speculate=None))
        out = sglang.ENGINE.base_arguments(undrafted, node=node, host=host)
        method = METHODS.get(checkpoint.quant if checkpoint else "", "AMXINT4")  # precision of experts on the CPU
        out += [("--kt-weight-path", deployment.weights_path), ("--kt-method", method)]
        out += hybrid_arguments(recipe, self.hybrid_fields)
        out += [("--kt-gpu-prefill-token-threshold", str(THRESHOLD)), ("--disable-shared-experts-fusion",)]
        return add_recipe_flags(out, recipe.flags, known)

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        """The command that starts it on this machine: the fork's module, because both packages install `sglang`."""
        return python_entry(recipe, program=("python3", "-m", sglang.MODULE), module=("-m", sglang.MODULE))

    @property
    def log_patterns(self) -> Sequence[LogPattern]:
        return (*engine_patterns(self.traits.name), *sglang.ENGINE.log_patterns)

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, box, checkpoint = deployment.recipe, deployment.box, deployment.known_checkpoint
        found, weights = super().find_refusals(deployment), deployment.weights_path
        if checkpoint and checkpoint.format == "safetensors" and checkpoint.quant not in METHODS:
            text = f"kt-kernel does not compute {checkpoint.quant} experts on a CPU"
            found.append(plan_warning("fatal", text, f"a checkpoint in {', '.join(METHODS)}", SOURCE))
        if not weights.startswith(("/", "~", ".")):  # a warning: the settings are right once the weights are there
            text = f"kt-kernel reads experts from a folder, not from the Hub's {weights}"
            remedy = f"hf download {weights} --local-dir FOLDER, then plan FOLDER"
            found.append(plan_warning("warning", text, remedy, SOURCE))
        if box and not box.cpu.model:
            found.append(plan_warning("note", "kt-kernel needs a CPU with AVX-512 or AMX", source=SOURCE))
        elif box and ("avx512f" not in known if (known := box.cpu.features) else NO_AVX512.search(box.cpu.model)):
            text = f"{box.cpu.model} has no AVX-512, which kt-kernel's native formats need"
            found.append(plan_warning("fatal", text, "llama.cpp or ik_llama.cpp run on it", SOURCE))
        found += sglang.bf16_cache_refusals(deployment) + sglang.small_tier_refusals(deployment, memory.memory_budget)
        if recipe.speculate:
            text = "drafts beside experts on the CPU are not proven"
            found.append(plan_warning("fatal", text, "leave speculate out"))
        if recipe.vision:
            found.append(plan_warning("warning", "a vision tower beside kt-kernel was not tried", "vision = false"))
        if not recipe.thinking:
            text = "the fork has no flag that turns thinking off: every request must"
            found.append(plan_warning("warning", text, "chat_template_kwargs in each request", FORK))
        return found


ENGINE = KTransformersEngine()
