"""Start rules of an SGLang release: what its argument resolution chooses or refuses for a model on a GPU generation."""

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .interpreter import Interpreter, parse
from .stand_ins import Target, accept_unknown, libraries_for
from .statements import Leave, Return
from .values import MISSING, Class, Function, Instance, Member, OutOfSteps, Raised, Record, Symbol, Unknown, Value

MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@dataclass(frozen=True)
class Profile:
    """What the argument resolution reads of a model's config.json."""

    architecture: str
    model_type: str
    heads: int
    kv_heads: int
    head_dim: int
    quant: dict[str, Value] | None
    mla: bool = False
    extra: dict[str, Value] = field(default_factory=dict)


DSA = {**MLA, "index_topk": 2048, "index_n_heads": 64}
GLM5 = {**DSA, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_n_heads": 32}
GLM5_NEXT = {**GLM5, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0}
V4 = {"qk_rope_head_dim": 64, "index_topk": 512, "index_n_heads": 64, "compress_ratios": [4, 128]}
# Numbers from the config.json of the models named in the keys; of glm-5.3 from the checks in vLLM's attention backends.
PROFILES = {
    "deepseek-v3": Profile("DeepseekV3ForCausalLM", "deepseek_v3", 128, 128, 192, FP8, True, MLA),
    "kimi-k2": Profile("KimiK25ForConditionalGeneration", "kimi_k25", 64, 64, 192, INT4, True, MLA),
    "kimi-k2-nvfp4": Profile("KimiK25ForConditionalGeneration", "kimi_k25", 64, 64, 192, NVFP4, True, MLA),
    "deepseek-v3.2": Profile("DeepseekV32ForCausalLM", "deepseek_v32", 128, 128, 192, FP8, True, DSA),
    "glm-5": Profile("GlmMoeDsaForCausalLM", "glm_moe_dsa", 64, 64, 256, FP8, True, GLM5),
    "glm-5.3": Profile("Glm5NextForConditionalGeneration", "glm5_next", 64, 64, 256, FP8, True, GLM5_NEXT),
    "deepseek-v4": Profile("DeepseekV4ForCausalLM", "deepseek_v4", 64, 1, 512, FP8, True, V4),
    "qwen3-moe": Profile("Qwen3MoeForCausalLM", "qwen3_moe", 64, 4, 128, FP8),
    "qwen3.5-moe": Profile("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", 32, 2, 256, FP8),
    "qwen3.5-moe-nvfp4": Profile("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", 32, 2, 256, NVFP4),
    "minimax-m2": Profile("MiniMaxM2ForCausalLM", "minimax_m2", 48, 8, 128, FP8),
    "mimo-v2": Profile("MiMoV2FlashForCausalLM", "mimo_v2_flash", 64, 4, 192, FP8, False, {"v_head_dim": 128}),
    "glm-4.5": Profile("Glm4MoeForCausalLM", "glm4_moe", 96, 8, 128, None),
    "gpt-oss": Profile("GptOssForCausalLM", "gpt_oss", 64, 8, 64, {"quant_method": "mxfp4"}),
}
# Packages of other platforms, which are not installed beside CUDA or ROCm.
ABSENT = frozenset({"torch_npu", "torch_musa", "habana_frameworks", "intel_extension_for_pytorch", "mlx", "torch_mlu"})
# Modules that adapt the transformers library and decide nothing about backends.
GLUE = ("hf_transformers", "hf_transformers_utils", "hf_transformers_patches")
RESULTS = [
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "kv_cache_dtype",
    "moe_runner_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
    "nsa_prefill_backend",
    "nsa_decode_backend",
    "speculative_draft_attention_backend",
    "quantization",
    "fp8_gemm_runner_backend",
    "linear_attn_decode_backend",
]


class ModelConfig(Record):
    """A model's configuration: what it does not set is None."""

    def __getattr__(self, name: str) -> None:  # type: ignore[override]
        if name.startswith("__"):
            raise AttributeError(name)


@dataclass(frozen=True)
class Outcome:
    """Arguments after resolution, and what the resolution raised: (text, file:line)."""

    values: dict[str, Value]
    refusals: tuple[tuple[str, str], ...]


class SglangRelease:
    """The sources of one release, read for one GPU generation."""

    def __init__(self, root: Path, target: Target) -> None:
        self.root, self.target = root, target
        self.args: Instance = Instance(Class("ServerArgs", None, []))  # type: ignore[arg-type]
        self.model: Record = Record()
        self.unfinished: set[str] = set()
        views = ("resolving_view", "resolved_view", "record_of", "get_context")
        others = ("is_npu", "is_musa", "is_mps", "is_xpu", "is_hpu", "is_cpu", "use_mlx", "cpu_has_amx_support")
        hooks: dict[str, Any] = {f"*.{name}": (lambda *_: self.args) for name in views}
        hooks |= {f"*.{name}": (lambda *_: False) for name in others}
        self.reader = Interpreter(
            root,
            libraries=libraries_for(target),
            replaced={f"sglang.srt.utils.{name}": Unknown(name) for name in GLUE},
            hooks={
                **hooks,
                "*.get_model_config": lambda *_: self.model,
                "*.model_config_of": lambda *_: self.model,
                "*.get_hf_config": lambda *_: self.model.hf_config,  # before 0.5.7
                "*.is_flashinfer_available": lambda *_: not target.is_amd,
                "*.get_device_memory_capacity": lambda *_: 96_000.0,
                "*.run_post_process_pass": self.run_pass,
                "*.declare_resolution": self.declare,
                "*.collect_model_override_declarations": self.apply_model_overrides,
                "*.validate_declarations": lambda *_: None,
                "*.parse_connector_type": lambda *_: "none",
                "*.is_remote_url": lambda *_: False,
                "*.is_runai_obj_uri": lambda *_: False,
                "*.check_gguf_file": lambda *_: False,
                "*.get_int_env_var": lambda _, __, args, ___: args[1] if len(args) > 1 else 0,
                "*.get_bool_env_var": lambda _, __, args, ___: len(args) > 1 and args[1] == "true",
            },
            missing=ABSENT,
        )
        self.reader.replaced["sglang.srt.arg_groups.model_override_base.ResolvedView"] = accept_unknown(
            lambda *_, **__: self.args
        )
        self.reader.replaced["sglang.srt.arg_groups.overrides.ResolvedView"] = accept_unknown(
            lambda *_, **__: self.args
        )
        self.cls = self.read_class()
        self.defaults = self.read_defaults()
        for path in sorted(root.glob("sglang/srt/arg_groups/model_overrides/*.py")):
            self.reader.module(f"sglang.srt.arg_groups.model_overrides.{path.stem}")

    def find(self, path: str) -> Value:
        """Return a name of the sources by its dotted path, or None if the release does not have it."""
        module, _, name = path.rpartition(".")
        if self.reader.find_path(module) is None:
            return None
        found = self.reader.attribute(self.reader.module(module), name)
        return None if isinstance(found, Unknown) else found

    def read_class(self) -> Class:
        """Return ServerArgs as it is written. Since 0.5.20 the module then replaces it by an assembled copy."""
        module = self.reader.module("sglang.srt.server_args")
        for node in parse(module.path).body:
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                self.reader.run(node, module.names)
        found: Class = module.names["ServerArgs"]
        return found

    def read_defaults(self) -> dict[str, Value]:
        """Return the default of every argument."""
        found: dict[str, Value] = {}
        for cls in reversed(list(self.cls.lineage())):
            found.update(cls.fields)
        for path in sorted(self.root.glob("sglang/srt/arg_groups/fields/*.py")):
            module = self.reader.module(f"sglang.srt.arg_groups.fields.{path.stem}")
            for value in list(module.names.values()):
                if isinstance(value, Class) and value.module is module:
                    found.update(value.fields)
        return {k: v for k, v in found.items() if v is not MISSING}

    def run_pass(self, _: object, __: Function, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Run a resolution step that returns its decisions as a dict."""
        step = args[1] if len(args) > 1 else kwargs.get("fn")
        decided = step(self.args) if isinstance(step, Function) else None
        if isinstance(decided, dict):
            self.args.fields.update({k: v for k, v in decided.items() if not isinstance(v, Unknown)})

    def apply_model_overrides(
        self, _: object, function: Function, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Apply the decisions that the release registers for an architecture."""
        name = "*.collect_model_override_declarations"
        hook = self.reader.hooks.pop(name)
        try:
            for _source, decided in self.reader.iterate(function(*args, **kwargs)):
                self.args.fields.update({k: v for k, v in decided.items() if not isinstance(v, Unknown)})
        finally:
            self.reader.hooks[name] = hook
        return []

    def declare(self, _: object, __: Function, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Apply the decisions of a resolution step."""
        self.args.fields.update({k: v for k, v in kwargs.items() if k not in ("server_args", "source")})

    def model_config(self, profile: Profile) -> Record:
        arch = self.find("sglang.srt.configs.model_config.AttentionArch")
        hf = Record(
            architectures=[profile.architecture],
            model_type=profile.model_type,
            num_attention_heads=profile.heads,
            num_key_value_heads=profile.kv_heads,
            head_dim=profile.head_dim,
            hidden_size=7168,
            n_routed_experts=256,
            num_experts=256,
            quantization_config=profile.quant,
            torch_dtype=Symbol("torch.bfloat16"),
            dtype=Symbol("torch.bfloat16"),
            **profile.extra,
        )
        text = Record(**hf.__dict__)
        hf.__dict__.update(text_config=text, get_text_config=accept_unknown(lambda *_, **__: text))
        return ModelConfig(
            hf_config=hf,
            hf_text_config=text,
            attention_arch=arch.names["MLA" if profile.mla else "MHA"],
            context_len=131_072,
            has_attention_sinks=profile.model_type == "gpt_oss",
            head_dim=profile.head_dim,
            num_attention_heads=profile.heads,
            num_key_value_heads=profile.kv_heads,
            dtype=Symbol("torch.bfloat16"),
            is_generation=True,
            get_num_kv_heads=accept_unknown(lambda tp=1, *_: max(1, profile.kv_heads // tp)),
            get_num_attention_heads=accept_unknown(lambda tp=1, *_: max(1, profile.heads // tp)),
            **{"v_head_dim": profile.head_dim, **profile.extra},
        )

    def resolve(self, profile: Profile, **given: Value) -> Outcome:
        """Follow the release's own resolution of its arguments, step by step."""
        self.model = self.model_config(profile)
        self.args = Instance(self.cls, {**self.defaults, "model_path": "model", "tokenizer_path": "model", **given})
        raw = dict(self.args.fields)
        self.args.fields["_resolved_overrides"] = []
        self.args.fields["_raw_input"] = raw
        self.args.fields["_model_config"] = self.args.fields["model_config"] = self.model
        self.args.fields["server_args"] = None  # "published" record that newer releases compare with
        steps = self.find("sglang.srt.arg_groups.pipeline.run_resolution_pipeline")
        steps = steps or self.cls.find("_run_resolution_pipeline")
        steps = self.cls.find("__post_init__") if not isinstance(steps, Function) else steps
        scope = {"__module__": steps.module, "self": self.args, "server_args": self.args, "__parent__": None}
        refusals: list[tuple[str, str]] = []
        self.reader.steps = 0
        for statement in steps.node.body:  # type: ignore[union-attr]
            try:
                self.reader.run(statement, scope)
            except Raised as raised:
                refusals.append((raised.text, raised.at))
            except (Return, Leave):
                break
            except OutOfSteps:
                self.unfinished.add(ast.unparse(statement)[:80])
                self.reader.steps = 0
        if not refusals:
            refusals += self.registry_refusals(profile)
        values = {k: self.args.fields[k] for k in RESULTS if k in self.args.fields}
        return Outcome({k: v.value if isinstance(v, Member) else v for k, v in values.items()}, tuple(refusals))

    def registry_refusals(self, profile: Profile) -> list[tuple[str, str]]:
        """Return what the factories of the chosen attention backends raise before they construct a backend."""
        factories = self.find("sglang.srt.layers.attention.attention_registry.ATTENTION_BACKENDS")
        runner = Record(use_mla_backend=profile.mla, model_config=self.model, server_args=self.args)
        names = {self.args.fields.get(f"{part}attention_backend") for part in ("", "prefill_", "decode_")}
        refusals = []
        self.reader.hooks["*.__init__"] = lambda *_: None
        for name in names & set(factories) if isinstance(factories, dict) else ():
            try:
                factories[name](runner)
            except Raised as raised:
                if "attention_registry" in raised.at:  # others are about state that a running engine has
                    refusals.append((raised.text, raised.at))
        del self.reader.hooks["*.__init__"]
        return refusals

    def place_of_default(self) -> str:
        """Return file:line of the function that chooses the attention backend."""
        names = ("_attention_backend_default", "_get_default_attn_backend", "get_default_attention_backend")
        modules = ("sglang.srt.arg_groups.overrides", "sglang.srt.server_args")
        return next((at for name in names for module in modules if (at := self.line_of(module, name))), "")

    def line_of(self, module: str, name: str) -> str:
        """Return file:line of an assignment or function in a module."""
        path = self.reader.find_path(module)
        for node in ast.walk(parse(path)) if path else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = {getattr(t, "id", "") for t in targets} | {getattr(node, "name", "")}
            if name in names and isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef):
                return f"{path.relative_to(self.root)}:{node.lineno}" if path else ""
        return ""
