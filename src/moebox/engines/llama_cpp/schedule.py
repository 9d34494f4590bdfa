"""How llama.cpp's server batches: slots, and one micro-batch of prompts at a time."""

from moebox.core.box import Gpu
from moebox.core.recipe import Recipe
from moebox.engines.llama_cpp.traits import TRAITS

SEQUENCES = 1
PROMPTS_FIRST = False
RESERVES = False
AHEAD = False


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read."""
    return recipe.batched_tokens or (recipe.hybrid.ubatch if recipe.hybrid else TRAITS.step_tokens)
