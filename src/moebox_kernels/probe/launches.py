"""Sizes on one rank, tensors without bytes, and the fused MoE launch that vLLM and SGLang share."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.language as tl

from . import space

Arguments = Mapping[str, Any]  # of an engine's function: tensors, switches, anything
LaunchCase = tuple[str, Callable[[], Any]]  # a name, and a call that makes the engine launch its kernels
WEIGHT_KINDS = ("bf16", "fp8_w8a8", "fp8_w8a8 block", "int4_w4a16")


@dataclasses.dataclass(frozen=True)
class ScanShape(space.RankShape):
    """One rank's share of the model, and how it is used."""

    kv: str = "bf16"
    prefill: tuple[int, ...] = (256, 4096)
    decode: tuple[int, ...] = (1, 32, 128)
    moe_tokens: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)

    @property
    def cache_type(self) -> torch.dtype:
        return torch.float8_e4m3fn if self.kv == "fp8" else torch.bfloat16


def meta_tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor that has a shape and no bytes."""
    return torch.empty(*sizes, dtype=dtype, device="meta")


def meta_indices(*sizes: int) -> torch.Tensor:
    return torch.empty(*sizes, dtype=torch.int32, device="meta")


def call_with_known(function: Callable[..., Any], **values: Any) -> Any:
    """Call with those of `values` that this version of the function accepts."""
    return function(**accepted_arguments(function, values))


def accepted_arguments(function: Callable[..., Any], values: Arguments) -> Arguments:
    """Return those of `values` that this version of the function accepts. Raise TypeError if it needs others."""
    wanted = inspect.signature(function).parameters
    missing = [
        name
        for name, parameter in wanted.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.default is parameter.empty
        and name not in values
    ]
    if missing:
        raise TypeError(f"{function.__name__} wants {', '.join(missing)}, which this moebox does not know")
    return {name: value for name, value in values.items() if name in wanted}


def launch_experts(
    shape: ScanShape, kind: str, tokens: int, *, choose: Callable[..., Any], invoke: Callable[..., Any]
) -> Any:
    """Launch the first product of the experts (gate and up), with the configuration the engine itself would `choose`.

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
        **_expert_tensors(shape, name, block, tokens, quantised="B_bias" in invoke.__code__.co_varnames),
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


def _expert_tensors(shape: ScanShape, name: str, block: list[int] | None, tokens: int, *, quantised: bool) -> Arguments:
    """Return activations and weights with their scales; `quantised`: the caller quantises the activations."""
    experts, hidden, rows = shape.experts, shape.hidden, 2 * shape.intermediate
    activations, a_scale, b_scale = meta_tensor(tokens, hidden), None, None
    if name == "bf16":
        weights = meta_tensor(experts, rows, hidden)
    elif name == "int4_w4a16":
        weights = meta_tensor(experts, rows, hidden // 2, dtype=torch.uint8)
        b_scale = meta_tensor(experts, rows, hidden // 32)
    else:
        weights = meta_tensor(experts, rows, hidden, dtype=torch.float8_e4m3fn)
        if not block:
            b_scale, a_scale = meta_tensor(experts, dtype=torch.float32), meta_tensor(1, dtype=torch.float32)
        else:
            b_scale = meta_tensor(experts, rows // 128, hidden // 128, dtype=torch.float32)
            a_scale = meta_tensor(tokens, hidden // 128, dtype=torch.float32) if quantised else None
        if a_scale is not None:
            activations = meta_tensor(tokens, hidden, dtype=torch.float8_e4m3fn)
    return {"A": activations, "A_scale": a_scale, "B": weights, "B_scale": b_scale}
