"""SGLang's Triton kernels for an MLA mixture-of-experts model, called as its backends call them."""

import importlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import space
from .experts import KINDS, launch
from .importing import Engine, Names, no, opened, yes
from .protocol import Target
from .shapes import Shape, call, empty, whole

if TYPE_CHECKING:
    from . import tune_cases

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
OTHER_HARDWARE = tuple(f"is_{name}" for name in ("xpu", "npu", "cpu", "musa", "hpu", "mps", "gfx95_supported"))
OTHER_HARDWARE += ("is_gfx1250_supported", "cpu_has_amx_support")
PACKAGE = __name__.rpartition(".")[2]  # this module is called as the engine's package


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


def tuned_cases(root: Path, shape: space.Shape, *, smem: int, sms: int) -> list["tune_cases.Case"]:
    """What a tuner times: prefill attention and the experts, each product by itself."""
    from . import tune_cases, tune_experts

    return tune_cases.extend_cases(root, shape) + tune_experts.sglang_cases(root, shape, smem, sms)


def open_files(root: Path, target: Target) -> Engine:
    """SGLang's files, told that they run on CUDA of this capability."""
    major = target.capability // 10
    answers = {False: no, True: yes}
    utils: dict[str, object] = {
        "is_cuda": yes,
        "is_hip": no,
        "is_sm120_supported": answers[major == 12],
        "is_sm100_supported": answers[major == 10],
        "is_sm90_supported": answers[major == 9],
        "is_blackwell": answers[major in (10, 12)],
        "get_bool_env_var": no,
        "get_int_env_var": lambda name, default=0: default,
        "direct_register_custom_op": lambda *args, **kwargs: None,
        "register_custom_op": lambda *args, **kwargs: lambda function: function,
        "get_device_name": lambda *args: target.device_name,
    }
    utils |= dict.fromkeys(OTHER_HARDWARE, no)
    pdl = {"is_arch_support_pdl": answers[major >= 9]}
    stand_ins: dict[str, Names] = {
        "sglang.srt.utils": utils,
        "sglang.srt.utils.common": utils,
        "sglang.srt.environ": {},
        "sglang.srt.server_args": {},
        "sglang.srt.runtime_context": {},
        "sglang.srt.platforms": {"current_platform": _triton_platform()},
        "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": no},
        "sglang.srt.layers.moe.utils": {"get_moe_padding_size": lambda *args: 0},
        "sglang.kernels.jit.utils": pdl,
        "sglang.jit_kernel.utils": pdl,
    }
    for package in ("sglang.kernels.ops.quantization", "sglang.srt.layers.quantization"):
        stand_ins[f"{package}.fp8_kernel"] = _activation_quant()
        stand_ins[f"{package}.int8_kernel"] = {}
    return opened(Engine(root, PACKAGE, stand_ins))


def _triton_platform() -> Any:
    """A platform that has Triton, for versions that ask."""
    return types.SimpleNamespace(capabilities=types.SimpleNamespace(supports_triton=True))


def _activation_quant() -> Names:
    """SGLang quantises activations with compiled kernels first; here only the shapes they return matter."""

    def scaled(values: Any, scale: Any = None, **kwargs: Any) -> Any:
        return values.to(torch.float8_e4m3fn), scale

    def grouped(values: Any, group: int, **kwargs: Any) -> Any:
        sizes = (*values.shape[:-1], values.shape[-1] // group)
        return values.to(torch.float8_e4m3fn), torch.empty(sizes, dtype=torch.float32, device="meta")

    grouped_names = ("per_token_group_quant_fp8", "sglang_per_token_group_quant_fp8")
    return {"scaled_fp8_quant": scaled, **dict.fromkeys(grouped_names, grouped)}
