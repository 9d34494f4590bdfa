"""The memory arithmetic of both llama.cpp servers, written out."""

from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine, Memory
from moebox.engines.ggml import memory as rules
from moebox.engines.lines import bytes_line, token_line
from moebox.sizing.kv import token_bytes


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every device's bytes, one part a line."""
    model, checkpoint, recipe = deployment.model, deployment.checkpoint, deployment.recipe
    hybrid = rules.hybrid_settings(recipe)
    rows = [
        bytes_line("routed experts a layer", checkpoint.expert_layer_bytes, checkpoint.quant, checkpoint.source),
        token_line(model, recipe, token_bytes(model, recipe)),
        ArithmeticLine(what="KV tokens", formula="context × slots", value=memory.kv_tokens, unit="tokens"),
    ]
    for device in memory.devices:
        if not device.weights:
            continue
        rows += [bytes_line(f"{device.device}: {name}", size) for name, size in device.weights.items()]
        rows += [
            bytes_line(f"{device.device}: cache", device.kv, "its layers' share"),
            bytes_line(
                f"{device.device}: compute and staging",
                device.activations,
                f"-ub {hybrid.ubatch}, -amb {hybrid.attention_buffer or 'unset'}; a layer's experts while prefilling",
                "llama-fit-params of llama.cpp b11669; ik_llama.cpp logs of August 2026",
            ),
            bytes_line(f"{device.device}: free", device.free, "what is left of it"),
        ]
    return tuple(rows)


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Nothing that both servers share."""
    return []
