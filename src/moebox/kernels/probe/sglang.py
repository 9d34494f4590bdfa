"""SGLang's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .experts import KINDS, launch
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
    for kind in KINDS:
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
        choose = module(root, "moe_config").get_default_config
        return launch(shape, kind, tokens, choose=choose, invoke=module(root, "moe").invoke_fused_moe_kernel)

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
