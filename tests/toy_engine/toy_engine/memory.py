"""The toy's memory: weights divided evenly, the rest is cache."""

from moebox.core.deployment import Deployment
from moebox.core.plan import DeviceMemory, Memory
from moebox.sizing.constants import visible_bytes
from moebox.sizing.kv import token_bytes


def memory_budget(deployment: Deployment) -> Memory:
    """Every GPU's bytes."""
    box, model, checkpoint, recipe = deployment.facts
    tp = recipe.parallel.tp
    token = token_bytes(model, recipe)
    devices, least = [], 2**62
    for place, gpu in enumerate(box.gpus[:tp]):
        weights = {name: size // tp for name, size in checkpoint.bytes_by_component.items()}
        utilized = round(visible_bytes(gpu) * (recipe.memory_utilization or 0.9))
        left = utilized - sum(weights.values())
        least = min(least, left)
        kv = max(0, left)
        rest = gpu.memory - sum(weights.values()) - kv
        devices.append(DeviceMemory(device=f"gpu{place}", total=gpu.memory, weights=weights, kv=kv, overhead=rest))
    tokens = max(0, least) // token
    return Memory(
        devices=tuple(devices),
        kv_tokens=tokens,
        kv_bytes_per_token=token,
        fits=tokens >= recipe.context and tp <= len(box.gpus),
        shortfall=max(0, -least),
    )
