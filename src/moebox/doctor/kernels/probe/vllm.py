"""vLLM's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

from .shapes import Shape, call, empty, whole

_DECODE = ("vllm.v1.attention.ops.triton_decode_attention", "vllm.attention.ops.triton_decode_attention")
_MOE = "vllm.model_executor.layers.fused_moe.fused_moe"
Case = tuple[str, Callable[[], Any]]


def cases(root: Path, shape: Shape) -> Iterator[Case]:
    """Every launch this model and recipe would make, as (name, call)."""
    for batch in shape.decode:
        yield f"MLA decode, batch {batch}, {shape.kv} cache", _decode(root, shape, batch)
    for kind in ("bf16", "fp8_w8a8", "fp8_w8a8 block", "int4_w4a16"):
        for tokens in shape.moe_tokens:
            yield f"fused MoE {kind}, {tokens} tokens", _moe(shape, kind, tokens)


def _decode(root: Path, shape: Shape, batch: int) -> Callable[[], Any]:
    def run() -> Any:
        name = next(name for name in _DECODE if root.joinpath(*name.split(".")).with_suffix(".py").exists())
        page, pages, splits = 64, 256, 8
        cache = empty(pages, page, 1, shape.latent, dtype=shape.cache_type)
        scale = torch.empty((), dtype=torch.float32, device="meta")
        return call(
            importlib.import_module(name).decode_attention_fwd,
            q=empty(batch, shape.heads, shape.latent),
            k_buffer=cache,
            v_buffer=cache[..., : shape.kv_lora],
            o=empty(batch, shape.heads, shape.kv_lora),
            lse=empty(batch, shape.heads, dtype=torch.float32),
            req_to_token=whole(batch, pages),
            b_seq_len=whole(batch),
            attn_logits=empty(batch, shape.heads, splits, shape.kv_lora + 1, dtype=torch.float32),
            num_kv_splits=splits,
            sm_scale=0.1,
            page_size=page,
            k_scale=scale,
            v_scale=scale,
            is_mla=True,
        )

    return run


def _moe(shape: Shape, kind: str, tokens: int) -> Callable[[], Any]:
    def run() -> Any:
        kernels = importlib.import_module(_MOE)
        name, block = kind.split()[0], [128, 128] if kind.endswith("block") else None
        group = [0, 32] if name == "int4_w4a16" else block
        experts, hidden, width = shape.experts, shape.hidden, shape.intermediate
        cuda = getattr(kernels, "should_moe_wna16_use_cuda", None)
        if name == "int4_w4a16" and cuda and cuda(tokens * shape.used, 32, experts, 4):
            raise NotTriton("goes to the CUDA moe_wna16 kernel at this size")
        config = call(
            kernels.get_default_config,
            M=tokens,
            E=experts,
            N=width,
            K=hidden,
            topk=shape.used,
            dtype=None if name == "bf16" else name,
            is_marlin=False,
            block_shape=group,
        )
        common = _common(shape, tokens, config)
        if name == "int4_w4a16":
            return call(
                kernels.invoke_fused_moe_wna16_triton_kernel,
                A=empty(tokens, hidden),
                B=empty(experts, 2 * width, hidden // 2, dtype=torch.uint8),
                B_scale=empty(experts, 2 * width, hidden // 32),
                B_zp=None,
                block_shape=group,
                use_int8_w8a16=False,
                use_int4_w4a16=True,
                **common,
            )
        fp8 = name == "fp8_w8a8"
        element = torch.float8_e4m3fn if fp8 else torch.bfloat16
        a_scale = b_scale = None
        if fp8:
            a_scale = empty(tokens, hidden // 128, dtype=torch.float32) if block else empty(1, dtype=torch.float32)
            sizes = (experts, 2 * width // 128, hidden // 128) if block else (experts,)
            b_scale = empty(*sizes, dtype=torch.float32)
        return call(
            kernels.invoke_fused_moe_triton_kernel,
            A=empty(tokens, hidden, dtype=element),
            B=empty(experts, 2 * width, hidden, dtype=element),
            A_scale=a_scale,
            B_scale=b_scale,
            use_fp8_w8a8=fp8,
            use_int8_w8a8=False,
            use_int8_w8a16=False,
            use_int4_w4a16=False,
            per_channel_quant=False,
            block_shape=block,
            **common,
        )

    return run


def _common(shape: Shape, tokens: int, config: dict[str, int]) -> dict[str, Any]:
    padded = tokens * shape.used + shape.experts * (config["BLOCK_SIZE_M"] - 1)
    return {
        "C": empty(tokens, shape.used, 2 * shape.intermediate),
        "topk_weights": empty(tokens, shape.used, dtype=torch.float32),
        "sorted_token_ids": whole(padded),
        "expert_ids": whole(-(-padded // config["BLOCK_SIZE_M"])),
        "num_tokens_post_padded": whole(1),
        "mul_routed_weight": False,
        "top_k": shape.used,
        "config": config,
        "compute_type": tl.bfloat16,
    }


class NotTriton(Exception):
    """The engine takes a kernel that Triton does not compile."""
