"""Names that a vLLM release knows: architectures, parsers, speculative methods, quantisations and their minimum GPU."""

from collections.abc import Iterator

from .values import Class, Function, Raised, Unknown, Value
from .vllm_rules import VllmRelease

REGISTRY = "vllm.model_executor.models.registry"
QUANTIZATION = "vllm.model_executor.layers.quantization"
# module, name of the table or of the Literal
LISTS = {
    "architecture": (REGISTRY, "_VLLM_MODELS"),
    "retired-architecture": (REGISTRY, "_PREVIOUSLY_SUPPORTED_MODELS"),
    "tool-parser": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning-parser": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    "speculative-method": ("vllm.config.speculative", "SpeculativeMethod"),
    "cache-type": ("vllm.config.cache", "CacheDType"),
    "moe-backend": ("vllm.config.kernel", "MoEBackend"),
}
# Where a table was before it moved.
EARLIER = {"tool-parser": "vllm.entrypoints.openai.tool_parsers"}  # until 0.12


def names(release: VllmRelease, kind: str) -> tuple[list[str], str]:
    """Return the names of one kind, and file:line of their table."""
    module, table = LISTS[kind]
    if kind in EARLIER and release.find(f"{module}.{table}") is None:
        module = EARLIER[kind]
    found = release.find(f"{module}.{table}")
    return [str(x) for x in release.reader.iterate(found)], release.line_of(module, table)


def quantizations(release: VllmRelease) -> Iterator[tuple[str, int, str]]:
    """Yield each quantisation with the minimum compute capability that its configuration declares, and file:line."""
    find = release.find(f"{QUANTIZATION}.get_quantization_config")
    for name in release.find(f"{QUANTIZATION}.QUANTIZATION_METHODS"):
        try:
            cls = find(name)
        except Raised:
            continue
        minimum, at = minimum_capability(release, cls)
        if minimum is not None:
            yield name, minimum, at
    folder = "model_executor/layers/quantization/compressed_tensors/schemes"
    for path in sorted(release.root.joinpath("vllm", folder).glob("compressed_tensors_w*.py")):
        module = release.reader.module(f"vllm.{folder.replace('/', '.')}.{path.stem}")
        for cls in list(module.names.values()):
            if isinstance(cls, Class) and cls.module is module and "get_min_capability" in cls.names:
                minimum, at = minimum_capability(release, cls)
                if minimum is not None:
                    yield f"compressed-tensors/{cls.name.removeprefix('CompressedTensors')}", minimum, at


def minimum_capability(release: VllmRelease, cls: Value) -> tuple[int | None, str]:
    method = cls.find("get_min_capability") if isinstance(cls, Class) else None
    if not isinstance(method, Function):
        return None, ""
    try:
        minimum = release.reader.attribute(cls, "get_min_capability")()
    except Raised:
        return None, ""
    return (None if isinstance(minimum, Unknown) else int(minimum)), release.place(method)


def cache_defaults(release: VllmRelease) -> Iterator[tuple[str, str, str]]:
    """Yield architectures whose own configuration replaces the cache type "auto", with the type and file:line."""
    known = release.find("vllm.model_executor.models.config.MODELS_CONFIG_MAP")
    for architecture, cls in known.items() if isinstance(known, dict) else ():
        method = cls.find("verify_and_update_config") if isinstance(cls, Class) else None
        if not isinstance(method, Function):
            continue
        release.set_config("auto", {"index_topk": 2048})
        try:
            release.reader.attribute(cls, "verify_and_update_config")(release.config)
        except Raised:
            continue
        cache = getattr(release.config.cache_config, "cache_dtype", "auto")
        if isinstance(cache, str) and cache != "auto":
            yield architecture, cache, release.place(method)


def rocm_quantizations(release: VllmRelease) -> tuple[list[str], str]:
    """Return what the ROCm platform accepts as --quantization."""
    found = release.platform.find("supported_quantization")
    return [str(x) for x in release.reader.iterate(found)], release.line_of(
        "vllm.platforms.rocm", "supported_quantization"
    )
