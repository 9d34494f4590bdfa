"""ik_llama.cpp's memory: the rules both servers share, and its own use of GPUs for large batches of prompts.

From a number of tokens on, experts in RAM are copied to the GPUs, which then compute them: each expert is used often
enough to pay for its copy. Below that the CPU reads prompts with them.
"""

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.engines.ggml.memory import (
    expert_layers_on_gpus,
    memory_budget,
    memory_lines,
    offload_threshold,
)
from moebox.units import format_count

__all__ = ["memory_budget", "memory_lines", "setting_reasons"]


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """From which micro-batch on the GPUs compute the experts in RAM, if there are any."""
    recipe, model, hybrid = deployment.recipe, deployment.model, deployment.recipe.hybrid
    all_on_gpus = expert_layers_on_gpus(recipe) >= model.moe_layers
    if hybrid is None or not deployment.required_box.gpus or all_on_gpus:
        return []
    least = offload_threshold(model)
    start = f"-ub {hybrid.ubatch}: "
    if hybrid.ubatch >= least:
        return [f"{start}from {format_count(least)} tokens a batch on, the GPUs read prompts, with experts in RAM too"]
    return [
        f"{start}the CPU reads prompts with experts in RAM; from {format_count(least)} tokens a batch on the GPUs would"
    ]
