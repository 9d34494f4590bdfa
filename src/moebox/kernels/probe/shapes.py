"""What a recipe brings to the kernels: sizes on one rank."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import space

Arguments = Mapping[str, Any]  # of an engine's function: tensors, switches, anything


@dataclasses.dataclass(frozen=True)
class ScanShape(space.RankShape):
    """One rank's share of the model, and how it is used."""

    kv: str = "bf16"
    prefill: tuple[int, ...] = (256, 4096)
    decode: tuple[int, ...] = (1, 32, 128)
    moe_tokens: tuple[int, ...] = (1, 16, 64, 256, 1024, 4096, 8192)

    @property
    def cache_type(self) -> torch.dtype:
        """The element of the KV cache."""
        return torch.float8_e4m3fn if self.kv == "fp8" else torch.bfloat16


def meta_tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor that has a shape and no bytes."""
    return torch.empty(*sizes, dtype=dtype, device="meta")


def meta_indices(*sizes: int) -> torch.Tensor:
    """The same for indices."""
    return torch.empty(*sizes, dtype=torch.int32, device="meta")


def call_with_known(function: Callable[..., Any], **values: Any) -> Any:
    """Call with those of `values` that this version of the function takes."""
    return function(**accepted_arguments(function, values))


def _is_required(parameter: inspect.Parameter) -> bool:
    """A named argument without a default."""
    named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return named and parameter.default is parameter.empty


def accepted_arguments(function: Callable[..., Any], values: Arguments) -> Arguments:
    """Those of `values` that this version of the function takes."""
    wanted = inspect.signature(function).parameters
    missing = [name for name, parameter in wanted.items() if _is_required(parameter) and name not in values]
    if missing:
        raise TypeError(f"{function.__name__} wants {', '.join(missing)}, which this moebox does not know")
    return {name: value for name, value in values.items() if name in wanted}
