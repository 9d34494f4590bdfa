"""vLLM's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import functools
import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import space
from .importing import EngineImporter, ModuleNames, install_importer, return_false, return_true
from .launches import WEIGHT_KINDS, LaunchCase, ScanShape, call_with_known, launch_experts, meta_indices, meta_tensor
from .protocol import ProbeGpu

if TYPE_CHECKING:
    from . import tune_cases

_DECODE_MODULES = ("vllm.v1.attention.ops.triton_decode_attention", "vllm.attention.ops.triton_decode_attention")
_MOE_MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"
PACKAGE = __name__.rpartition(".")[2]  # this module is called as the engine's package


def launch_cases(root: Path, shape: ScanShape) -> Iterator[LaunchCase]:
    """Yield every launch that this model and recipe would make."""
    for batch in shape.decode:
        yield f"MLA decode, batch {batch}, {shape.kv} cache", functools.partial(_launch_decode, root, shape, batch)
    for kind in WEIGHT_KINDS:
        for tokens in shape.moe_tokens:
            yield f"fused MoE {kind}, {tokens} tokens", functools.partial(_launch_moe, shape, kind, tokens)


def _launch_decode(root: Path, shape: ScanShape, batch: int) -> Any:
    name = next(name for name in _DECODE_MODULES if root.joinpath(*name.split(".")).with_suffix(".py").exists())
    page, pages, splits = 64, 256, 8
    cache = meta_tensor(pages, page, 1, shape.latent, dtype=shape.cache_type)
    scale = torch.empty((), dtype=torch.float32, device="meta")
    return call_with_known(
        importlib.import_module(name).decode_attention_fwd,
        q=meta_tensor(batch, shape.heads, shape.latent),
        k_buffer=cache,
        v_buffer=cache[..., : shape.kv_lora],
        o=meta_tensor(batch, shape.heads, shape.kv_lora),
        lse=meta_tensor(batch, shape.heads, dtype=torch.float32),
        req_to_token=meta_indices(batch, pages),
        b_seq_len=meta_indices(batch),
        attn_logits=meta_tensor(batch, shape.heads, splits, shape.kv_lora + 1, dtype=torch.float32),
        num_kv_splits=splits,
        sm_scale=0.1,
        page_size=page,
        k_scale=scale,
        v_scale=scale,
        is_mla=True,
    )


def _launch_moe(shape: ScanShape, kind: str, tokens: int) -> Any:
    kernels: Any = importlib.import_module(_MOE_MODULE)
    invoke = kernels.invoke_fused_moe_triton_kernel
    if kind == "int4_w4a16":
        elsewhere = getattr(kernels, "should_moe_wna16_use_cuda", None)
        if elsewhere and elsewhere(tokens * shape.used, 32, shape.experts, 4):
            raise NotTriton("goes to the CUDA moe_wna16 kernel at this size")
        invoke = kernels.invoke_fused_moe_wna16_triton_kernel
    return launch_experts(shape, kind, tokens, choose=kernels.get_default_config, invoke=invoke)


class NotTriton(Exception):
    """The engine uses a kernel that Triton does not compile."""


def tuned_cases(root: Path, shape: space.RankShape, *, smem: int, sms: int) -> list["tune_cases.TuneCase"]:
    """Return the cases to tune: decode attention and the experts, both products under one configuration."""
    from . import tune_cases, tune_experts

    return tune_cases.decode_cases(shape) + tune_experts.vllm_cases(shape, smem, sms)


def open_files(root: Path, target: ProbeGpu) -> EngineImporter:
    """Make vLLM's files importable, as on a CUDA GPU of this capability."""
    import triton
    import triton.language as language

    for name in ("info_once", "warning_once", "debug_once"):
        setattr(logging.Logger, name, lambda self, *args, **kwargs: None)
    tuned = "VLLM_TUNED_CONFIG_FOLDER"
    stand_ins: dict[str, ModuleNames] = {
        "vllm.platforms": {"current_platform": _fake_platform(target)},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.triton_utils": {"tl": language, "triton": triton, "HAS_TRITON": True},
        "vllm._custom_ops": {},
        "vllm.triton_utils.allocation": {},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False, tuned: os.environ.get(tuned)},
        "vllm.utils.torch_utils": {"direct_register_custom_op": lambda *args, **kwargs: None},
        "vllm.utils.math_utils": {"next_power_of_2": triton.next_power_of_2, "cdiv": triton.cdiv},
        "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda: target.device_name.replace(" ", "_")},
    }
    moe = "vllm.model_executor.layers.fused_moe"
    stand_ins |= {f"{moe}.{part}": {} for part in ("modular_kernel", "activation", "config", "moe_align_block_size")}
    stand_ins[f"{moe}.utils"] = {
        "enable_swap_ab": lambda rows, columns: target.capability == 90 and rows < 64 <= columns,
        "resolve_moe_use_td": return_false,
        "warn_if_moe_use_td_ineffective": lambda *args, **kwargs: None,
    }
    return install_importer(EngineImporter(root, PACKAGE, stand_ins))


def _fake_platform(target: ProbeGpu) -> Any:
    """Return an object that looks like vLLM's platform for this GPU."""
    capability = target.capability

    class Capability(NamedTuple):
        major: int
        minor: int

        def to_int(self) -> int:
            return self.major * 10 + self.minor

        def as_version_str(self) -> str:
            return f"{self.major}.{self.minor}"

    def as_number(wanted: Any) -> int:
        return wanted if isinstance(wanted, int) else wanted[0] * 10 + wanted[1]

    class Platform:
        device_type = device_name_kind = "cuda"
        simple_compile_backend = "eager"
        dispatch_key = "CUDA"

        def get_device_capability(self, device: int = 0) -> Any:
            return Capability(*divmod(capability, 10))

        def has_device_capability(self, wanted: Any, device: int = 0) -> bool:
            return capability >= as_number(wanted)

        def is_device_capability(self, wanted: Any, device: int = 0) -> bool:
            return capability == as_number(wanted)

        def is_device_capability_family(self, wanted: int, device: int = 0) -> bool:
            return capability // 10 == wanted // 10

        def get_device_name(self, device: int = 0) -> str:
            return target.device_name

        def num_compute_units(self, device: int = 0) -> int:
            return target.sms

        def fp8_dtype(self) -> Any:
            return torch.float8_e4m3fn

        is_cuda = is_cuda_alike = supports_fp8 = return_true

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return return_false  # is_rocm, is_cpu, is_fp8_fnuz and the like

    return Platform()
