"""ik_llama.cpp's memory arithmetic: the lines both servers share, and its own way with large batches."""

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.engines.ggml.lines import memory_lines
from moebox.engines.ggml.memory import expert_layers_on_gpus, offload_threshold
from moebox.units import format_count

__all__ = ["memory_lines", "setting_reasons"]


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """From which micro-batch on the GPUs work on the experts in RAM, where there are any."""
    hybrid, model = deployment.recipe.hybrid, deployment.model
    if (
        hybrid is None
        or not deployment.required_box.gpus
        or expert_layers_on_gpus(deployment.recipe) >= model.moe_layers
    ):
        return []
    least = offload_threshold(model)
    if hybrid.ubatch >= least:
        return [
            f"-ub {hybrid.ubatch}: from {format_count(least)} tokens a batch on, "
            "the GPUs read prompts, RAM's experts too"
        ]
    return [
        f"-ub {hybrid.ubatch}: the CPU reads prompts with RAM's experts; from {format_count(least)} tokens a batch on "
        "the GPUs would"
    ]
