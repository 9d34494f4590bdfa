"""How SGLang batches: prompts before decoding, and cache reserved for what requests have yet to write."""

from moebox.core.box import Gpu
from moebox.core.recipe import Recipe
from moebox.engines.sglang import memory
from moebox.engines.sglang.traits import TRAITS

DEFAULT_MAX_SEQS = 4096  # at most, on GPUs of 70 GiB and more
PROMPTS_FIRST = True
RESERVES_OUTPUT = True
SCHEDULES_AHEAD = True  # the overlap scheduler, the default since 0.4


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read: by default more on larger GPUs."""
    return memory.chunk_and_batch(gpu, recipe)[0] if gpu else recipe.batched_tokens or TRAITS.step_tokens
