"""KTransformers' memory arithmetic, written out."""

from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine, Memory
from moebox.engines.ktransformers import memory as rules
from moebox.engines.ktransformers.schedule import step_tokens
from moebox.engines.lines import bytes_line, token_line, weight_lines
from moebox.units import format_count

SOURCE = "kvcache-ai/ktransformers, Kimi-K2-Thinking-Native.md"


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every part of the first GPU, then the RAM's."""
    model, checkpoint, recipe = deployment.model, deployment.checkpoint, deployment.recipe
    kept = rules.gpu_expert_count(recipe)
    own = {"routed_experts": f"{kept} of {model.experts} experts of each layer / {recipe.parallel.tp}"}
    rows = [
        *weight_lines(rules.gpu_weights(model, checkpoint, recipe), model, checkpoint, recipe, 0, **own),
        bytes_line(
            "- a chunk's activations and one layer of experts",
            rules.step_bytes(model, checkpoint, recipe),
            f"{step_tokens(recipe):,} tokens; {checkpoint.expert_layer_bytes:,} a layer",
            SOURCE,
        ),
        token_line(model, recipe, memory.kv_bytes_per_token),
        ArithmeticLine(what="KV tokens", formula="context × sequences", value=memory.kv_tokens, unit="tokens"),
    ]
    rows += [bytes_line(f"ram: {name}", size) for name, size in memory.devices[-1].weights.items()]
    return tuple(rows)


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """How many experts lie on the GPUs."""
    model, kept = deployment.model, rules.gpu_expert_count(deployment.recipe)
    if model.moe is None:
        return []
    text = f"{kept} of {format_count(model.moe.experts)} experts of each layer lie on the GPUs, all of them in RAM"
    return [f"{text}; long prompts are read on the GPUs, one layer's experts at a time"]
