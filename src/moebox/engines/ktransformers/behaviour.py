"""How KTransformers batches and logs, and what it refuses. It cannot be rehearsed: kt-kernel reads real experts."""

import re

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.engines.events import log_pattern
from moebox.engines.ktransformers.argv import METHODS
from moebox.engines.ktransformers.memory import step_tokens
from moebox.engines.refusals import common_refusals, plan_warning
from moebox.engines.sglang import behaviour as sglang

__all__ = ["find_refusals", "step_tokens"]

# Batching as in SGLang, with few requests and large prefill chunks.
DEFAULT_MAX_SEQS = 4  # --max-running-requests of the project's launches
PROMPTS_FIRST = sglang.PROMPTS_FIRST
RESERVES_OUTPUT = sglang.RESERVES_OUTPUT
SCHEDULES_AHEAD = sglang.SCHEDULES_AHEAD

# Processors without AVX-512: Zen 2 and 3, Xeons before Skylake-SP, Core of the 12th generation and later.
NO_AVX512 = re.compile(
    r"EPYC 7\w\w[123]\b|Ryzen \w+ (?:PRO )?[345]\d{3}|Threadripper (?:PRO )?[35]9\d\d|Xeon\(R\) CPU E\d|1[2-4]\d{3}K?"
)
FORK = "the parser of sglang-kt 0.7.2"
SOURCE = "kvcache-ai/ktransformers, Native-Precision-Tutorial.md"
PATTERNS = (
    log_pattern(r"(?:\[KT\]|kt[_-]kernel|KTMoEWrapper).*(?:[Ll]oad(?:ing)?)", "phase", "loading weights"),
    log_pattern(r"Illegal instruction|does not support (?:AMX|AVX512)|AVX512.* (?:not|un)supported", "error"),
    *sglang.PATTERNS,
)


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    recipe, box, checkpoint = deployment.recipe, deployment.box, deployment.known_checkpoint
    found, weights = common_refusals(deployment), deployment.weights_path
    if checkpoint and checkpoint.format == "safetensors" and checkpoint.quant not in METHODS:
        text = f"kt-kernel does not compute {checkpoint.quant} experts on a CPU"
        found.append(plan_warning("fatal", text, f"a checkpoint in {', '.join(METHODS)}", SOURCE))
    if not weights.startswith(("/", "~", ".")):  # a warning: the settings are right once the weights are there
        text = f"kt-kernel reads experts from a folder, not from the Hub's {weights}"
        remedy = f"hf download {weights} --local-dir FOLDER, then plan FOLDER"
        found.append(plan_warning("warning", text, remedy, SOURCE))
    if box and not box.cpu.model:
        found.append(plan_warning("note", "kt-kernel needs a CPU with AVX-512 or AMX", source=SOURCE))
    elif box and NO_AVX512.search(box.cpu.model):
        text = f"{box.cpu.model} has no AVX-512, which kt-kernel's native formats need"
        found.append(plan_warning("fatal", text, "llama.cpp or ik_llama.cpp run on it", SOURCE))
    found += sglang.bf16_cache_refusals(deployment)
    if recipe.speculate:
        text = "drafts beside experts on the CPU are not proven"
        found.append(plan_warning("fatal", text, "leave speculate out"))
    if recipe.vision:
        found.append(plan_warning("warning", "a vision tower beside kt-kernel was not tried", "vision = false"))
    if not recipe.thinking:
        text = "the fork has no flag that turns thinking off: every request must"
        found.append(plan_warning("warning", text, "chat_template_kwargs in each request", FORK))
    return found
