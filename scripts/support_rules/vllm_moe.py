"""MoE kernels of a vLLM release: which ones accept a quantisation on a GPU generation, in the order of preference."""

from collections.abc import Iterator

from .values import Class, Function, Member, Raised, Record, Unknown, Value
from .vllm_rules import BF16, Answer, VllmRelease

ORACLES = "vllm.model_executor.layers.fused_moe.oracle"
KEYS = "vllm.model_executor.layers.quantization.utils.quant_utils"
# name: (module, functions of which the first one found is asked, weight key, activation key)
SCHEMES: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "bf16": ("unquantized", ("select_unquantized_moe_backend",), "", ""),
    "fp8-block": ("fp8", ("select_fp8_moe_backend",), "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    "fp8-channel": ("fp8", ("select_fp8_moe_backend",), "kFp8StaticChannelSym", "kFp8DynamicTokenSym"),
    "fp8-tensor": ("fp8", ("select_fp8_moe_backend",), "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "nvfp4": ("nvfp4", ("select_nvfp4_moe_backend",), "kNvfp4Static", "kNvfp4Dynamic"),
    "nvfp4-w4a16": ("nvfp4", ("select_nvfp4_moe_backend",), "kNvfp4Static", ""),
    "int4": ("int_wna16", ("select_wna16_moe_backend",), "kInt4Static32", ""),
    "mxfp4": ("mxfp4", ("select_mxfp4_moe_backend",), "", ""),
    "mxfp4-gpt-oss": ("mxfp4", ("select_gpt_oss_mxfp4_moe_backend", "select_mxfp4_moe_backend"), "", ""),
    "mxfp4-deepseek-v4": ("mxfp4", ("select_deepseek_v4_mxfp4_moe_backend", "select_mxfp4_moe_backend"), "", ""),
    "mxfp8": ("mxfp8", ("select_mxfp8_moe_backend",), "", ""),
}
# Before a scheme had an oracle: the function that chose a kernel, or the class that held the only one.
QUANTIZATION = "vllm.model_executor.layers.quantization"
EARLIER = {
    "fp8-block": f"{QUANTIZATION}.fp8.get_fp8_moe_backend",
    "fp8-channel": f"{QUANTIZATION}.fp8.get_fp8_moe_backend",
    "fp8-tensor": f"{QUANTIZATION}.fp8.get_fp8_moe_backend",
    "mxfp4-gpt-oss": f"{QUANTIZATION}.mxfp4.get_mxfp4_backend",
}
SINGLE = {
    "int4": (
        f"{QUANTIZATION}.compressed_tensors.compressed_tensors_moe",
        "CompressedTensorsWNA16MarlinMoEMethod",
        "MARLIN",
    ),
    "bf16": ("vllm.model_executor.layers.fused_moe.layer", "UnquantizedFusedMoEMethod", "TRITON"),
}
PARALLEL = (
    "use_batched_activation_format use_ep use_all2all_kernels enable_eplb use_deepep_ht_kernels use_deepep_ll_kernels "
    "use_deepep_v2_kernels use_fi_nvl_two_sided_kernels use_fi_nvl_one_sided_kernels use_fi_all2allv_kernels "
    "use_mori_kernels use_pplx_kernels use_nixl_ep_kernels use_naive_all2all_kernels is_sequence_parallel "
    "use_ag_rs_all2all_kernels use_moonep_kernels"
)


def member(release: VllmRelease, path: str, name: str) -> Value:
    cls = release.find(path)
    return cls.names.get(name, Unknown(name)) if isinstance(cls, Class) else Unknown(name)


def find_key(release: VllmRelease, name: str) -> Value:
    """Return a quantisation key; older releases have one key for all group sizes."""
    return release.find(f"{KEYS}.{name}") or release.find(f"{KEYS}.{name.removesuffix('32')}") if name else None


def moe_config(release: VllmRelease, scheme: str) -> Record:
    """A routed layer as DeepSeek-V3 and Kimi have it, on one of eight tensor-parallel ranks."""
    layers = "vllm.model_executor.layers.fused_moe"
    gpt_oss = scheme == "mxfp4-gpt-oss"
    routing_methods = release.find(f"{layers}.config.RoutingMethodType")
    routing = "Renormalize" if gpt_oss else "DeepSeekV3"
    if scheme == "mxfp4-deepseek-v4" and isinstance(routing_methods, Class) and "DeepseekV4" in routing_methods.names:
        routing = "DeepseekV4"  # on AMD the oracle has another order of kernels for it
    parallel = Record(**dict.fromkeys(PARALLEL.split(), False), ep_size=1, tp_size=8, dp_size=1, pcp_size=1, sp_size=1)
    return Record(
        is_act_and_mul=True,
        activation=member(release, f"{layers}.activation.MoEActivation", "SWIGLUOAI" if gpt_oss else "SILU"),
        moe_parallel_config=parallel,
        has_hash_routing=False,
        routing_method=member(release, f"{layers}.config.RoutingMethodType", routing),
        router_logits_dtype=BF16,
        hidden_dim=7168,
        hidden_dim_unpadded=7168,
        num_experts=256,
        num_local_experts=256,
        num_logical_experts=256,
        experts_per_token=8,
        intermediate_size_per_partition=512,
        intermediate_size_per_partition_unpadded=512,
        intermediate_size=4096,
        in_dtype=BF16,
        is_lora_enabled=False,
        has_bias=gpt_oss,
        moe_backend="auto",
        swiglu_limit=None,
        swiglu_alpha=None,
        swiglu_beta=None,
        dp_size=1,
        ep_size=1,
        tp_size=8,
        use_ep=False,
        max_num_tokens=512,
        device="cuda",
        is_gated=True,
        rocm_aiter_fmoe_enabled=False,
    )


def ask_oracle(release: VllmRelease, scheme: str) -> Answer | None:
    """Run an oracle with kernels that all refuse, and note which ones would have accepted. None: no such oracle."""
    module, functions, weight, activation = SCHEMES[scheme]
    oracle = next((f for name in functions if (f := release.find(f"{ORACLES}.{module}.{name}"))), None)
    oracle = oracle or (release.find(EARLIER[scheme]) if scheme in EARLIER else None)
    if not isinstance(oracle, Function):
        return only_kernel(release, scheme)
    release.set_config("auto", {})
    release.config.__dict__["kernel_config"] = Record(moe_backend="auto")
    reader, accepted, refused = release.reader, list[str](), dict[str, str]()
    asked: list[Member] = []
    inside: list[bool] = []

    def note_backend(_: object, __: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
        asked.append((args or [*kwargs.values()])[0])
        return NotImplemented

    def note_support(_: object, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if inside:
            return NotImplemented
        inside.append(True)
        try:
            supported, reason = function(*args, **kwargs)
        finally:
            inside.pop()
        name = str(asked[-1].name if asked else args[0].name)
        if reader.truth(supported) is None:
            refused.setdefault(name, "not readable from the source")
        elif supported:
            accepted.append(name)
        else:
            refused.setdefault(name, reader.text(reason).removeprefix("kernel does not support "))
        return False, "noted"

    reader.hooks.update({"*.backend_to_kernel_cls": note_backend, "*.is_supported_config": note_support})
    given = {
        "config": (config := moe_config(release, scheme)),
        "moe_config": config,
        "weight_key": find_key(release, weight),
        "activation_key": find_key(release, activation),
        "block_quant": scheme == "fp8-block",
        "moe_parallel_config": config.moe_parallel_config,
        "with_lora_support": False,
        "is_act_and_mul": True,
        "tp_size": 8,
        "weight_bits": 4,
        "allow_vllm_cutlass": True,
        "quant_config": Unknown("quant_config"),
        "may_have_zp": False,
        "may_have_bias": False,
    }
    names = {a.arg for a in (*oracle.node.args.args, *oracle.node.args.kwonlyargs)}
    chosen = ""
    try:
        result = oracle(**{k: v for k, v in given.items() if k in names})
        first = result[0] if isinstance(result, tuple) else result
        chosen = first.name if isinstance(first, Member) and first.name != "NONE" else ""
    except Raised as raised:
        refused.setdefault("*", raised.text)
    finally:
        del reader.hooks["*.backend_to_kernel_cls"], reader.hooks["*.is_supported_config"]
    order = list(dict.fromkeys([*accepted, *filter(None, [chosen])]))
    refused = {k: v for k, v in refused.items() if k not in order and not (order and k == "*")}
    return Answer(tuple(order), refused, {"": release.place(oracle)})


def only_kernel(release: VllmRelease, scheme: str) -> Answer | None:
    """Return the kernel of the class that computed experts before the scheme had an oracle, on NVIDIA GPUs."""
    module, name, kernel = SINGLE.get(scheme, ("", "", ""))
    cls = release.find(f"{module}.{name}") if name and not release.target.is_amd else None
    return Answer((kernel,), {}, {"": release.place(cls)}) if isinstance(cls, Class) else None


def schemes(release: VllmRelease) -> Iterator[tuple[str, Answer]]:
    """Yield every scheme that the release has an oracle for, with its kernels."""
    for scheme in SCHEMES:
        answer = ask_oracle(release, scheme)
        if answer is not None:
            yield scheme, answer
