"""Time SGLang's attention kernels alone on the GPU at hand, over batch, context and heads.

    python benchmarks/kernels/attention.py OUT.csv [triton] [fa3]

Needs an installed SGLang. Decoding runs as a CUDA graph over several layers' caches, together three times as large as
the GPU's own cache where memory allows; a prompt's kernel is launched for each look. Milliseconds are medians.
"""

import csv
import sys
from collections.abc import Callable
from functools import partial

import torch
from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd
from sglang.srt.layers.attention.triton_ops.metadata import get_num_kv_splits_triton
from triton import TritonError
from triton.testing import do_bench

Shape = tuple[int, int, int]  # heads, heads of keys and values, elements of a head
Kernel = Callable[[], object]
SHAPES: tuple[Shape, ...] = (
    (64, 4, 128), (48, 8, 128), (32, 8, 128), (16, 1, 128), (8, 1, 128), (16, 4, 128), (64, 8, 64), (16, 2, 256),
    (8, 8, 128),
)  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 1024, 4096, 16384, 65536)
PROMPTS = ((128, 0), (512, 0), (2048, 0), (8192, 0), (4096, 16384))  # new tokens, and those before them
MOST_BYTES = 6e9  # of one layer's cache
CACHE_BYTES = 180e6
SPLITS = 8  # SGLang's default of --triton-attention-num-kv-splits
TYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def random(*size: int, kv: str = "bf16") -> torch.Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16).to(TYPES[kv])


def layer_bytes(shape: Shape, kv: str, batch: int, context: int) -> int:
    return 2 * batch * context * shape[1] * shape[2] * int(TYPES[kv].itemsize)


def layer_caches(shape: Shape, kv: str, batch: int, context: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return keys and values of so many layers that none is still in the GPU's cache when its turn comes."""
    layers = max(2, min(16, int(CACHE_BYTES / layer_bytes(shape, kv, batch, context)) + 1))
    size = (batch * context, *shape[1:])
    return [(random(*size, kv=kv), random(*size, kv=kv)) for _ in range(layers)]


def triton_decode(shape: Shape, kv: str, batch: int, context: int) -> list[Kernel]:
    """Return what decodes each layer, with the splits that the engine would take."""
    heads, kv_heads, dim = shape
    q = random(batch, heads, dim)
    out = torch.empty_like(q)
    logits = torch.empty(batch, heads, SPLITS, dim, device="cuda", dtype=torch.float32)
    sums = torch.empty(batch, heads, SPLITS, device="cuda", dtype=torch.float32)
    starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * context
    slots = torch.arange(batch * context, device="cuda", dtype=torch.int64)
    splits = torch.empty(batch, device="cuda", dtype=torch.int32)
    lengths = torch.full((batch,), context, device="cuda", dtype=torch.int64)
    cores = torch.cuda.get_device_properties(0).multi_processor_count
    get_num_kv_splits_triton[(1,)](splits, lengths, batch, 1, heads, kv_heads, SPLITS, cores, MAX_NUM_SEQ=256)
    rest = (out, starts, slots, logits, sums, splits, SPLITS, dim**-0.5, 1.0, 1.0)
    return [partial(decode_attention_fwd, q, *cache, *rest) for cache in layer_caches(shape, kv, batch, context)]


def fa3_decode(shape: Shape, kv: str, batch: int, context: int) -> list[Kernel]:
    """The same by FlashAttention 3."""
    table = torch.arange(batch * context, device="cuda", dtype=torch.int32).view(batch, context)
    q = random(batch, shape[0], shape[2], kv=kv)
    return [fa3(q, keys, values, table, new=1) for keys, values in layer_caches(shape, kv, batch, context)]


def fa3(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, *, new: int) -> Kernel:
    """Return a call with pages of one token, as SGLang has by default."""
    from sgl_kernel.flash_attn import flash_attn_with_kvcache  # not in every build

    batch, context = table.shape
    given = {
        "k_cache": keys[:, None],
        "v_cache": values[:, None],
        "page_table": table,
        "cache_seqlens": torch.full((batch,), context, device="cuda", dtype=torch.int32),
        "cu_seqlens_q": torch.arange(batch + 1, device="cuda", dtype=torch.int32) * new,
        "max_seqlen_q": new,
        "softmax_scale": q.shape[-1] ** -0.5,
        "causal": True,
    }
    return partial(flash_attn_with_kvcache, q=q, **given)


def triton_prompt(shape: Shape, kv: str, new: int, before: int) -> Kernel:
    """Return what reads a piece of a prompt behind its earlier tokens."""
    heads, kv_heads, dim = shape
    q, k, v = random(new, heads, dim), random(new, kv_heads, dim), random(new, kv_heads, dim)
    out = torch.empty_like(q)
    keys, values = (random(max(before, 1), kv_heads, dim, kv=kv) for _ in range(2))
    ends = torch.tensor([0, new], device="cuda", dtype=torch.int32)
    starts = torch.tensor([0, before], device="cuda", dtype=torch.int32)
    slots = torch.arange(max(before, 1), device="cuda", dtype=torch.int64)
    rest = (ends, starts, slots, None, True, None, new, 1.0, 1.0)
    return partial(extend_attention_fwd, q, k, v, out, keys, values, *rest, sm_scale=dim**-0.5)


def fa3_prompt(shape: Shape, kv: str, new: int, before: int) -> Kernel:
    """The same by FlashAttention 3."""
    heads, kv_heads, dim = shape
    keys, values = (random(before + new, kv_heads, dim, kv=kv) for _ in range(2))
    table = torch.arange(before + new, device="cuda", dtype=torch.int32)[None]
    return fa3(random(new, heads, dim, kv=kv), keys, values, table, new=new)


def decode_ms(layers: list[Kernel]) -> float:
    """Return milliseconds of one layer within a CUDA graph of all, each twice."""
    for layer in layers:
        layer()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers * 2:
            layer()
    return look_ms(graph.replay) / len(layers) / 2


def look_ms(call: Kernel) -> float:
    return float(do_bench(call, warmup=10, rep=40, return_mode="median"))


def cases(shape: Shape, kv: str) -> list[tuple[int, int, int]]:
    """Return batch, context and new tokens of each case that fits; decoding has one new token."""
    found = [(b, c, 1) for b in BATCHES for c in CONTEXTS if layer_bytes(shape, kv, b, c) < MOST_BYTES]
    return found + [(1, before, new) for new, before in PROMPTS]


def time_case(name: str, shape: Shape, kv: str, batch: int, context: int, new: int) -> float:
    decode, read = {"triton": (triton_decode, triton_prompt), "fa3": (fa3_decode, fa3_prompt)}[name]
    return decode_ms(decode(shape, kv, batch, context)) if new == 1 else look_ms(read(shape, kv, new, context))


def main() -> int:
    """Time every case; one that fails is named and left out."""
    out, names = sys.argv[1], sys.argv[2:] or ["triton", "fa3"]
    with open(out, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("backend", "kv", "heads", "kv_heads", "dim", "batch", "context", "new", "ms"))
        for name in names:
            for kv in ("bf16", "fp8") if name == "triton" else ("bf16",):
                for shape in SHAPES:
                    for case in cases(shape, kv):
                        try:
                            table.writerow((name, kv, *shape, *case, f"{time_case(name, shape, kv, *case):.5f}"))
                        except (RuntimeError, TritonError) as problem:
                            print(name, kv, shape, case, str(problem)[:200], file=sys.stderr)
                        torch.cuda.empty_cache()
                    file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
