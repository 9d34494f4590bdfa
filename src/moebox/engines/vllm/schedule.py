"""How vLLM batches: prompts in chunks beside decoding; the youngest request is preempted when cache runs out."""

from moebox.core.box import Gpu
from moebox.core.recipe import Recipe
from moebox.engines.vllm import memory
from moebox.engines.vllm.traits import TRAITS

DEFAULT_MAX_SEQS = 1024  # on GPUs of 70 GiB and more (engine/arg_utils.py)
PROMPTS_FIRST = False
RESERVES_OUTPUT = False
SCHEDULES_AHEAD = True  # asynchronous scheduling, the default since 0.14


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read: by default more on larger GPUs."""
    return memory.step_tokens(gpu, recipe) if gpu else recipe.batched_tokens or TRAITS.step_tokens
