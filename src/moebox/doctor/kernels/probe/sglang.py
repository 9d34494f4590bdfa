"""SGLang's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

from .shapes import Shape, call, empty, whole

# The engine's files by name; where they lie changes from version to version, and the KV writer changed its name too.
_FILES = {
    "extend": ("extend_attention.py",),
    "decode": ("decode_attention.py",),
    "moe": ("fused_moe_triton_kernels.py",),
    "moe_config": ("fused_moe_triton_config.py",),
    "writer": ("mla_buffer.py", "mem_cache/utils.py"),
}
_ELSEWHERE = ("wave_ops", "multimodal", "/test", "dsv4", "cpu")  # other backends' files of the same name
Case = tuple[str, Callable[[], Any]]


def module(root: Path, part: str) -> Any:
    """The engine's file for `part`, wherever this version keeps it."""
    for name in _FILES[part]:
        for path in sorted(root.glob(f"sglang/**/{name}")):
            place = path.relative_to(root)
            if not any(word in str(place) for word in _ELSEWHERE):
                return importlib.import_module(".".join(place.with_suffix("").parts))
    raise ModuleNotFoundError(f"no {part} kernel file in this version")


def cases(root: Path, shape: Shape) -> Iterator[Case]:
    """Every launch this model and recipe would make, as (name, call)."""
    for new in shape.prefill:
        yield (
            f"extend attention, absorbed {shape.latent}/{shape.kv_lora}, {new} new",
            _extend(root, shape, new, absorbed=True),
        )
        full = shape.nope + shape.rope
        yield f"extend attention, full {full}/{shape.v}, {new} new", _extend(root, shape, new, absorbed=False)
    for batch in shape.decode:
        yield f"MLA decode, batch {batch}, {shape.kv} cache", _decode(root, shape, batch)
    for kind in ("bf16", "fp8_w8a8", "fp8_w8a8 block", "int4_w4a16"):
        for tokens in shape.moe_tokens:
            yield f"fused MoE {kind}, {tokens} tokens", _moe(root, shape, kind, tokens)
    yield f"KV cache writer, {shape.kv}", _writer(root, shape)


def _extend(root: Path, shape: Shape, new: int, *, absorbed: bool) -> Callable[[], Any]:
    def run() -> Any:
        fwd = module(root, "extend").extend_attention_fwd
        width, out = (shape.latent, shape.kv_lora) if absorbed else (shape.nope + shape.rope, shape.v)
        kv_heads, prefix = (1 if absorbed else shape.heads), 4096
        keys = empty(prefix + new, kv_heads, width)
        return call(
            fwd,
            q_extend=empty(new, shape.heads, width),
            k_extend=empty(new, kv_heads, width),
            v_extend=empty(new, kv_heads, out),
            o_extend=empty(new, shape.heads, out),
            k_buffer=keys,
            v_buffer=keys[..., :out] if absorbed else empty(prefix + new, kv_heads, out),
            qo_indptr=whole(2),
            kv_indptr=whole(2),
            kv_indices=torch.empty(prefix, dtype=torch.int64, device="meta"),
            custom_mask=None,
            is_causal=True,
            mask_indptr=None,
            max_len_extend=new,
            k_scale=1.0,
            v_scale=1.0,
            sm_scale=0.1,
        )

    return run


def _decode(root: Path, shape: Shape, batch: int) -> Callable[[], Any]:
    def run() -> Any:
        fwd = module(root, "decode").decode_attention_fwd
        splits, tokens = 8, 16384
        keys = empty(tokens, 1, shape.latent, dtype=shape.cache_type)
        return call(
            fwd,
            q=empty(batch, shape.heads, shape.latent),
            k_buffer=keys,
            v_buffer=keys[..., : shape.kv_lora],
            o=empty(batch, shape.heads, shape.kv_lora),
            kv_indptr=whole(batch + 1),
            kv_indices=torch.empty(tokens, dtype=torch.int64, device="meta"),
            attn_logits=empty(batch, shape.heads, splits, shape.kv_lora, dtype=torch.float32),
            attn_lse=empty(batch, shape.heads, splits, dtype=torch.float32),
            num_kv_splits=whole(batch),
            max_kv_splits=splits,
            sm_scale=0.1,
            k_scale=1.0,
            v_scale=1.0,
            has_mla=True,
        )

    return run


def _moe(root: Path, shape: Shape, kind: str, tokens: int) -> Callable[[], Any]:
    def run() -> Any:
        kernels, configs = module(root, "moe"), module(root, "moe_config")
        name, block = kind.split()[0], [128, 128] if kind.endswith("block") else None
        experts, hidden, width = shape.experts, shape.hidden, shape.intermediate
        group = [0, 32] if name == "int4_w4a16" else block
        config = call(
            configs.get_default_config,
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
        a_type, b_type, packed = torch.bfloat16, torch.bfloat16, 1
        a_scale = b_scale = None
        if name == "fp8_w8a8":
            a_type = b_type = torch.float8_e4m3fn
            a_scale = empty(tokens, hidden // 128, dtype=torch.float32) if block else empty(1, dtype=torch.float32)
            sizes = (experts, 2 * width // 128, hidden // 128) if block else (experts,)
            b_scale = empty(*sizes, dtype=torch.float32)
        elif name == "int4_w4a16":
            b_type, packed = torch.uint8, 2
            b_scale = empty(experts, 2 * width, hidden // 32)
        return call(
            kernels.invoke_fused_moe_kernel,
            A=empty(tokens, hidden, dtype=a_type if not block else torch.bfloat16),
            B=empty(experts, 2 * width, hidden // packed, dtype=b_type),
            bias=None,
            C=empty(tokens, shape.used, 2 * width),
            A_scale=None if block else a_scale,
            B_scale=b_scale,
            B_zp=None,
            topk_weights=empty(tokens, shape.used, dtype=torch.float32),
            topk_ids=whole(tokens, shape.used),
            sorted_token_ids=whole(padded),
            expert_ids=whole(-(-padded // config["BLOCK_SIZE_M"])),
            num_tokens_post_padded=whole(1),
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

    return run


def _writer(root: Path, shape: Shape) -> Callable[[], Any]:
    def run() -> Any:
        write = module(root, "writer").set_mla_kv_buffer_triton
        cache = shape.cache_type
        return call(
            write,
            kv_buffer=empty(16384, 1, shape.latent, dtype=cache),
            loc=torch.arange(256),  # real numbers: some versions look at them first
            cache_k_nope=empty(256, 1, shape.kv_lora, dtype=cache),
            cache_k_rope=empty(256, 1, shape.rope, dtype=cache),
        )

    return run
