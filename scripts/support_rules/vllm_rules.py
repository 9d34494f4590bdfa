"""Start rules of a vLLM release: attention and MoE backends by GPU generation, layer and cache type."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .interpreter import Interpreter, parse
from .stand_ins import Target, accept_unknown, libraries_for
from .values import Class, Function, Host, Instance, Member, Raised, Record, Symbol, Unknown, Value

BF16 = Symbol("torch.bfloat16")
# Dimensions that decide which attention kernels accept a layer. Source: config.json of the models named.
MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536}
LAYERS: dict[str, tuple[dict[str, Value], dict[str, Value]]] = {
    # Qwen3, MiniMax-M2, GLM-4.x: grouped-query attention, heads of 128
    "gqa-128": ({"head_size": 128}, {"head_dim": 128}),
    # Qwen3.5 and Qwen3-Next: full-attention layers with heads of 256
    "gqa-256": ({"head_size": 256}, {"head_dim": 256}),
    # gpt-oss: heads of 64, attention sinks, sliding window
    "gqa-64-sink": ({"head_size": 64, "has_sink": True, "has_sliding_window": True}, {"head_dim": 64}),
    # DeepSeek-V3/R1, Kimi-K2
    "mla": ({"head_size": 576, "use_mla": True}, MLA),
    # DeepSeek-V3.2, GLM-5 (qk_nope_head_dim 192, v_head_dim 256)
    "mla-sparse": ({"head_size": 576, "use_mla": True, "use_sparse": True}, {**MLA, "index_topk": 2048}),
    # GLM-5.3: no rotary part, latent of 512
    "mla-sparse-nope": (
        {"head_size": 512, "use_mla": True, "use_sparse": True},
        {**MLA, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "index_topk": 2048},
    ),
}
HEADS = 16  # attention heads of one rank in the checks: DeepSeek at TP 8, Kimi and GLM-5 at TP 4
# Packages that a plain `pip install vllm` does not bring unless the wheel's METADATA lists them.
OPTIONAL = ("tokenspeed_mla", "b12x", "hpc", "zentorch", "humming", "flydsl")
# Before 0.14 the selection of attention backends was in another package.
REGISTRIES = ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")
SELECTORS = ("vllm.v1.attention.selector", "vllm.attention.selector")
ASSUMED_TRUE = re.compile(r"^(has_(flashinfer|deep_gemm|deep_ep|triton_kernels|tilelang|cutedsl|fbgemm|nvshmem)\w*)$")


@dataclass(frozen=True)
class Answer:
    """Backends that accept a layer in the engine's order of preference, and the reasons of the others."""

    order: tuple[str, ...]
    refused: dict[str, str]
    at: dict[str, str]


class VllmRelease:
    """The sources of one release, read for one GPU generation."""

    def __init__(self, root: Path, target: Target) -> None:
        self.root, self.target = root, target
        self.texts: dict[str, Value] = {}
        self.config = Record()
        self.reader = Interpreter(
            root,
            libraries=libraries_for(target),
            replaced={
                "vllm.third_party.pynvml": Unknown("pynvml"),
                "vllm.utils.import_utils.import_pynvml": Unknown("import_pynvml"),
                "vllm.logger": Unknown("vllm.logger"),
                "vllm.distributed": Unknown("vllm.distributed"),
                "vllm.distributed.parallel_state": Unknown("vllm.distributed.parallel_state"),
                "vllm.v1.worker.workspace": Unknown("vllm.v1.worker.workspace"),
                "vllm._custom_ops": self.custom_ops(),
                "vllm.platforms.rocm._GCN_ARCH": target.name,
                "vllm.platforms.rocm._get_gcn_arch": lambda: target.name,
            },
            hooks={
                "vllm.config.vllm.get_current_vllm_config": lambda *_: self.config,
                "vllm.config.vllm.get_current_vllm_config_or_none": lambda *_: self.config,
                "vllm.platforms.cuda.NvmlCudaPlatform.get_device_capability": lambda *_: self.capability,
                "vllm.platforms.rocm._get_gcn_arch": lambda *_: target.name,
                "vllm.platforms.rocm.RocmPlatform.get_device_capability": lambda *_: self.capability,
                "*.is_aiter_found": lambda *_: target.is_amd,
            },
            missing=self.missing,
        )
        module, name = ("rocm", "RocmPlatform") if target.is_amd else ("cuda", "NvmlCudaPlatform")
        self.platform: Class = self.find(f"vllm.platforms.{module}.{name}")
        self.reader.replaced["vllm.platforms.current_platform"] = Instance(self.platform)
        self.reader.modules.clear()  # read again: module-level conditions ask the platform
        self.platform = self.find(f"vllm.platforms.{module}.{name}")
        self.reader.replaced["vllm.platforms.current_platform"] = Instance(self.platform)
        self.capability = self.find("vllm.platforms.interface.DeviceCapability")(*target.capability)
        self.reader.call_function = self.with_assumptions(self.reader.call_function)  # type: ignore[method-assign]

    @property
    def missing(self) -> frozenset[str]:
        """Optional packages that the wheel does not require."""
        metadata = next(self.root.glob("vllm-*.dist-info/METADATA"), None)
        required = set()
        for line in metadata.read_text(encoding="utf-8").splitlines() if metadata else ():
            if line.startswith("Requires-Dist:") and "extra ==" not in line:
                required.add(
                    re.split(r"[^\w-]", line.split(":")[1].strip())[0].replace("-", "_").removesuffix("_kernels")
                )
        return frozenset(name for name in OPTIONAL if name not in required)

    def custom_ops(self) -> Host:
        """Stand-ins for compiled checks of the GPU; the limits are those of csrc, which is not in the wheel."""
        major, minor = self.target.capability
        number = 0 if self.target.is_amd else major * 10 + minor
        return Record(
            cutlass_scaled_mm_supports_fp8=lambda _: number >= 89,
            cutlass_scaled_mm_supports_block_fp8=lambda _: number >= 90,
            cutlass_scaled_mm_supports_fp4=lambda _: number >= 100,
            cutlass_group_gemm_supported=lambda _: number in (90, 100, 103),
            mxfp4_experts_quant_supported=lambda _: number in (100, 103),
        )

    def with_assumptions(self, call: Any) -> Any:
        def call_function(function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
            return True if ASSUMED_TRUE.match(function.name) else call(function, args, kwargs)

        return call_function

    def find(self, path: str) -> Value:
        """Return a name of the sources by its dotted path, or None if the release does not have it."""
        module, _, name = path.rpartition(".")
        if self.reader.find_path(module) is None:
            return None
        found = self.reader.attribute(self.reader.module(module), name)
        return None if isinstance(found, Unknown) else found

    def find_in(self, modules: tuple[str, ...], name: str) -> Value:
        """Return a name of the first of several modules that has it."""
        return next((found for module in modules if (found := self.find(f"{module}.{name}"))), None)

    def place(self, value: Value) -> str:
        """Return file:line of a class or function."""
        path = value.module.path.relative_to(self.root)
        return f"{path}:{value.line if isinstance(value, Class) else value.node.lineno}"

    def line_of(self, module: str, name: str) -> str:
        """Return file:line of an assignment in a module or a class of it."""
        path = self.reader.find_path(module)
        for node in ast.walk(parse(path)) if path else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AnnAssign) and any(getattr(t, "id", "") == name for t in targets):
                return f"{path.relative_to(self.root)}:{node.lineno}" if path else ""
        return ""

    def line_of_function(self, module: str, name: str) -> str:
        found = self.find(f"{module}.{name}")
        return self.place(found) if isinstance(found, Function) else ""

    def set_config(self, kv: str, text_config: dict[str, Value]) -> None:
        self.reader.steps = 0
        attention = self.find("vllm.config.attention.AttentionConfig")
        text = Record(**text_config)
        model = Record(
            hf_text_config=text,
            hf_config=text,
            dtype=BF16,
            is_diffusion=False,
            is_mm_prefix_lm=False,
            rswa_window=None,
            use_mla="kv_lora_rank" in text_config,
            get_num_attention_heads=accept_unknown(lambda *_: HEADS),
            get_num_kv_heads=accept_unknown(lambda *_: 8),
            quantization=None,
            quantization_config=None,
        )
        self.config.__dict__.update(
            model_config=model,
            cache_config=Record(cache_dtype=kv, block_size=16, user_specified_block_size=False),
            attention_config=attention() if attention else Record(),
            parallel_config=Record(
                decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=8
            ),
            speculative_config=None,
            kv_transfer_config=None,
            lora_config=None,
        )

    def cache_types(self) -> tuple[str, ...]:
        """Return the choices of --kv-cache-dtype."""
        return tuple(self.find("vllm.config.cache.CacheDType"))

    def attention(self, layer: str, kv: str) -> Answer | None:
        """Ask the platform's own selection which backends accept a layer with a cache type; None if it has no such."""
        fields, text_config = LAYERS[layer]
        self.set_config(kv, text_config)
        choose = self.reader.attribute(self.platform, "get_valid_backends")
        if isinstance(choose, Unknown):  # AMD before 0.18
            return None
        given = {
            "dtype": BF16,
            "kv_cache_dtype": kv,
            "block_size": None,
            "device_capability": self.capability,
            **fields,
        }
        selector: Class | None = self.find_in(SELECTORS, "AttentionSelectorConfig")
        if selector is None:  # before 0.13 the fields are arguments
            plain = dict.fromkeys(("use_mla", "has_sink", "use_sparse"), False)
            valid, reasons = choose(**{**plain, "attn_type": "decoder", **given})
        else:
            config = selector(**{k: v for k, v in given.items() if k in selector.fields})
            valid, reasons = choose(device_capability=self.capability, attn_selector_config=config, num_heads=HEADS)
        refused = {b.name: "; ".join(r[1] if isinstance(r, tuple) else r) for b, r in reasons.items()}
        order: list[str] = []
        at: dict[str, str] = {}
        for one in valid:
            backend = one.fields["backend"] if isinstance(one, Instance) else one[0]
            failure = self.constructor_failure(backend, layer, kv)
            if failure is None:
                order.append(backend.name)
            else:
                refused[backend.name], at[backend.name] = failure.text, failure.at
        return Answer(tuple(order), refused, at)

    def backend_class(self, backend: Member) -> Value:
        found = self.reader.call(self.reader.attribute(backend, "get_class"), [], {}, Any, {})  # type: ignore[arg-type]
        return found if isinstance(found, Class) else None

    def constructor_failure(self, backend: Member, layer: str, kv: str) -> Raised | None:
        """Return what the backend's implementation raises when a plain layer is constructed."""
        cls = self.backend_class(backend)
        get = cls.find("get_impl_cls") if cls else None
        impl = get() if isinstance(get, Function) and get.kind == "static" else get(cls) if get else None
        init = impl.find("__init__") if isinstance(impl, Class) else None
        if not isinstance(impl, Class) or not isinstance(init, Function):
            return None
        fields, text_config = LAYERS[layer]
        kv = self.sparse_cache_type(cls, kv) if fields.get("use_sparse") else kv
        made = Instance(impl)
        given = {
            "num_heads": HEADS,
            "head_size": fields["head_size"],
            "scale": 1.0,
            "num_kv_heads": 1 if fields.get("use_mla") else 8,
            "alibi_slopes": None,
            "sliding_window": 128 if fields.get("has_sliding_window") else None,
            "kv_cache_dtype": kv,
            "logits_soft_cap": None,
            "attn_type": "decoder",
            "kv_sharing_target_layer_name": None,
        }
        if fields.get("has_sink"):
            given["sinks"] = Record(shape=(HEADS,))
        if fields.get("use_mla"):
            given.update({k: v for k, v in text_config.items() if k != "index_topk"})
            given["qk_head_dim"] = text_config["qk_nope_head_dim"] + text_config["qk_rope_head_dim"]
            given["indexer"] = Unknown("indexer") if fields.get("use_sparse") else None
            given["topk_indices_buffer"] = Unknown("topk_indices_buffer")
        try:
            init(made, **given)
        except Raised as raised:
            # An assertion without a message is about state that the engine has and this reading has not.
            return None if raised.text.startswith("assert ") else raised
        return None

    def sparse_cache_type(self, backend: Class, kv: str) -> str:
        """Return the cache type that the MLA layer hands to a sparse backend."""
        convert = self.find(
            "vllm.model_executor.layers.attention.mla_attention._canonicalize_sparse_mla_kv_cache_dtype"
        )
        if convert:
            return str(convert(backend, kv))
        # Before 0.24 the layer's constructor converts by itself (mla_attention.py:388 of 0.20.0).
        return "fp8_ds_mla" if kv.startswith("fp8") and backend.name == "FlashMLASparseBackend" else kv

    def backends(self) -> Iterator[tuple[str, Class]]:
        """Yield the attention backends of the release with their classes."""
        for member in self.reader.iterate(self.find_in(REGISTRIES, "AttentionBackendEnum")):
            cls = self.backend_class(member) if member.value else None
            if cls:
                yield member.name, cls
