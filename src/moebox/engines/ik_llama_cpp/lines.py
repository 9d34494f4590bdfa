"""ik_llama.cpp's memory arithmetic: the lines both servers share, and its own way with large batches."""

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.engines.ggml.lines import lines
from moebox.engines.ggml.memory import offload_threshold
from moebox.units import count

__all__ = ["lines", "reasons"]


def reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """From which micro-batch on prompts are read on the GPUs."""
    hybrid, model = deployment.recipe.hybrid, deployment.model
    if hybrid is None or model.moe is None or not deployment.place.gpus:
        return []
    least = offload_threshold(model)
    if hybrid.ubatch >= least:
        return [f"-ub {hybrid.ubatch}: from {count(least)} tokens a batch on, prompts are read on the GPUs"]
    return [f"-ub {hybrid.ubatch}: prompts are read by the CPU; from {count(least)} tokens a batch on the GPUs would"]
