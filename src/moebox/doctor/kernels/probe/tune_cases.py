"""The kernels a tuner times, as the engines launch them, on real tensors or on tensors without bytes.

Each case knows its candidates, what upstream chooses, and how to check an answer against float32.
"""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

Choice = dict[str, int]
HEADS, LATENT, ROPE, NOPE, VALUE, HIDDEN, EXPERTS, USED = 8, 512, 64, 128, 128, 7168, 384, 8  # Kimi K2, one rank of TP8
WIDTH = 256  # of an expert on that rank


class Chosen:
    """Stands where an engine's kernel stood: launches it with our blocks, warps and stages; keeps what was compiled."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.choice, self.compiled = kernel, Choice(), None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            wanted = {name: value for name, value in self.choice.items() if name in kwargs}
            self.compiled = self.kernel[grid](*args, **{**kwargs, **wanted})
            return self.compiled

        return launch


@dataclass
class Case:
    """One kernel at one size."""

    name: str
    kind: str  # "extend", "decode" or "moe": cases of one kind share compiled kernels
    candidates: list[Choice]
    baselines: dict[str, Choice]
    build: Callable[[str], "Bench"]  # device -> something to run


@dataclass
class Bench:
    """A case with its tensors."""

    run: Callable[[Choice], Any]  # returns the compiled kernel
    output: Callable[[], torch.Tensor] | None = None
    reference: Callable[[], torch.Tensor] | None = None
    hold: list[Any] = field(default_factory=list)


def combos(**axes: list[int]) -> list[Choice]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def values(device: str, *sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random values on a GPU; shape alone elsewhere."""
    if device == "meta":
        return torch.empty(*sizes, dtype=dtype, device="meta")
    return (torch.randn(*sizes, device=device, dtype=torch.float32) * 0.5).to(dtype)


def extend_cases(root: Path) -> list[Case]:
    """SGLang's prefill attention: absorbed (576/512) and full (192/128), at several prefixes."""
    found = []
    for width, out, seed, upstream in (
        (LATENT + ROPE, LATENT, (32, 32), (32, 32)),
        (NOPE + ROPE, VALUE, (32, 64), (64, 64)),
    ):
        everything = combos(
            BLOCK_M=[16, 32, 64, 128], BLOCK_N=[16, 32, 64, 128], num_warps=[4, 8], num_stages=[1, 2, 3]
        )
        # What streams through a block alone exceeds SM120's memory by far: not worth compiling.
        space = [one for one in everything if one["num_stages"] * one["BLOCK_N"] * width * 2 <= 130_000]
        for new, prefix in ((1024, 4096), (4096, 16384), (4096, 32768)):
            found.append(
                Case(
                    name=f"extend {width}/{out}, {new} new on {prefix}",
                    kind=f"extend-{width}",
                    candidates=space,
                    baselines={
                        "report of January 2026": _blocks(*seed),
                        "SGLang 0.5.9 and newer": _blocks(*upstream),
                    },
                    build=_extend(root, width, out, new, prefix),
                )
            )
    return found


def _blocks(rows: int, columns: int) -> Choice:
    return {"BLOCK_M": rows, "BLOCK_N": columns, "num_warps": 8, "num_stages": 1}


def _extend(root: Path, width: int, out: int, new: int, prefix: int) -> Callable[[str], Bench]:
    def build(device: str) -> Bench:
        from .sglang import module

        engine = module(root, "extend")
        chosen = engine._fwd_kernel if isinstance(engine._fwd_kernel, Chosen) else Chosen(engine._fwd_kernel)
        engine._fwd_kernel = chosen
        kv_heads = 1 if width > 256 else HEADS
        keys = values(device, prefix, kv_heads, width)
        cached = keys[..., :out] if kv_heads == 1 else values(device, prefix, kv_heads, out)
        query, k_new = values(device, new, HEADS, width), values(device, new, kv_heads, width)
        v_new = k_new[..., :out].contiguous() if kv_heads == 1 else values(device, new, kv_heads, out)
        answer = values(device, new, HEADS, out)
        where = "meta" if device == "meta" else device
        starts = torch.tensor([0, new], dtype=torch.int32).to(where)
        pages = torch.tensor([0, prefix], dtype=torch.int32).to(where)
        index = torch.arange(prefix, dtype=torch.int64).to(where)

        def run(choice: Choice) -> Any:
            wide, tail = (LATENT, ROPE) if width > 256 else (NOPE, ROPE)
            value_width = 1 << (out - 1).bit_length()
            sizes = (wide, tail, value_width, choice["BLOCK_M"], choice["BLOCK_N"], choice["num_warps"])
            engine._get_block_sizes_for_extend_attention = lambda *args: sizes
            chosen.choice = choice
            scales = {"k_scale": 1.0, "v_scale": 1.0}
            from .shapes import call

            call(
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
                **scales,
            )
            return chosen.compiled

        def reference() -> torch.Tensor:
            k = torch.cat([keys, k_new]).float().expand(-1, HEADS, -1)
            v = torch.cat([cached, v_new]).float().expand(-1, HEADS, -1)
            rows = min(new, 512)  # the last rows see everything; enough to tell right from wrong
            scores = torch.einsum("qhd,khd->hqk", query[-rows:].float(), k) * width**-0.5
            seen = (
                torch.arange(prefix + new, device=k.device)[None]
                <= torch.arange(new - rows, new, device=k.device)[:, None] + prefix
            )
            return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen[None], float("-inf")).softmax(-1), v)

        return Bench(run=run, output=lambda: answer[-min(new, 512) :].float(), reference=reference)

    return build


def decode_cases(root: Path) -> list[Case]:
    """vLLM's MLA decode, 16k of context, both cache types."""
    space = combos(BLOCK_N=[16, 32, 64], num_warps=[2, 4, 8], num_stages=[1, 2, 3])
    upstream = {"BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    found = []
    for kv in ("bf16", "fp8"):
        for batch in (1, 32, 128):
            base = {"vLLM 0.32": upstream, "vLLM with one stage": {**upstream, "num_stages": 1}}
            found.append(
                Case(
                    name=f"MLA decode, batch {batch}, 16,384 tokens, {kv}",
                    kind=f"decode-{kv}",
                    candidates=space,
                    baselines=base,
                    build=_decode(root, batch, kv),
                )
            )
    return found


def _decode(root: Path, batch: int, kv: str) -> Callable[[str], Bench]:
    def build(device: str) -> Bench:
        engine: Any = importlib.import_module("vllm.v1.attention.ops.triton_decode_attention")
        old = engine._fwd_grouped_kernel_stage1
        chosen = old if isinstance(old, Chosen) else Chosen(old)
        engine._fwd_grouped_kernel_stage1 = chosen
        page, context, splits = 64, 16384, 32
        kind = torch.float8_e4m3fn if kv == "fp8" else torch.bfloat16
        pool = values(
            device, context // page, page, 1, LATENT + ROPE, dtype=kind
        )  # sequences share it: only speed matters
        query = values(device, batch, HEADS, LATENT + ROPE)
        answer = values(device, batch, HEADS, LATENT)
        lse = values(device, batch, HEADS, dtype=torch.float32)
        logits = values(device, batch, HEADS, splits, LATENT + 1, dtype=torch.float32)
        where = "meta" if device == "meta" else device
        tables = torch.arange(context // page, dtype=torch.int32).repeat(batch, 1).to(where)
        lengths = torch.full((batch,), context, dtype=torch.int32).to(where)
        one = torch.ones((), dtype=torch.float32).to(where)

        def run(choice: Choice) -> Any:
            chosen.choice = choice
            engine.decode_attention_fwd(
                query, pool, pool[..., :LATENT], answer, lse, tables, lengths, logits, splits, 0.0722, page,
                k_scale=one, v_scale=one, is_mla=True,
            )  # fmt: skip
            return chosen.compiled

        def reference() -> torch.Tensor:
            flat = pool.view(-1, LATENT + ROPE).float()
            scores = torch.einsum("bhd,kd->bhk", query.float(), flat) * 0.0722
            return torch.einsum("bhk,kd->bhd", scores.softmax(-1), flat[:, :LATENT])

        return Bench(run=run, output=lambda: answer.float(), reference=reference)

    return build


def moe_cases(root: Path) -> list[Case]:
    """vLLM's fused MoE, both products of an expert, at every batch size that tuned files list."""
    sizes = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
    found = []
    for kind in ("bf16", "int4_w4a16"):
        for tokens in sizes:
            rows = [16] if tokens <= 64 else [16, 32, 64] if tokens <= 1024 else [32, 64, 128]
            space = combos(
                BLOCK_SIZE_M=rows,
                BLOCK_SIZE_N=[64, 128] if kind == "bf16" else [32, 64, 128],
                BLOCK_SIZE_K=[64, 128],
                GROUP_SIZE_M=[1 if tokens <= 64 else 8],
                SPLIT_K=[1],
                num_warps=[4, 8],
                num_stages=[2, 3, 4] if kind == "bf16" else [2, 3],
            )
            found.append(
                Case(
                    name=f"fused MoE {kind}, {tokens} tokens",
                    kind=f"moe-{kind}",
                    candidates=space,
                    baselines={"vLLM 0.32's default": {"tokens": tokens}},
                    build=_moe(kind, tokens),
                )
            )
    return found


def _moe(kind: str, tokens: int) -> Callable[[str], Bench]:
    def build(device: str) -> Bench:
        engine = importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")
        name = "fused_moe_kernel" if kind == "bf16" else "fused_moe_kernel_gptq_awq"
        old = getattr(engine, name)
        chosen = old if isinstance(old, Chosen) else Chosen(old)
        setattr(engine, name, chosen)
        packed = kind != "bf16"
        weights = [_weights(device, rows, depth, packed) for rows, depth in ((2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))]
        inputs = [values(device, tokens, HIDDEN), values(device, tokens * USED, WIDTH)]
        outputs = [values(device, tokens, USED, 2 * WIDTH), values(device, tokens, USED, HIDDEN)]
        where = "cpu" if device == "meta" else device
        picks = torch.stack([torch.randperm(EXPERTS)[:USED] for _ in range(tokens)]).to(where)
        share = values(device, tokens, USED, dtype=torch.float32)
        sorted_by: dict[int, Any] = {}  # the engines sort in a kernel of its own, which is not timed here

        def run(choice: Choice) -> Any:
            config = engine.get_default_config(
                tokens, EXPERTS, WIDTH, HIDDEN, USED, None if kind == "bf16" else kind, [0, 32] if packed else None
            ) if "tokens" in choice else dict(choice)  # fmt: skip
            block = config["BLOCK_SIZE_M"]
            if block not in sorted_by:
                sorted_by[block] = aligned(picks, block, device)
            ids, experts, total = sorted_by[block]
            for step in (0, 1):
                common = {
                    "A": inputs[step], "C": outputs[step], "topk_weights": share, "sorted_token_ids": ids,
                    "expert_ids": experts, "num_tokens_post_padded": total, "mul_routed_weight": step == 1,
                    "top_k": USED if step == 0 else 1, "config": config, "compute_type": tl.bfloat16,
                }  # fmt: skip
                if packed:
                    engine.invoke_fused_moe_wna16_triton_kernel(
                        B=weights[step][0], B_scale=weights[step][1], B_zp=None, use_int8_w8a16=False,
                        use_int4_w4a16=True, block_shape=[0, 32], **common,
                    )  # fmt: skip
                else:
                    engine.invoke_fused_moe_triton_kernel(
                        B=weights[step][0], A_scale=None, B_scale=None, use_fp8_w8a8=False, use_int8_w8a8=False,
                        use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False, **common,
                    )  # fmt: skip
            return chosen.compiled

        def reference() -> torch.Tensor:
            few = picks[: min(tokens, 8)]
            first = _plain(*weights[0], packed)
            rows = inputs[0][: few.shape[0]].float()
            return torch.stack(
                [torch.stack([first(e) @ rows[t] for e in few[t].tolist()]) for t in range(few.shape[0])]
            )

        return Bench(run=run, output=lambda: outputs[0][: min(tokens, 8)].float(), reference=reference)

    return build


def _weights(device: str, rows: int, depth: int, packed: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not packed:
        return values(device, EXPERTS, rows, depth), None
    if device == "meta":
        whole = torch.empty(EXPERTS, rows, depth // 2, dtype=torch.uint8, device="meta")
    else:
        whole = torch.randint(0, 256, (EXPERTS, rows, depth // 2), dtype=torch.uint8, device=device)
    return whole, values(device, EXPERTS, rows, depth // 32).abs_() if device != "meta" else values(
        device, EXPERTS, rows, depth // 32
    )


def _plain(weight: torch.Tensor, scale: torch.Tensor | None, packed: bool) -> Callable[[int], torch.Tensor]:
    """One expert's matrix in float32."""

    def expert(number: int) -> torch.Tensor:
        if not packed or scale is None:
            return weight[number].float()
        low, high = weight[number] & 15, weight[number] >> 4
        whole = torch.stack([low, high], dim=-1).flatten(-2).float() - 8  # symmetric: 8 stands for zero
        return whole * scale[number].float().repeat_interleave(32, dim=-1)

    return expert


def aligned(picks: torch.Tensor, block: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens sorted by expert, each expert's padded to whole blocks: what the engines' align kernel makes."""
    flat = picks.flatten()
    counts = torch.bincount(flat, minlength=EXPERTS)
    padded = (counts + block - 1) // block * block
    ends = padded.cumsum(0)
    order = flat.argsort(stable=True)
    ranks = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    most = flat.numel() + EXPERTS * (block - 1)
    most = -(-most // block) * block
    ids = torch.full((most,), flat.numel(), dtype=torch.int32, device=flat.device)
    ids[(ends - padded)[flat[order]] + ranks] = order.to(torch.int32)
    blocks = torch.arange(most // block, device=flat.device) * block
    experts = torch.searchsorted(ends, blocks, right=True).clamp(max=EXPERTS - 1).to(torch.int32)
    total = ends[-1:].to(torch.int32)
    return (ids.to("meta"), experts.to("meta"), total.to("meta")) if device == "meta" else (ids, experts, total)
