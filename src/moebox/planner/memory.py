"""Where every byte goes: box, model, checkpoint and recipe to the budget of each device and the tokens of cache.

One module per engine family holds that engine's own rules; `shards` and `kv` hold what follows from the architecture
alone; `lines` writes the arithmetic out.
"""

from collections.abc import Callable
from dataclasses import replace

from moebox.core.box import Box
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Memory
from moebox.core.recipe import EngineName, Recipe
from moebox.engines.ggml import memory as llama
from moebox.engines.sglang import memory as sglang
from moebox.engines.vllm import memory as vllm

Rule = Callable[[Box, Model, Checkpoint, Recipe], Memory]
RULES: dict[EngineName, Rule] = {
    "vllm": vllm.budget,
    "sglang": sglang.budget,
    "llama.cpp": llama.budget,
    "ik_llama.cpp": llama.budget,
}


def budget(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> Memory:
    """The memory of every device of `box` under `recipe`; `fits` is false where it would not start or not serve."""
    if not recipe.context:  # the engine's own: the model's
        recipe = replace(recipe, context=model.context)
    return RULES[recipe.engine](box, model, checkpoint, recipe)
