"""The kernels a tuner times, as the engines launch them, on real tensors or on tensors without bytes.

Each case has its candidates, the upstream choices, and a reference in float32.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import sglang, space
from .launches import call_with_known
from .space import Choice, RankShape

# New tokens and the prefix they follow: the chunk an engine prefills at once (4,096), and a short turn.
EXTEND_SIZES = ((1024, 4096), (4096, 4096), (4096, 16384), (4096, 32768))


class KernelOverride:
    """Replaces an engine's kernel: launches it with our blocks, warps and stages, and keeps the compiled kernel."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.choice, self.compiled = kernel, Choice(), None

    def set_choice(self, choice: Choice) -> None:
        self.choice, self.compiled = choice, None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            wanted = {name: value for name, value in self.choice.items() if name in kwargs}
            made = self.kernel[grid](*args, **{**kwargs, **wanted})
            if made is not None and (self.compiled is None or made.metadata.shared > self.compiled.metadata.shared):
                self.compiled = made  # the largest, if a choice launches several
            return made

        return launch


def override_kernel(engine: Any, name: str) -> KernelOverride:
    """Replace the engine's kernel of that name, once."""
    old = getattr(engine, name)
    new = old if isinstance(old, KernelOverride) else KernelOverride(old)
    setattr(engine, name, new)
    return new


@dataclass
class TuneCase:
    """One kernel at one size."""

    name: str
    kind: str  # cases of one kind share compiled kernels
    candidates: list[Choice]
    baselines: dict[str, Choice]
    build: Callable[[str], "CaseBench"]  # by device
    group: str = ""  # the best of each value of this constant is reported too


@dataclass
class CaseBench:
    run: Callable[[Choice], Any]  # returns the compiled kernel
    outputs: Callable[[], list[torch.Tensor]]
    references: Callable[[], list[torch.Tensor]]  # the same in float32
    config: Callable[[Choice], Choice] = dict  # a choice as the engine's tuned files have it


def random_tensor(device: str, *sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return random values; on the meta device, a tensor without values."""
    if device == "meta":
        return torch.empty(*sizes, dtype=dtype, device="meta")
    return (torch.randn(*sizes, device=device, dtype=torch.float32) * 0.5).to(dtype)


def extend_cases(root: Path, shape: RankShape) -> list[TuneCase]:
    """SGLang's prefill attention: absorbed (576/512) and full (192/128), at several prefixes."""
    blocks = {"num_warps": 8, "num_stages": 1}
    found = []
    for width, out, seed, upstream in (
        (shape.latent, shape.kv_lora, (32, 32), (32, 32)),
        (shape.nope + shape.rope, shape.v, (32, 64), (64, 64)),
    ):
        for new, prefix in EXTEND_SIZES:
            new_case = TuneCase(
                name=f"extend {width}/{out}, {new} new on {prefix}",
                kind=f"extend-{width}",
                candidates=space.extend_choices(width),
                baselines={
                    "report of January 2026": {"BLOCK_M": seed[0], "BLOCK_N": seed[1], **blocks},
                    "SGLang 0.5.9 and newer": {"BLOCK_M": upstream[0], "BLOCK_N": upstream[1], **blocks},
                },
                build=functools.partial(_build_extend, root, shape, width, out, new, prefix),
            )
            found.append(new_case)
    return found


def _build_extend(root: Path, shape: RankShape, width: int, out: int, new: int, prefix: int, device: str) -> CaseBench:
    engine = sglang.import_part(root, "extend")
    kernel = override_kernel(engine, "_fwd_kernel")
    kv_heads = 1 if width > 256 else shape.heads
    keys = random_tensor(device, prefix, kv_heads, width)
    cached = keys[..., :out] if kv_heads == 1 else random_tensor(device, prefix, kv_heads, out)
    query, k_new = random_tensor(device, new, shape.heads, width), random_tensor(device, new, kv_heads, width)
    v_new = k_new[..., :out].contiguous() if kv_heads == 1 else random_tensor(device, new, kv_heads, out)
    answer = random_tensor(device, new, shape.heads, out)
    starts = torch.tensor([0, new], dtype=torch.int32).to(device)
    pages = torch.tensor([0, prefix], dtype=torch.int32).to(device)
    index = torch.arange(prefix, dtype=torch.int64).to(device)

    def run(choice: Choice) -> Any:
        wide, tail = (shape.kv_lora, shape.rope) if width > 256 else (shape.nope, shape.rope)
        value_width = 1 << (out - 1).bit_length()
        sizes = (wide, tail, value_width, choice["BLOCK_M"], choice["BLOCK_N"], choice["num_warps"])
        engine._get_block_sizes_for_extend_attention = lambda *args: sizes
        kernel.set_choice(choice)
        call_with_known(
            engine.extend_attention_fwd,
            q_extend=query,
            k_extend=k_new,
            v_extend=v_new,
            o_extend=answer,
            k_buffer=keys,
            v_buffer=cached,
            qo_indptr=starts,
            kv_indptr=pages,
            kv_indices=index,
            custom_mask=None,
            is_causal=True,
            mask_indptr=None,
            max_len_extend=new,
            sm_scale=width**-0.5,
            k_scale=1.0,
            v_scale=1.0,
        )
        return kernel.compiled

    def references() -> list[torch.Tensor]:
        k = torch.cat([keys, k_new]).float().expand(-1, shape.heads, -1)
        v = torch.cat([cached, v_new]).float().expand(-1, shape.heads, -1)
        rows = min(new, 512)  # the last rows attend to everything, which is enough for a check
        scores = torch.einsum("qhd,khd->hqk", query[-rows:].float(), k) * width**-0.5
        seen = (
            torch.arange(prefix + new, device=k.device)[None]
            <= torch.arange(new - rows, new, device=k.device)[:, None] + prefix
        )
        return [torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen[None], float("-inf")).softmax(-1), v)]

    return CaseBench(run=run, outputs=lambda: [answer[-min(new, 512) :].float()], references=references)


def decode_cases(shape: RankShape) -> list[TuneCase]:
    """vLLM's MLA decode, 16k of context, both cache types."""
    upstream = {"BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    found = []
    for kv in ("bf16", "fp8"):
        for batch in (1, 32, 128):
            base = {"vLLM 0.32": upstream, "vLLM with one stage": {**upstream, "num_stages": 1}}
            new_case = TuneCase(
                name=f"MLA decode, batch {batch}, 16,384 tokens, {kv}",
                kind=f"decode-{kv}",
                candidates=space.all_combinations(BLOCK_N=[16, 32, 64], num_warps=[2, 4, 8], num_stages=[1, 2, 3]),
                baselines=base,
                build=functools.partial(_build_decode, shape, batch, kv),
            )
            found.append(new_case)
    return found


def _build_decode(shape: RankShape, batch: int, kv: str, device: str) -> CaseBench:
    engine: Any = importlib.import_module("vllm.v1.attention.ops.triton_decode_attention")
    kernel = override_kernel(engine, "_fwd_grouped_kernel_stage1")
    page, context, splits = 64, 16384, 32
    kind = torch.float8_e4m3fn if kv == "fp8" else torch.bfloat16
    # The sequences share it: only speed matters.
    pool = random_tensor(device, context // page, page, 1, shape.latent, dtype=kind)
    query = random_tensor(device, batch, shape.heads, shape.latent)
    answer = random_tensor(device, batch, shape.heads, shape.kv_lora)
    lse = random_tensor(device, batch, shape.heads, dtype=torch.float32)
    logits = random_tensor(device, batch, shape.heads, splits, shape.kv_lora + 1, dtype=torch.float32)
    tables = torch.arange(context // page, dtype=torch.int32).repeat(batch, 1).to(device)
    lengths = torch.full((batch,), context, dtype=torch.int32).to(device)
    one = torch.ones((), dtype=torch.float32).to(device)

    def run(choice: Choice) -> Any:
        kernel.set_choice(choice)
        engine.decode_attention_fwd(
            query, pool, pool[..., :shape.kv_lora], answer, lse, tables, lengths, logits, splits, 0.0722, page,
            k_scale=one, v_scale=one, is_mla=True,
        )  # fmt: skip
        return kernel.compiled

    def references() -> list[torch.Tensor]:
        flat = pool.view(-1, shape.latent).float()
        scores = torch.einsum("bhd,kd->bhk", query.float(), flat) * 0.0722
        return [torch.einsum("bhk,kd->bhd", scores.softmax(-1), flat[:, : shape.kv_lora])]

    return CaseBench(run=run, outputs=lambda: [answer.float()], references=references)
