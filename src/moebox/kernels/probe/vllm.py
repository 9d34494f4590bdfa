"""vLLM's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .experts import KINDS, launch
from .shapes import Shape, call, empty, whole

_DECODE = ("vllm.v1.attention.ops.triton_decode_attention", "vllm.attention.ops.triton_decode_attention")
_MOE = "vllm.model_executor.layers.fused_moe.fused_moe"
Case = tuple[str, Callable[[], Any]]


def cases(root: Path, shape: Shape) -> Iterator[Case]:
    """Every launch this model and recipe would make, as (name, call)."""
    for batch in shape.decode:
        yield f"MLA decode, batch {batch}, {shape.kv} cache", _decode(root, shape, batch)
    for kind in KINDS:
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
        kernels: Any = importlib.import_module(_MOE)
        invoke = kernels.invoke_fused_moe_triton_kernel
        if kind == "int4_w4a16":
            elsewhere = getattr(kernels, "should_moe_wna16_use_cuda", None)
            if elsewhere and elsewhere(tokens * shape.used, 32, shape.experts, 4):
                raise NotTriton("goes to the CUDA moe_wna16 kernel at this size")
            invoke = kernels.invoke_fused_moe_wna16_triton_kernel
        return launch(shape, kind, tokens, choose=kernels.get_default_config, invoke=invoke)

    return run


class NotTriton(Exception):
    """The engine takes a kernel that Triton does not compile."""
