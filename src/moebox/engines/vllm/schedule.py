"""How vLLM batches: prompts in chunks beside decoding; the youngest request is preempted when cache runs out."""

from moebox.core.recipe import Recipe
from moebox.engines.vllm.traits import TRAITS

SEQUENCES = 1024  # on GPUs of 70 GiB and more (engine/arg_utils.py)
PROMPTS_FIRST = False
RESERVES = False


def step_tokens(recipe: Recipe) -> int:
    """Prompt tokens one step may read."""
    return recipe.batched_tokens or TRAITS.step_tokens
