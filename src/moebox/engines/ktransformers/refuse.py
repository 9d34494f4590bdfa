"""What KTransformers will not run, and why."""

import re

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.engines.common import common_refusals, plan_warning
from moebox.engines.ktransformers.argv import METHODS
from moebox.engines.sglang.refuse import bf16_cache_refusals

# Processors without AVX-512: Zen 2 and 3, Xeons before Skylake-SP, Core of the 12th generation and later.
NO_AVX512 = re.compile(
    r"EPYC 7\w\w[123]\b|Ryzen \w+ (?:PRO )?[345]\d{3}|Threadripper (?:PRO )?[35]9\d\d|Xeon\(R\) CPU E\d|1[2-4]\d{3}K?"
)
FORK = "the parser of sglang-kt 0.7.2"
SOURCE = "kvcache-ai/ktransformers, Native-Precision-Tutorial.md"


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Known reasons why this will not start, or will disappoint."""
    recipe = deployment.recipe
    found = (
        common_refusals(deployment)
        + _experts(deployment)
        + _processor(deployment.box)
        + bf16_cache_refusals(deployment)
    )
    if recipe.speculate:
        found.append(plan_warning("fatal", "drafts beside experts on the CPU are not proven", "leave speculate out"))
    if recipe.vision:
        found.append(plan_warning("warning", "a vision tower beside kt-kernel was not tried", "vision = false"))
    if not recipe.thinking:
        text = "the fork has no flag that turns thinking off: every request must"
        found.append(plan_warning("warning", text, "chat_template_kwargs in each request", FORK))
    return found


def _experts(deployment: Deployment) -> list[PlanWarning]:
    """Weights that kt-kernel cannot compute with, or cannot read."""
    found, known = [], deployment.known_checkpoint
    if known and known.format == "safetensors" and known.quant not in METHODS:
        text = f"kt-kernel does not compute {known.quant} experts on a CPU"
        found.append(plan_warning("fatal", text, f"a checkpoint in {', '.join(METHODS)}", SOURCE))
    if not deployment.weights_path.startswith(("/", "~", ".")):
        text = f"kt-kernel reads experts from a folder, not from the Hub's {deployment.weights_path}"
        remedy = f"hf download {deployment.weights_path} --local-dir FOLDER, then plan FOLDER"
        found.append(plan_warning("warning", text, remedy, SOURCE))  # the settings are right once the weights are there
    return found


def _processor(box: Box | None) -> list[PlanWarning]:
    if box is None:
        return []
    if not box.cpu.model:
        return [plan_warning("note", "kt-kernel wants a CPU with AVX-512 or AMX", source=SOURCE)]
    if not NO_AVX512.search(box.cpu.model):
        return []
    text = f"{box.cpu.model} has no AVX-512, which kt-kernel's native forms need"
    return [plan_warning("fatal", text, "llama.cpp or ik_llama.cpp run on it", SOURCE)]
