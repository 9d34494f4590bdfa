"""How the servers of llama.cpp and ik_llama.cpp batch: slots, and one micro-batch of prompts at a time."""

from moebox.core import registry
from moebox.core.box import Gpu
from moebox.core.recipe import Recipe

DEFAULT_MAX_SEQS = 1
PROMPTS_FIRST = False
RESERVES_OUTPUT = False
SCHEDULES_AHEAD = False


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read."""
    usual = recipe.hybrid.ubatch if recipe.hybrid else registry.engine_traits(recipe.engine).step_tokens
    return recipe.batched_tokens or usual
