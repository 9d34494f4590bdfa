"""A vLLM plugin: dummy weights whose answers depend on the whole prompt.

vLLM's own dummy weights, norms included, lie between -0.001 and 0.001 (vLLM 0.26 weight_utils.py): attention then adds
less to a token than bf16 can hold, so the answer is the same whatever the KV cache returns. Here every matrix keeps the
size of its input, norms are 1, and each weight has random numbers of its own. `kv_offload_gpu.py` installs it.
"""

import importlib
import math
import zlib
from typing import Any

# Of q_norm and k_norm: scores have a standard deviation of 6, so each head reads a few of 4,096 tokens instead of their
# mean. With 4, one wrong block of 16 tokens in 1,024 changed every answer of a small model; with 2 half of them.
SHARPNESS = math.sqrt(6)
EMBEDDING = 0.5  # less than the layers add, so that the last token does not decide alone
FP8_BLOCK = 128  # inputs that share a scale
DONE = "offload_weights: weights scaled"


def register() -> None:
    """Scale the weights after vLLM's dummy loader made them."""
    loader = importlib.import_module("vllm.model_executor.model_loader.dummy_loader").DummyModelLoader
    original = loader.load_weights

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        original(self, model, model_config)
        try:
            count = scale_weights(model)
            print(f"{DONE} ({count})", flush=True)
        except Exception as problem:  # the engine starts with its own dummies; answers then show that they are blind
            print(f"offload_weights: {problem!r}", flush=True)

    if not getattr(original, "scales_weights", False):
        load_weights.scales_weights = True  # type: ignore[attr-defined]
        loader.load_weights = load_weights


def scale_weights(model: Any) -> int:
    import torch

    changed = 0
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.device.type == "meta" or not torch.is_floating_point(weight):
                continue
            draw = torch.Generator(device=weight.device).manual_seed(zlib.crc32(name.encode()))
            if "norm" in name:
                weight.fill_(SHARPNESS if "q_norm" in name or "k_norm" in name else 1.0)
            elif weight.dim() < 2:
                continue
            elif "scale" in name:  # of blocks of fp8 weights between -1 and 1
                weight.fill_(math.sqrt(3 / (FP8_BLOCK * weight.shape[-1])))
            elif torch.finfo(weight.dtype).bits < 16:
                for part in weight if weight.dim() > 2 else (weight,):  # one expert at a time
                    values = torch.empty(part.shape, dtype=torch.float16, device=part.device)
                    part.copy_(values.uniform_(-1.0, 1.0, generator=draw).to(part.dtype))
            else:
                bound = EMBEDDING if "embed" in name else math.sqrt(3 / weight.shape[-1])
                weight.uniform_(-bound, bound, generator=draw)
            changed += 1
    return changed
