"""How KTransformers batches: as SGLang does, with few requests and large prefill chunks."""

from moebox.core.box import Gpu
from moebox.core.recipe import Recipe
from moebox.engines.sglang.schedule import PROMPTS_FIRST, RESERVES_OUTPUT, SCHEDULES_AHEAD

__all__ = ["CHUNK", "DEFAULT_MAX_SEQS", "PROMPTS_FIRST", "RESERVES_OUTPUT", "SCHEDULES_AHEAD", "step_tokens"]
DEFAULT_MAX_SEQS = 4  # --max-running-requests of the project's launches
CHUNK = 16384  # --chunked-prefill-size of its launches for eight GPUs; a chunk's experts are copied to the GPUs once


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read."""
    return recipe.batched_tokens or CHUNK
