"""Attention of DeepSeek-V4 and V4.1 in vLLM: the model chooses its backend itself, outside the platform's selection."""

from .values import Class, Function, Member, Raised, Value
from .vllm_rules import BF16, Answer, VllmRelease

LAYERS = {"deepseek-v4": "deepseek_v4", "deepseek-v4.1": "deepseek_v41"}
# Before 0.23 there is one backend and no selection.
SINGLE = {
    False: (
        "vllm.models.deepseek_v4.nvidia.flashmla.DeepseekV4FlashMLASparseBackend",
        "vllm.v1.attention.backends.mla.flashmla_sparse.DeepseekV4FlashMLASparseBackend",
    ),
    True: ("vllm.models.deepseek_v4.amd.rocm.DeepseekV4ROCMAiterMLASparseBackend",),
}
CHOOSE = "_select_dsv4_attn_cls"
TEXT = {"head_dim": 512, "qk_rope_head_dim": 64, "kv_lora_rank": 512, "index_topk": 512, "compress_ratios": [4, 128]}


def vendor(release: VllmRelease) -> str:
    return "amd" if release.target.is_amd else "nvidia"


def default_backend(release: VllmRelease, folder: str) -> tuple[Value, Value]:
    """Return the layer and backend classes that the model chooses on this GPU, None if it is not in the release."""
    choose = release.find(f"vllm.models.{folder}.{vendor(release)}.model.{CHOOSE}")
    if isinstance(choose, Function):
        layer = choose(release.config)
        found = layer.find("backend_cls") if isinstance(layer, Class) else None
        if not isinstance(found, Class) and isinstance(layer, Class):
            get = layer.find("get_attn_backend")
            found = get(layer) if isinstance(get, Function) else None
        return layer, found
    if folder != "deepseek_v4":
        return None, None
    return None, next((c for path in SINGLE[release.target.is_amd] if (c := release.find(path))), None)


def resolve_cache_type(release: VllmRelease, folder: str, layer: Value, kv: str) -> str:
    """Return the cache type that the layer stores. Raises what the layer raises."""
    convert = release.find(f"vllm.models.{folder}.attention._resolve_dsv4_kv_cache_dtype")
    if not isinstance(convert, Function):  # before 0.23 an assertion in the layer's constructor
        if not kv.startswith("fp8"):
            raise Raised(AssertionError, f"DeepseekV4 only supports fp8 kv-cache format for now, got {kv}", "")
        return "fp8_ds_mla"
    flag = layer.find(convert.node.args.args[0].arg) if isinstance(layer, Class) else True
    found = convert(flag if isinstance(flag, bool) else "FlashInfer" not in layer.name, kv, None)
    return str(found[0]) if isinstance(found, tuple) else kv


def attention(release: VllmRelease, layer: str, kv: str) -> Answer | None:
    """Return the model's default backend and the other ones of its own that accept the cache type."""
    folder = LAYERS[layer]
    release.set_config(kv, TEXT)
    layer_class, default = default_backend(release, folder)
    if not isinstance(default, Class):
        return None
    suffix = "DSV41" if folder == "deepseek_v41" else "DSV4"
    candidates: list[tuple[str, Class]] = [(backend_name(release, default), default)]
    for member in release.reader.iterate(release.find("vllm.v1.attention.backends.registry.AttentionBackendEnum")):
        cls = release.backend_class(member) if isinstance(member, Member) and member.name.endswith(suffix) else None
        if cls and cls is not default and ("ROCM" in member.name) == release.target.is_amd:
            candidates.append((member.name, cls))
    order: list[str] = []
    refused: dict[str, str] = {}
    at = {
        "": release.line_of_function(f"vllm.models.{folder}.{vendor(release)}.model", CHOOSE) or release.place(default)
    }
    for name, cls in candidates:
        try:
            stored = resolve_cache_type(release, folder, layer_class, kv) if cls is default else kv
            reasons = refusal(release, cls, stored)
        except Raised as raised:
            reasons = raised.text
        if reasons:
            refused[name], at[name] = reasons, release.place(cls)
        else:
            order.append(name)
    first = candidates[0][0]
    if order and first in refused:  # the model does not fall back to another backend by itself
        refused[first] += f"; accepted with --attention-backend {' or '.join(order)}"
        order = []
    return Answer(tuple(order), refused, at)


def backend_name(release: VllmRelease, cls: Class) -> str:
    get = cls.find("get_name")
    name = str(get()) if isinstance(get, Function) and get.kind == "static" else cls.name
    return {"V4_FLASHMLA_SPARSE": "FLASHMLA_SPARSE_DSV4"}.get(name, name)


def refusal(release: VllmRelease, cls: Class, kv: str) -> str:
    """Return what the backend declares against this GPU and cache type."""
    check = release.reader.attribute(cls, "validate_configuration")
    given = {
        "head_size": 512,
        "dtype": BF16,
        "kv_cache_dtype": kv,
        "block_size": None,
        "use_mla": True,
        "has_sink": False,
        "use_sparse": True,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": release.capability,
        "attn_type": "decoder",
    }
    try:
        reasons = check(**given)
    except Raised as raised:
        return raised.text
    return "; ".join(str(r) for r in release.reader.iterate(reasons))
