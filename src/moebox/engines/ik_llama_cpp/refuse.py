"""What ik_llama.cpp will not run, and why."""

import re
from collections.abc import Iterator

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Recipe
from moebox.engines.common import engines_for_format, plan_warning, quantization_of
from moebox.engines.flags import newest_version
from moebox.engines.ggml import refuse as ggml
from moebox.engines.ik_llama_cpp.traits import TRAITS
from moebox.engines.retired import version_key

MAINLINE_QUANT = re.compile(r"NVFP4|Q1_0|Q2_0$", re.IGNORECASE)


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Known reasons why this will not start, or will disappoint."""
    return [
        *ggml.find_refusals(deployment),
        *_weights(deployment),
        *_settings(deployment.recipe),
        *_thinking(deployment),
    ]


def _weights(deployment: Deployment) -> Iterator[PlanWarning]:
    """Files that it does not find or read."""
    quant, known = quantization_of(deployment), deployment.known_checkpoint
    if known and known.repo and not (known.path or known.file):
        text = f"which file of {known.repo} holds {known.name} is not known, and ik_llama.cpp starts only with its name"
        yield plan_warning("warning", text, f"hf download {known.repo} --include '*{known.name}*', then name the file")
    if MAINLINE_QUANT.search(quant):
        yield plan_warning("fatal", f"ik_llama.cpp cannot read {quant}", engines_for_format(deployment))


def _settings(recipe: Recipe) -> Iterator[PlanWarning]:
    """Settings that it does not have, or that do not pay."""
    if recipe.speculate:
        yield plan_warning("fatal", f"ik_llama.cpp has no {recipe.speculate.method} drafts", "leave speculate out")
    if not recipe.flags.keys().isdisjoint(("ger", "-ger")):
        yield plan_warning("note", "-ger does nothing for Kimi: its experts are one group")
    if recipe.vision:
        yield plan_warning("warning", "Kimi's vision tower is not served by ik_llama.cpp", "vision = false")


def _thinking(deployment: Deployment) -> Iterator[PlanWarning]:
    """How thinking is turned off."""
    version = deployment.recipe.engine_version or newest_version(TRAITS.name)
    if not deployment.recipe.thinking and version_key(version) >= version_key("2026-08"):
        text = "thinking is turned off by a budget of 0; the template's switch would send answers to reasoning_content"
        yield plan_warning("note", text, source="ik_llama.cpp of August 2026, tried")
