"""SGLang's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import functools
import importlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import space
from .importing import EngineImporter, ModuleNames, install_importer, return_false, return_true
from .launches import WEIGHT_KINDS, LaunchCase, ScanShape, call_with_known, launch_experts, meta_indices, meta_tensor
from .protocol import ProbeGpu

if TYPE_CHECKING:
    from . import tune_cases

# The engine's files by name; their folders differ between versions, and so does the name of the KV writer.
_FILES = {
    "extend": ("extend_attention.py",),
    "decode": ("decode_attention.py",),
    "moe": ("fused_moe_triton_kernels.py",),
    "moe_config": ("fused_moe_triton_config.py",),
    "writer": ("mla_buffer.py", "mem_cache/utils.py"),
}
_OTHER_BACKENDS = ("wave_ops", "multimodal", "/test", "dsv4", "cpu")  # other backends' files of the same name
OTHER_PLATFORM_CHECKS = tuple(f"is_{name}" for name in ("xpu", "npu", "cpu", "musa", "hpu", "mps", "gfx95_supported"))
OTHER_PLATFORM_CHECKS += ("is_gfx1250_supported", "cpu_has_amx_support")
PACKAGE = __name__.rpartition(".")[2]  # this module is called as the engine's package


def import_part(root: Path, part: str) -> Any:
    """Import the engine's file for `part` from the folder where this version keeps it."""
    for name in _FILES[part]:
        for path in sorted(root.glob(f"sglang/**/{name}")):
            place = path.relative_to(root)
            if not any(word in str(place) for word in _OTHER_BACKENDS):
                return importlib.import_module(".".join(place.with_suffix("").parts))
    raise ModuleNotFoundError(f"no {part} kernel file in this version")


def launch_cases(root: Path, shape: ScanShape) -> Iterator[LaunchCase]:
    """Yield every launch that this model and recipe would make."""
    for new in shape.prefill:
        yield (
            f"extend attention, absorbed {shape.latent}/{shape.kv_lora}, {new} new",
            functools.partial(_launch_extend, root, shape, new, absorbed=True),
        )
        full = shape.nope + shape.rope
        yield (
            f"extend attention, full {full}/{shape.v}, {new} new",
            functools.partial(_launch_extend, root, shape, new, absorbed=False),
        )
    for batch in shape.decode:
        yield f"MLA decode, batch {batch}, {shape.kv} cache", functools.partial(_launch_decode, root, shape, batch)
    for kind in WEIGHT_KINDS:
        for tokens in shape.moe_tokens:
            yield f"fused MoE {kind}, {tokens} tokens", functools.partial(_launch_moe, root, shape, kind, tokens)
    yield f"KV cache writer, {shape.kv}", functools.partial(_launch_writer, root, shape)


def _launch_extend(root: Path, shape: ScanShape, new: int, *, absorbed: bool) -> Any:
    fwd = import_part(root, "extend").extend_attention_fwd
    width, out = (shape.latent, shape.kv_lora) if absorbed else (shape.nope + shape.rope, shape.v)
    kv_heads, prefix = (1 if absorbed else shape.heads), 4096
    keys = meta_tensor(prefix + new, kv_heads, width)
    return call_with_known(
        fwd,
        q_extend=meta_tensor(new, shape.heads, width),
        k_extend=meta_tensor(new, kv_heads, width),
        v_extend=meta_tensor(new, kv_heads, out),
        o_extend=meta_tensor(new, shape.heads, out),
        k_buffer=keys,
        v_buffer=keys[..., :out] if absorbed else meta_tensor(prefix + new, kv_heads, out),
        qo_indptr=meta_indices(2),
        kv_indptr=meta_indices(2),
        kv_indices=torch.empty(prefix, dtype=torch.int64, device="meta"),
        custom_mask=None,
        is_causal=True,
        mask_indptr=None,
        max_len_extend=new,
        k_scale=1.0,
        v_scale=1.0,
        sm_scale=0.1,
    )


def _launch_decode(root: Path, shape: ScanShape, batch: int) -> Any:
    fwd = import_part(root, "decode").decode_attention_fwd
    splits, tokens = 8, 16384
    keys = meta_tensor(tokens, 1, shape.latent, dtype=shape.cache_type)
    return call_with_known(
        fwd,
        q=meta_tensor(batch, shape.heads, shape.latent),
        k_buffer=keys,
        v_buffer=keys[..., : shape.kv_lora],
        o=meta_tensor(batch, shape.heads, shape.kv_lora),
        kv_indptr=meta_indices(batch + 1),
        kv_indices=torch.empty(tokens, dtype=torch.int64, device="meta"),
        attn_logits=meta_tensor(batch, shape.heads, splits, shape.kv_lora, dtype=torch.float32),
        attn_lse=meta_tensor(batch, shape.heads, splits, dtype=torch.float32),
        num_kv_splits=meta_indices(batch),
        max_kv_splits=splits,
        sm_scale=0.1,
        k_scale=1.0,
        v_scale=1.0,
        has_mla=True,
    )


def _launch_moe(root: Path, shape: ScanShape, kind: str, tokens: int) -> Any:
    choose = import_part(root, "moe_config").get_default_config
    return launch_experts(shape, kind, tokens, choose=choose, invoke=import_part(root, "moe").invoke_fused_moe_kernel)


def _launch_writer(root: Path, shape: ScanShape) -> Any:
    write = import_part(root, "writer").set_mla_kv_buffer_triton
    cache = shape.cache_type
    return call_with_known(
        write,
        kv_buffer=meta_tensor(16384, 1, shape.latent, dtype=cache),
        loc=torch.arange(256),  # real numbers: some versions read them first
        cache_k_nope=meta_tensor(256, 1, shape.kv_lora, dtype=cache),
        cache_k_rope=meta_tensor(256, 1, shape.rope, dtype=cache),
    )


def tuned_cases(root: Path, shape: space.RankShape, *, smem: int, sms: int) -> list["tune_cases.TuneCase"]:
    """Return the cases to tune: prefill attention and the experts, each product by itself."""
    from . import tune_cases, tune_experts

    return tune_cases.extend_cases(root, shape) + tune_experts.sglang_cases(root, shape, smem, sms)


def open_files(root: Path, target: ProbeGpu) -> EngineImporter:
    """Make SGLang's files importable, as on a CUDA GPU of this capability."""
    major = target.capability // 10
    answers = {False: return_false, True: return_true}
    utils: dict[str, object] = {
        "is_cuda": return_true,
        "is_hip": return_false,
        "is_sm120_supported": answers[major == 12],
        "is_sm100_supported": answers[major == 10],
        "is_sm90_supported": answers[major == 9],
        "is_blackwell": answers[major in (10, 12)],
        "get_bool_env_var": return_false,
        "get_int_env_var": lambda name, default=0: default,
        "direct_register_custom_op": lambda *args, **kwargs: None,
        "register_custom_op": lambda *args, **kwargs: lambda function: function,
        "get_device_name": lambda *args: target.device_name,
    }
    utils |= dict.fromkeys(OTHER_PLATFORM_CHECKS, return_false)
    capabilities = types.SimpleNamespace(supports_triton=True)  # some versions check it
    platform = types.SimpleNamespace(capabilities=capabilities)
    pdl = {"is_arch_support_pdl": answers[major >= 9]}
    stand_ins: dict[str, ModuleNames] = {
        "sglang.srt.utils": utils,
        "sglang.srt.utils.common": utils,
        "sglang.srt.environ": {},
        "sglang.srt.server_args": {},
        "sglang.srt.runtime_context": {},
        "sglang.srt.platforms": {"current_platform": platform},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": return_false},
        "sglang.srt.layers.moe.utils": {"get_moe_padding_size": lambda *args: 0},
        "sglang.kernels.jit.utils": pdl,
        "sglang.jit_kernel.utils": pdl,
    }
    for package in ("sglang.kernels.ops.quantization", "sglang.srt.layers.quantization"):
        stand_ins[f"{package}.fp8_kernel"] = _activation_quant()
        stand_ins[f"{package}.int8_kernel"] = {}
    return install_importer(EngineImporter(root, PACKAGE, stand_ins))


def _activation_quant() -> ModuleNames:
    """Return stand-ins for the compiled kernels that quantise activations; only their shapes matter."""

    def quantise_whole(values: Any, scale: Any = None, **kwargs: Any) -> Any:
        return values.to(torch.float8_e4m3fn), scale

    def quantise_groups(values: Any, group: int, **kwargs: Any) -> Any:
        sizes = (*values.shape[:-1], values.shape[-1] // group)
        return values.to(torch.float8_e4m3fn), torch.empty(sizes, dtype=torch.float32, device="meta")

    group_names = ("per_token_group_quant_fp8", "sglang_per_token_group_quant_fp8")
    return {"scaled_fp8_quant": quantise_whole, **dict.fromkeys(group_names, quantise_groups)}
