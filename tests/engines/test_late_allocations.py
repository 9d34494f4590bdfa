"""Memory that an engine allocates after profiling counts too: what fits must not crash at graph capture."""

import dataclasses

from moebox import engines
from moebox.checkpoint import deploy
from moebox.core import catalogue
from moebox.core.box import Box
from moebox.engines.vllm import memory as rules
from moebox.sizing.constants import memory_constant_bytes, visible_bytes
from tests.planner.deployed import kimi

GPU = catalogue.find_gpu("rtx-pro-6000-server")
BOX = Box(name="8x", gpus=(GPU,) * 8)


def test_memory_allocated_after_profiling_counts_against_the_gpu() -> None:
    """Triton MLA's workspace is outside the utilization: one that leaves less than it does not fit, by that much."""
    recipe = kimi(max_seqs=256, kv="bf16")
    later = rules.workspace_bytes(GPU, catalogue.find_model("kimi-k2.6"), recipe)
    assert later > 2**29
    margin = memory_constant_bytes("load", "margin")
    tight = (visible_bytes(GPU) - margin - later // 2) / visible_bytes(GPU)
    roomy = (visible_bytes(GPU) - margin - 2 * later) / visible_bytes(GPU)

    short = engines.memory_budget(deploy(dataclasses.replace(recipe, memory_utilization=tight), BOX))
    whole = engines.memory_budget(deploy(dataclasses.replace(recipe, memory_utilization=roomy), BOX))
    assert not short.fits
    assert abs(short.shortfall - later // 2) < 2**21
    assert whole.fits
