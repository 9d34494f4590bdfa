"""The fused MoE launch that vLLM and SGLang share in form: tensors, scales and switches for each kind of weight."""

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl

from .shapes import Arguments, ScanShape, call_with_known, meta_indices, meta_tensor

WEIGHT_KINDS = ("bf16", "fp8_w8a8", "fp8_w8a8 block", "int4_w4a16")


def launch_experts(
    shape: ScanShape, kind: str, tokens: int, *, choose: Callable[..., Any], invoke: Callable[..., Any]
) -> Any:
    """The first product of the experts (gate and up), with the configuration the engine itself would `choose`.

    SGLang quantises activations inside `invoke`, from bf16; vLLM takes them quantised. Each gets what it names.
    """
    name, block = kind.split()[0], [128, 128] if kind.endswith("block") else None
    group = [0, 32] if name == "int4_w4a16" else block
    experts, hidden, width = shape.experts, shape.hidden, shape.intermediate
    config = call_with_known(
        choose,
        M=tokens,
        E=experts,
        N=width,
        K=hidden,
        topk=shape.used,
        dtype=None if name == "bf16" else name,
        is_marlin=False,
        block_shape=group,
    )
    padded = tokens * shape.used + experts * (config["BLOCK_SIZE_M"] - 1)
    return call_with_known(
        invoke,
        **_tensors(shape, name, block, tokens, quantised="B_bias" in invoke.__code__.co_varnames),
        bias=None,
        C=meta_tensor(tokens, shape.used, 2 * width),
        B_zp=None,
        topk_weights=meta_tensor(tokens, shape.used, dtype=torch.float32),
        topk_ids=meta_indices(tokens, shape.used),
        sorted_token_ids=meta_indices(padded),
        expert_ids=meta_indices(-(-padded // config["BLOCK_SIZE_M"])),
        num_tokens_post_padded=meta_indices(1),
        mul_routed_weight=False,
        top_k=shape.used,
        config=config,
        compute_type=tl.bfloat16,
        use_fp8_w8a8=name == "fp8_w8a8",
        use_int8_w8a8=False,
        use_int8_w8a16=False,
        use_int4_w4a16=name == "int4_w4a16",
        per_channel_quant=False,
        block_shape=group,
    )


def _tensors(shape: ScanShape, name: str, block: list[int] | None, tokens: int, *, quantised: bool) -> Arguments:
    """Activations and weights with their scales; `quantised`: the caller has quantised the activations already."""
    experts, hidden, rows = shape.experts, shape.hidden, 2 * shape.intermediate
    if name == "int4_w4a16":
        weights, scale = (
            meta_tensor(experts, rows, hidden // 2, dtype=torch.uint8),
            meta_tensor(experts, rows, hidden // 32),
        )
        return {"A": meta_tensor(tokens, hidden), "A_scale": None, "B": weights, "B_scale": scale}
    if name == "bf16":
        return {
            "A": meta_tensor(tokens, hidden),
            "A_scale": None,
            "B": meta_tensor(experts, rows, hidden),
            "B_scale": None,
        }
    fp8 = torch.float8_e4m3fn
    weights = meta_tensor(experts, rows, hidden, dtype=fp8)
    if not block:
        scalar, each = meta_tensor(1, dtype=torch.float32), meta_tensor(experts, dtype=torch.float32)
        return {"A": meta_tensor(tokens, hidden, dtype=fp8), "A_scale": scalar, "B": weights, "B_scale": each}
    scale = meta_tensor(experts, rows // 128, hidden // 128, dtype=torch.float32)
    if not quantised:
        return {"A": meta_tensor(tokens, hidden, dtype=torch.bfloat16), "A_scale": None, "B": weights, "B_scale": scale}
    given = meta_tensor(tokens, hidden // 128, dtype=torch.float32)
    return {"A": meta_tensor(tokens, hidden, dtype=fp8), "A_scale": given, "B": weights, "B_scale": scale}
