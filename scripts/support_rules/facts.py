"""Facts of one engine release: what its sources accept, choose or refuse, for every GPU generation asked about."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import sglang_lists, vllm_deepseek_v4, vllm_lists, vllm_moe
from .messages import gpu_messages
from .sglang_rules import PROFILES, Outcome, SglangRelease
from .stand_ins import Target
from .values import Class, Raised, Unknown, Value
from .vllm_rules import LAYERS, Answer, VllmRelease

# GPU generations: A100, A10/3090, L40S/4090, H100/H200, B200, B300, RTX PRO 6000/5090, GB10, MI300X, MI355X.
NVIDIA = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121")
AMD = ("gfx942", "gfx950")
TARGETS = (*NVIDIA, *AMD)
# Cache types that only other platforms take, and spellings of the model's own type.
SKIPPED_CACHE_TYPES = {"fp8_inc", "float16", "bf16"}
# Generations that differ in SGLang's checks of a named backend, which ask for the major number alone.
FORCED_TARGETS = {"sm80", "sm90", "sm100", "sm120", "gfx942", "gfx950"}
FORCED_MODELS = ("deepseek-v3", "qwen3-moe")
OTHER_PLATFORMS = {"intel_amx", "ascend", "intel_xpu", "torch_native", "flex_attention", "wave", "hpc_ops"}
DRAFTS = {"kimi-k2": "EAGLE3", "qwen3-moe": "EAGLE3", "gpt-oss": "EAGLE3", "deepseek-v3": "EAGLE", "glm-4.5": "EAGLE"}


@dataclass(frozen=True)
class Fact:
    """A statement about a release: `key` is what was asked, `value` the answer, `at` the evidence."""

    kind: str
    key: dict[str, Any]
    value: dict[str, Any]
    at: str


def read_vllm(root: Path) -> Iterator[Fact]:
    """Yield the facts of an unpacked vLLM wheel."""
    yield from message_facts(root, "vllm")
    first = VllmRelease(root, Target("sm90"))
    for kind in vllm_lists.LISTS:
        names, at = vllm_lists.names(first, kind)
        yield from (Fact("name", {"kind": kind, "name": name}, {"known": True}, at) for name in names)
    for name, minimum, at in vllm_lists.quantizations(first):
        yield Fact("quantization", {"name": name}, {"min_sm": minimum}, at)
    for target in map(Target, TARGETS):
        release = VllmRelease(root, target)
        yield from backend_facts(release)
        for layer in (*LAYERS, *vllm_deepseek_v4.LAYERS):
            for kv in release.cache_types():
                if kv not in SKIPPED_CACHE_TYPES:
                    yield from attention_facts(release, layer, kv)
        for architecture, cache, at in vllm_lists.cache_defaults(release):
            yield Fact("cache_default", {"gpu": target.name, "architecture": architecture}, {"cache": cache}, at)
        for scheme, answer in vllm_moe.schemes(release):
            key = {"gpu": target.name, "quantization": scheme}
            yield Fact("moe", key, {"order": list(answer.order)}, answer.at[""])
            if not answer.order:
                yield Fact("moe-refusal", key, {"text": answer.refused.get("*", "")[:200]}, answer.at[""])
        if target.is_amd:
            names, at = vllm_lists.rocm_quantizations(release)
            yield from (Fact("name", {"kind": "rocm-quantization", "name": n}, {"known": True}, at) for n in names)


def attention_facts(release: VllmRelease, layer: str, kv: str) -> Iterator[Fact]:
    own = layer in vllm_deepseek_v4.LAYERS
    answer = vllm_deepseek_v4.attention(release, layer, kv) if own else release.attention(layer, kv)
    if answer is None:
        return
    key = {"gpu": release.target.name, "layer": layer, "kv": kv}
    platform = "rocm" if release.target.is_amd else "cuda"
    at = release.line_of_function(f"vllm.platforms.{platform}", "_get_backend_priorities")
    at = answer.at.pop("", at)
    if answer.order:
        yield Fact("attention", key, {"order": list(answer.order)}, at)
        for backend in answer.at if not own else ():
            text = tidy(answer.refused[backend], kv)
            yield Fact("refusal", {**key, "backend": backend}, {"text": text}, answer.at[backend])
        return
    raised = {b: at for b, at in answer.at.items() if answer.refused[b] != "compute capability not supported"}
    if raised:
        backend = next(iter(raised))
        yield Fact(
            "attention", key, {"order": [], "why": f"{backend}: {tidy(answer.refused[backend], kv)}"}, raised[backend]
        )
    else:
        yield Fact("attention", key, {"order": [], "why": "; ".join(common_reasons(answer, layer))}, at)


def common_reasons(answer: Answer, layer: str) -> list[str]:
    """Return the reasons of the backends that are made for this kind of layer."""
    unfit = {"non-sparse not supported", "non-MLA not supported", "sparse not supported", "MLA not supported"}
    found = [text.split("; ") for text in answer.refused.values() if not unfit & set(text.split("; "))]
    for reason in ("kv_cache_dtype not supported", "compute capability not supported"):
        if found and all(reason in parts for parts in found):
            return [reason]
    return list(dict.fromkeys(part.split(", got ")[0] for parts in found for part in parts))[:3]


def tidy(text: str, kv: str) -> str:
    """Return a message on one line, with the parts that vary by GPU and cache type in braces."""
    text = re.sub(r"compute capability \d+\.\d", "compute capability {cc}", " ".join(text.split()))
    return text.replace(f"got {kv}", "got {kv}").replace(f"'{kv}'", "'{kv}'")


def backend_facts(release: VllmRelease) -> Iterator[Fact]:
    """Yield what each attention backend declares: cache types, head sizes, GPU generations."""
    for name, cls in release.backends():
        try:
            supported = release.reader.attribute(cls, "supports_compute_capability")(release.capability)
        except Raised:
            continue
        if not isinstance(supported, bool) or not is_for_platform(name, release.target.name):
            continue
        fixed = {
            "mla": ask(release, cls, "is_mla"),
            "sparse": ask(release, cls, "is_sparse"),
            "kv": [str(x) for x in release.reader.iterate(cls.find("supported_kv_cache_dtypes"))],
            "heads": ask(release, cls, "get_supported_head_sizes"),
            "blocks": block_sizes(release, cls),
            "lse": returns_lse(release, cls),
        }
        value = {k: v for k, v in fixed.items() if v not in (None, False, [])}
        if supported:
            yield Fact("attention_backend", {"gpu": release.target.name, "name": name}, value, release.place(cls))


def returns_lse(release: VllmRelease, cls: Class) -> bool:
    """Return whether the backend can divide a request's cache over ranks (decode context parallelism)."""
    impl = ask(release, cls, "get_impl_cls")
    return isinstance(impl, Class) and release.reader.attribute(impl, "can_return_lse_for_decode") is True


def is_for_platform(backend: str, gpu: str) -> bool:
    """Return whether a backend is for the platform: a compute capability does not separate NVIDIA from AMD."""
    if gpu in AMD:
        return backend.startswith(("ROCM", "TURBOQUANT", "ULTRAQUANT")) or backend in ("TRITON_ATTN", "TRITON_MLA")
    return not backend.startswith(("ROCM", "CPU", "XPU", "AMX", "ULTRAQUANT"))


def ask(release: VllmRelease, cls: Class, method: str) -> Value:
    asked = release.reader.attribute(cls, method)
    if isinstance(asked, Unknown):  # an older release
        return None
    try:
        found = asked()
    except Raised:
        return None
    return None if isinstance(found, Unknown) or found == [] else found


def block_sizes(release: VllmRelease, cls: Class) -> list[str]:
    """Return block sizes; "16n" stands for every multiple of 16."""
    found = []
    for one in release.reader.iterate(ask(release, cls, "get_supported_kernel_block_sizes")):
        base = getattr(one, "fields", {}).get("base")
        found.append(f"{base}n" if base is not None else str(one))
    return found


def read_sglang(root: Path) -> Iterator[Fact]:
    """Yield the facts of an unpacked SGLang wheel."""
    yield from message_facts(root, "sglang/srt")
    first = SglangRelease(root, Target("sm90"))
    lists = {
        "architecture": sglang_lists.architectures(first),
        "draft-attention-backend": sglang_lists.draft_backends(first),
    }
    lists |= {kind: sglang_lists.table(first, kind) for kind in sglang_lists.TABLES}
    lists |= {kind: sglang_lists.choices(first, kind) for kind in sglang_lists.FLAGS}
    lists["speculative-method"] = sglang_lists.speculative_methods(first)
    for kind, (names, at) in lists.items():
        yield from (Fact("name", {"kind": kind, "name": name}, {"known": True}, at) for name in names)
    for name, minimum, at in sglang_lists.quantizations(first):
        yield Fact("quantization", {"name": name}, {"min_sm": minimum}, at)
    cache_types = [kv for kv in lists["cache-type"][0] if kv not in SKIPPED_CACHE_TYPES]
    backends = [b for b in lists["attention-backend"][0] if b not in OTHER_PLATFORMS]
    known = set(lists["architecture"][0])
    for target in map(Target, TARGETS):
        release = SglangRelease(root, target)
        for model, profile in PROFILES.items():
            if profile.architecture in known:
                yield from model_facts(release, model, cache_types)
        for model in FORCED_MODELS if target.name in FORCED_TARGETS else ():
            for backend in backends:
                for kv in ("auto", "fp8_e4m3"):
                    outcome = release.resolve(PROFILES[model], kv_cache_dtype=kv, tp_size=8, attention_backend=backend)
                    key = {"gpu": target.name, "model": model, "backend": backend, "kv": kv}
                    yield from forced_facts(key, outcome)


def model_facts(release: SglangRelease, model: str, cache_types: list[str]) -> Iterator[Fact]:
    """Yield what the release chooses by itself for a model, by cache type, tensor parallelism and speculation."""
    profile, gpu = PROFILES[model], release.target.name
    at = release.place_of_default()
    cases: list[dict[str, Value]] = [{"kv_cache_dtype": kv, "tp_size": 8} for kv in cache_types]
    if release.target.is_amd and profile.mla:
        cases += [{"kv_cache_dtype": "auto", "tp_size": tp} for tp in (1, 2, 4)]
    if model in DRAFTS:
        draft = {"speculative_algorithm": DRAFTS[model], "speculative_draft_model_path": "draft"}
        cases.append({"kv_cache_dtype": "auto", "tp_size": 8, **draft})
    for given in cases:
        outcome = release.resolve(profile, **given)
        key = {"gpu": gpu, "model": model, "kv": given["kv_cache_dtype"], "tp": given["tp_size"]}
        key["draft"] = given.get("speculative_algorithm", "none")
        if outcome.refusals:
            text, place = outcome.refusals[0]
            yield Fact("refusal", key, {"text": " ".join(text.split())}, place)
        else:
            value = {k: v for k, v in outcome.values.items() if isinstance(v, str | int) and v != "auto"}
            value.pop("quantization", None)
            yield Fact("default", key, value, at)


def forced_facts(key: dict[str, Any], outcome: Outcome) -> Iterator[Fact]:
    """Yield whether an attention backend that the user names is accepted."""
    chosen = outcome.values.get("attention_backend")
    if outcome.refusals:
        text, at = next((r for r in outcome.refusals if "assert " not in r[0][:7]), outcome.refusals[0])
        yield Fact("forced", key, {"refused": " ".join(text.split())}, at)
    elif chosen != key["backend"]:
        yield Fact("forced", key, {"becomes": str(chosen)}, "")
    else:
        page = outcome.values.get("page_size")
        yield Fact("forced", key, {"page": page} if isinstance(page, int) and page > 1 else {"page": 1}, "")


def message_facts(root: Path, package: str) -> Iterator[Fact]:
    for text, at in gpu_messages(root, package):
        yield Fact("message", {"text": text}, {"known": True}, at)


READERS = {"vllm": read_vllm, "sglang": read_sglang}
