"""The fused MoE kernels that a tuner times, at every batch size that tuned files list.

vLLM has one configuration for both products of an expert, SGLang one for each product.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

from . import sglang, space
from .launches import Arguments, accepted_arguments, call_with_known
from .space import Choice, RankShape
from .tune_cases import CaseBench, KernelOverride, TuneCase, override_kernel, random_tensor

CHECKED_TOKENS = 8  # tokens whose answers are compared with float32
FP8_BLOCK = 128  # of a block-wise fp8 scale, each way
INT4_GROUP = 32  # int4 weights that share a scale


@dataclass
class ExpertWeights:
    """Both matrices of every expert."""

    matrices: list[torch.Tensor]
    scales: list[torch.Tensor | None]

    def expert_matrix(self, product: int, number: int) -> torch.Tensor:
        matrix, scale = self.matrices[product][number], self.scales[product]
        if scale is None:
            return matrix.float()
        if matrix.dtype == torch.uint8:
            whole = torch.stack([matrix & 15, matrix >> 4], dim=-1).flatten(-2).float() - 8  # 8 means zero
            return whole * scale[number].float().repeat_interleave(INT4_GROUP, dim=-1)
        wide = scale[number].repeat_interleave(FP8_BLOCK, dim=0).repeat_interleave(FP8_BLOCK, dim=1)
        return matrix.float() * wide


def vllm_cases(shape: RankShape, smem: int, sms: int) -> list[TuneCase]:
    """Return vLLM's fused MoE cases: one file serves both products."""
    return [
        TuneCase(
            name=f"fused MoE {kind}, {tokens} tokens",
            kind=f"moe-{kind}-{batch_class(tokens)}",
            # vLLM's kernels take SPLIT_K, and its int4 one has no default for it.
            candidates=[
                {**choice, "SPLIT_K": 1}
                for choice in space.moe_choices(kind, tokens, (0, 1), smem=smem, sms=sms, shape=shape)
            ],
            baselines={"the engine's default": {"tokens": tokens}},
            build=functools.partial(build_case, VllmExperts(), shape, kind, tokens, (0, 1)),
        )
        for kind in tunable_kinds(shape)
        for tokens in space.BATCH_SIZES
    ]


def sglang_cases(root: Path, shape: RankShape, smem: int, sms: int) -> list[TuneCase]:
    """Return SGLang's fused MoE cases: a file for each product; both must have the same tile height."""
    return [
        TuneCase(
            name=f"SGLang fused MoE {kind} {('up', 'down')[product]}, {tokens} tokens",
            kind=f"sgl-moe-{kind}-{('up', 'down')[product]}-{batch_class(tokens)}",
            candidates=space.moe_choices(kind, tokens, (product,), smem=smem, sms=sms, shape=shape),
            baselines={"the engine's default": {"tokens": tokens}},
            build=functools.partial(build_case, SglangExperts(root), shape, kind, tokens, (product,)),
            group="BLOCK_SIZE_M",
        )
        for kind in tunable_kinds(shape)
        for tokens in space.BATCH_SIZES
        for product in (0, 1)
    ]


def tunable_kinds(shape: RankShape) -> list[str]:
    """Return the kinds of weights to tune; block-wise scales need whole blocks of an expert."""
    return [kind for kind in space.MAX_CANDIDATES if not (kind.endswith("block") and shape.intermediate % FP8_BLOCK)]


def batch_class(tokens: int) -> str:
    """Name the batch sizes that share a compiled kernel: Triton checks divisibility by 16, SGLang 512 tokens."""
    return "one" if tokens == 1 else "few" if tokens <= 512 else "many"


class VllmExperts:
    """vLLM's launch code."""

    name = "vllm.model_executor.layers.fused_moe.fused_moe"

    def open_kernel(self, kind: str) -> tuple[Any, KernelOverride]:
        engine = importlib.import_module(self.name)
        return engine, override_kernel(engine, _kernel_name(kind))

    def default_config(self, shape: RankShape, kind: str, tokens: int) -> Choice:
        engine: Any = importlib.import_module(self.name)
        return dict(call_with_known(engine.get_default_config, **_config_arguments(shape, kind, tokens)))

    def make_launcher(self, engine: Any, kind: str, quantised: Any, given: Arguments) -> Callable[..., Any]:
        """Return a call of one product that only needs its blocks."""
        if kind == "int4_w4a16":
            invoke = engine.invoke_fused_moe_wna16_triton_kernel
            return functools.partial(invoke, **accepted_arguments(invoke, given))
        invoke = engine.invoke_fused_moe_triton_kernel
        activations = {} if quantised is None else {"A": quantised[0], "A_scale": quantised[1]}
        return functools.partial(invoke, **accepted_arguments(invoke, {**given, **activations}))


class SglangExperts:
    """SGLang's launch code."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open_kernel(self, kind: str) -> tuple[Any, KernelOverride]:
        engine = sglang.import_part(self.root, "moe")
        return engine, override_kernel(engine, _kernel_name(kind))

    def default_config(self, shape: RankShape, kind: str, tokens: int) -> Choice:
        choose = sglang.import_part(self.root, "moe_config").get_default_config
        return dict(call_with_known(choose, **_config_arguments(shape, kind, tokens)))

    def make_launcher(self, engine: Any, kind: str, quantised: Any, given: Arguments) -> Callable[..., Any]:
        """Return a call of one product that only needs its blocks; activations are already quantised."""
        for name in ("sglang_per_token_group_quant_fp8", "per_token_group_quant_fp8"):
            setattr(engine, name, lambda activations, group, **settings: quantised)
        invoke = engine.invoke_fused_moe_kernel
        return functools.partial(invoke, **accepted_arguments(invoke, given))


def _kernel_name(kind: str) -> str:
    return "fused_moe_kernel_gptq_awq" if kind == "int4_w4a16" else "fused_moe_kernel"


def _config_arguments(shape: RankShape, kind: str, tokens: int) -> Arguments:
    return {
        "M": tokens, "E": shape.experts, "N": shape.intermediate, "K": shape.hidden, "topk": shape.used,
        "dtype": None if kind == "bf16" else kind.split()[0], "block_shape": _block_shape(kind), "is_marlin": False,
    }  # fmt: skip


def _block_shape(kind: str) -> list[int] | None:
    return [0, INT4_GROUP] if kind == "int4_w4a16" else [FP8_BLOCK, FP8_BLOCK] if kind.endswith("block") else None


def build_case(
    experts: VllmExperts | SglangExperts,
    shape: RankShape,
    kind: str,
    tokens: int,
    products: tuple[int, ...],
    device: str,
) -> CaseBench:
    """Make the tensors of a case, and the functions that run and check it."""
    engine, kernel = experts.open_kernel(kind)
    weights = _make_weights(kind, device, shape)
    inputs = [
        random_tensor(device, tokens, shape.hidden),
        random_tensor(device, tokens * shape.used, shape.intermediate),
    ]
    quantised = [_quantise_blocks(given) if kind.endswith("block") else None for given in inputs]
    outputs = [
        random_tensor(device, tokens, shape.used, 2 * shape.intermediate),
        random_tensor(device, tokens, shape.used, shape.hidden),
    ]
    where = "cpu" if device == "meta" else device
    picks = torch.rand(tokens, shape.experts, device=where).topk(shape.used).indices
    share = random_tensor(device, tokens, shape.used, dtype=torch.float32)
    ids = (
        torch.empty(tokens, shape.used, dtype=torch.int32, device="meta") if device == "meta" else picks.to(torch.int32)
    )
    sorted_by: dict[int, Any] = {}  # the engines sort in another kernel, which is not timed here
    launchers = []
    for product in products:
        given = {
            "A": inputs[product], "A_scale": None, "B": weights.matrices[product], "B_scale": weights.scales[product],
            "B_zp": None, "bias": None, "B_bias": None, "C": outputs[product], "topk_weights": share, "topk_ids": ids,
            "mul_routed_weight": product == 1, "top_k": 1 if product else shape.used, "compute_type": tl.bfloat16,
            "use_fp8_w8a8": kind.startswith("fp8"), "use_int8_w8a8": False, "use_int8_w8a16": False,
            "use_int4_w4a16": kind == "int4_w4a16", "per_channel_quant": False, "block_shape": _block_shape(kind),
            "sorted_token_ids": None, "expert_ids": None, "num_tokens_post_padded": None, "config": None,
        }  # fmt: skip
        launchers.append(experts.make_launcher(engine, kind, quantised[product], given))
    default = experts.default_config(shape, kind, tokens)

    def config(choice: Choice) -> Choice:
        return dict(default if "tokens" in choice else choice)

    def run(choice: Choice) -> Any:
        blocks = config(choice)
        height = blocks["BLOCK_SIZE_M"]
        if height not in sorted_by:
            sorted_by[height] = align_tokens(picks, height, device, shape.experts)
        kernel.set_choice({})
        tokens_sorted, by_expert, total = sorted_by[height]
        for launch in launchers:
            launch(sorted_token_ids=tokens_sorted, expert_ids=by_expert, num_tokens_post_padded=total, config=blocks)
        return kernel.compiled

    def references() -> list[torch.Tensor]:
        found = []
        for product in products:
            packed = quantised[product]
            given = inputs[product]
            if packed is not None:
                given = packed[0].float() * packed[1].repeat_interleave(FP8_BLOCK, dim=-1)
            rows = []
            for token, row in enumerate(picks[:CHECKED_TOKENS].tolist()):
                for place, number in enumerate(row):
                    line = given[token] if product == 0 else given[token * shape.used + place] * share[token, place]
                    rows.append(weights.expert_matrix(product, number) @ line.float())
            found.append(torch.stack(rows))
        return found

    def answers() -> list[torch.Tensor]:
        return [outputs[product][:CHECKED_TOKENS].flatten(0, 1).float() for product in products]

    return CaseBench(run=run, outputs=answers, references=references, config=config)


@functools.lru_cache(maxsize=1)  # gigabytes on a GPU: one kind at a time
def _make_weights(kind: str, device: str, shape: RankShape) -> ExpertWeights:
    matrices, scales = [], []
    for rows, depth in shape.products:
        scale: torch.Tensor | None = None
        if kind == "int4_w4a16":
            sizes = (shape.experts, rows, depth // 2)
            matrix = torch.empty(sizes, dtype=torch.uint8, device="meta")
            if device != "meta":
                matrix = torch.randint(0, 256, sizes, dtype=torch.uint8, device=device)
            scale = _positive(random_tensor(device, shape.experts, rows, depth // INT4_GROUP))
        elif kind.endswith("block"):
            matrix = random_tensor(device, shape.experts, rows, depth, dtype=torch.float8_e4m3fn)
            scale = _positive(
                random_tensor(device, shape.experts, rows // FP8_BLOCK, depth // FP8_BLOCK, dtype=torch.float32)
            )
        else:
            matrix = random_tensor(device, shape.experts, rows, depth)
        matrices.append(matrix)
        scales.append(scale)
    return ExpertWeights(matrices=matrices, scales=scales)


def _positive(scale: torch.Tensor) -> torch.Tensor:
    return scale if scale.is_meta else scale.abs_()


def _quantise_blocks(activations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return activations as fp8 with a scale for each 128 of a row."""
    rows, width = activations.shape
    if activations.is_meta:
        scale = torch.empty(rows, width // FP8_BLOCK, dtype=torch.float32, device="meta")
        return activations.to(torch.float8_e4m3fn), scale
    groups = activations.float().view(rows, width // FP8_BLOCK, FP8_BLOCK)
    scale = groups.abs().amax(-1).clamp(min=1e-4) / 448  # the largest number that e4m3 holds
    return (groups / scale[..., None]).view(rows, width).to(torch.float8_e4m3fn), scale


def align_tokens(
    picks: torch.Tensor, block: int, device: str, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort tokens by expert and pad each expert's to whole blocks, as the engines' align kernel does."""
    flat = picks.flatten()
    counts = torch.bincount(flat, minlength=experts)
    padded = (counts + block - 1) // block * block
    ends = padded.cumsum(0)
    order = flat.argsort(stable=True)
    ranks = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    most = flat.numel() + experts * (block - 1)
    most = -(-most // block) * block
    ids = torch.full((most,), flat.numel(), dtype=torch.int32, device=flat.device)
    ids[(ends - padded)[flat[order]] + ranks] = order.to(torch.int32)
    blocks = torch.arange(most // block, device=flat.device) * block
    owners = torch.searchsorted(ends, blocks, right=True).clamp(max=experts - 1).to(torch.int32)
    total = ends[-1:].to(torch.int32)
    return (ids.to("meta"), owners.to("meta"), total.to("meta")) if device == "meta" else (ids, owners, total)
