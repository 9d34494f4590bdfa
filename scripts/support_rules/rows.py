"""Merges the facts of releases into rows with version ranges."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .facts import AMD, NVIDIA, is_for_platform
from .messages import LONGEST
from .sglang_rules import PROFILES

Row = dict[str, Any]
# Which dimensions of a fact become lists of a row, merged in this order.
MERGED = {
    "attention": ("kv", "gpu", "layer"),
    "attention_backend": ("gpu",),
    "refusal": ("kv", "gpu", "layer", "model", "tp", "draft"),
    "cache_default": ("gpu", "architecture"),
    "moe": ("gpu", "quantization"),
    "moe-refusal": ("gpu", "quantization"),
    "default": ("kv", "gpu", "model", "tp", "draft"),
    "forced": ("kv", "gpu", "backend", "layer"),
}
PLURAL = {
    "architecture": "architectures",
    "draft": "drafts",
    "gpu": "gpus",
    "layer": "layers",
    "model": "models",
    "backend": "backends",
    "quantization": "quantizations",
}
TABLE = {"forced": "attention_choice", "moe-refusal": "moe_refusal"}
NAMES = {"quantization": "quantization_choice", "attention-backend": "attention_backend_name"}
FILES = {
    "vllm": "vllm.json",
    "sglang": "sglang.json",
    "llama.cpp": "llama_cpp.json",
    "ik_llama.cpp": "ik_llama_cpp.json",
}
# Cache types of a recipe by the engine's names; "auto" is the model's own type, which is bf16.
CACHE_NAMES = {
    "vllm": {"bf16": "bfloat16", "f16": "float16"},
    "sglang": {"fp8": "fp8_e4m3", "bf16": "auto"},
}
# Shorter names for the arguments that SGLang resolves.
SHORT = {
    "attention_backend": "attention",
    "prefill_attention_backend": "prefill_attention",
    "decode_attention_backend": "decode_attention",
    "moe_runner_backend": "moe",
    "page_size": "page",
    "kv_cache_dtype": "cache",
    "speculative_draft_attention_backend": "draft_attention",
    "fp8_gemm_runner_backend": "fp8_gemm",
    "linear_attn_decode_backend": "linear_decode",
    **{f"{old}_{part}_backend": f"sparse_{part}" for old in ("dsa", "nsa") for part in ("prefill", "decode")},
}
ORDER = [*NVIDIA, *AMD]
DEEPSEEK_V4_CACHES = {"auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"}  # no release takes others
# Architectures of config.json whose attention layers have the dimensions of scripts/support_rules/vllm_rules.py.
LAYERS = {
    "gqa-128": (
        "heads of 128, grouped queries",
        "Qwen3MoeForCausalLM Qwen3VLMoeForConditionalGeneration MiniMaxM2ForCausalLM Glm4MoeForCausalLM",
    ),
    "gqa-256": (
        "heads of 256, grouped queries",
        "Qwen3NextForCausalLM Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM",
    ),
    "gqa-64-sink": ("heads of 64, attention sinks, sliding window", "GptOssForCausalLM"),
    "mla": (
        "latent of 512 and 64 rotary",
        "DeepseekV3ForCausalLM KimiK25ForConditionalGeneration MistralLarge3ForCausalLM",
    ),
    "mla-sparse": ("the same latent with an indexer, top 2048", "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM"),
    "mla-sparse-nope": (
        "latent of 512 without rotary part, with an indexer",
        "Glm5NextForConditionalGeneration Glm5NextForCausalLM",
    ),
    "deepseek-v4": (
        "compressed latent; the model chooses the backend",
        "DeepseekV4ForCausalLM DeepseekV4ForConditionalGeneration",
    ),
    "deepseek-v4.1": ("compressed latent; the model chooses the backend", "DeepseekV41ForCausalLM"),
}


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of 0.5.12.post1, b10586 and 2026-08-15."""
    return tuple(int(x) for x in re.findall(r"\d+", version))


def load(folder: Path, engine: str) -> dict[str, list[Row]]:
    """Return the facts of every release of an engine, oldest first."""
    paths = [p for p in folder.glob(f"{engine}-*.json") if re.fullmatch(r"b?\d[\w.-]*", p.stem[len(engine) + 1 :])]
    found = {p.stem[len(engine) + 1 :]: json.loads(p.read_text(encoding="utf-8")) for p in paths}
    return dict(sorted(found.items(), key=lambda item: version_key(item[0])))


def shorten(fact: Row) -> Row:
    """Leave out what is the usual case: facts without content, arguments that stay as they were asked for."""
    asked = fact["key"]
    exotic = asked.get("layer", "").startswith("deepseek-v4") and asked["kv"] not in DEEPSEEK_V4_CACHES
    foreign = fact["kind"] == "attention_backend" and not is_for_platform(asked["name"], asked["gpu"])
    if fact["value"] == {"page": 1} or asked.get("gpu", ORDER[0]) not in ORDER or exotic or foreign:
        return {**fact, "kind": "", "value": {}}
    if fact["kind"] == "forced" and "model" in asked:
        layer = "mla" if PROFILES[asked["model"]].mla else "gqa"
        return {**fact, "key": {"layer": layer, **{k: v for k, v in asked.items() if k != "model"}}}
    if fact["kind"] == "message":
        return {**fact, "key": {"text": asked["text"][:LONGEST]}}
    if fact["kind"] != "default":
        return fact
    value = {SHORT.get(k, k): v for k, v in fact["value"].items()}
    usual = {"page": 1, "cache": fact["key"]["kv"]}
    return {**fact, "value": {k: v for k, v in value.items() if usual.get(k) != v}}


def merge_versions(releases: dict[str, list[Row]]) -> list[Row]:
    """Return one row for every run of consecutive releases that state the same, with the newest evidence."""
    names = list(releases)
    seen: dict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
    for index, facts in enumerate(releases.values()):
        for fact in map(shorten, facts):
            seen[fact["kind"], json.dumps(fact["key"], sort_keys=True)][index] = fact
    rows: list[Row] = []
    for by_release in seen.values():
        start = previous = -1
        for index, fact in sorted(by_release.items()):
            if previous == index - 1 and rows and start >= 0 and by_release[previous]["value"] == fact["value"]:
                rows[-1].update(last=names[index], at=fact["at"])
            else:
                start = index
                rows.append({"kind": fact["kind"], "first": names[index], "last": names[index], "at": fact["at"]})
                rows[-1].update(key=fact["key"], value=fact["value"])
            previous = index
    return rows


def merge_dimensions(rows: list[Row], dimensions: Iterable[str]) -> list[Row]:
    """Merge rows that differ in one dimension, one dimension after the other."""
    flat = [{**row, "key": {k: [v] if k in dimensions else v for k, v in row["key"].items()}} for row in rows]
    for dimension in dimensions:
        groups: dict[str, Row] = {}
        for row in flat:
            rest = {k: v for k, v in row.items() if k != "key"}
            other = {k: v for k, v in row["key"].items() if k != dimension}
            group = groups.setdefault(json.dumps([rest, other], sort_keys=True), {**row, "key": {**row["key"]}})
            if dimension in row["key"]:
                joined = [*group["key"][dimension], *row["key"][dimension]]
                group["key"][dimension] = sorted(set(joined), key=lambda x: (ORDER.index(x) if x in ORDER else 99, x))
        flat = list(groups.values())
    return flat


Table = tuple[str, Row]


def table(name: str, fields: Row) -> Table:
    return name, {k: v for k, v in fields.items() if v not in (None, "", [])}


def dump(document: Row) -> str:
    """Return JSON with a line for each row, so that a change shows as changed lines."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def versions(row: Row) -> str:
    return f"=={row['first']}" if row["first"] == row["last"] else f">={row['first']},<={row['last']}"


def name_tables(rows: list[Row]) -> Iterable[Table]:
    """Yield a table for each kind of name and range of releases."""
    groups: dict[tuple[str, str, str], tuple[list[str], str]] = {}
    for row in rows:
        kind = NAMES.get(row["key"]["kind"], row["key"]["kind"].replace("-", "_"))
        names, at = groups.setdefault((kind, row["first"], row["last"]), ([], row["at"]))
        names.append(row["key"]["name"])
    order = sorted(groups.items(), key=lambda item: (item[0][0], version_key(item[0][1]), version_key(item[0][2])))
    for (kind, first, last), (names, at) in order:
        span = versions({"first": first, "last": last})
        yield table(kind, {"versions": span, "at": at, "names": sorted(set(names))})


def depends_on_tp(key: Row) -> bool:
    """Return whether the engine's choice was read for several TP sizes: heads a rank decide for MLA on AMD."""
    return any(g in AMD for g in key["gpus"]) and any(PROFILES[m].mla for m in key["models"])


def engine_tables(engine: str, releases: dict[str, list[Row]]) -> Iterable[Table]:
    """Yield the tables of one engine's file."""
    commits = {f["key"]["version"]: f["value"] for facts in releases.values() for f in facts if f["kind"] == "commit"}
    for version, value in commits.items():
        yield table("snapshot", {"version": version, **value})
    if engine == "vllm":
        for name, (text, architectures) in LAYERS.items():
            yield table("layer", {"name": name, "description": text, "architectures": architectures.split()})
    if engine == "sglang":
        resolved = {fact["key"].get("model") for facts in releases.values() for fact in facts}
        for name, profile in PROFILES.items():
            if name not in resolved:
                continue
            quant = (profile.quant or {}).get("quant_method", "")
            layer = "mla-sparse" if "index_topk" in profile.extra else "mla" if profile.mla else "gqa"
            layer = "deepseek-v4" if "compress_ratios" in profile.extra else layer
            row = {"name": name, "architecture": profile.architecture, "layer": layer, "quantization": quant}
            yield table("model", row)
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for row in merge_versions(releases):
        by_kind[row["kind"]].append(row)
    yield from name_tables(by_kind.pop("name", []))
    by_kind.pop("commit", None)
    by_kind.pop("", None)
    for kind, rows in by_kind.items():
        for row in merge_dimensions(rows, MERGED.get(kind, ())):
            key = {PLURAL.get(k, k) if isinstance(v, list) else k: v for k, v in row["key"].items()}
            value = {k: v for k, v in row["value"].items() if k != "known"}
            if key.get("drafts") == ["none"]:
                del key["drafts"]
            if "tp" in key and not depends_on_tp(key):
                del key["tp"]
            if kind == "attention" and not value["order"]:
                value = {"refused": value.get("why") or "no backend accepts this"}
            yield table(TABLE.get(kind, kind), {"versions": versions(row), **key, **value, "at": row["at"]})


def facts_of(document: Row) -> dict[str, list[Row]]:
    """Return the facts that a file was written from, by release, so that a later run can keep them."""
    releases: dict[str, list[Row]] = {name: [] for name in document["releases"]}
    order, kinds = list(releases), {table: kind for kind, table in TABLE.items()}
    named = {table: kind for kind, table in NAMES.items()}
    for row in document.get("snapshot", ()):
        value = {"commit": row["commit"], "date": row["date"]}
        releases[row["version"]].append(
            {"kind": "commit", "key": {"version": row["version"]}, "value": value, "at": ""}
        )
    for name, rows in document.items():
        for row in rows if isinstance(rows, list) and name not in ("releases", "snapshot") else ():
            if "versions" not in row:
                continue  # the lists of layers and models
            first, last = (*re.findall(r"[=]([^=,<>]+)", row["versions"]), "")[:2]
            span = order[order.index(first) : order.index(last or first) + 1]
            if "names" in row:
                kind = named.get(name, name.replace("_", "-"))
                cases = [("name", {"kind": kind, "name": each}, {"known": True}) for each in row["names"]]
            else:
                cases = list(expand(kinds.get(name, name), row, document["engine"]))
            made = [{"kind": k, "key": key, "value": value, "at": row.get("at", "")} for k, key, value in cases]
            for release in span:
                releases[release] += made
    return releases


def expand(kind: str, row: Row, engine: str) -> Iterable[tuple[str, Row, Row]]:
    """Yield kind, key and value for every combination of a row's lists."""
    single = {"message": ("text",), "refusal": ("backend",)}.get(kind, ("name",))
    fields = {PLURAL.get(one, one): one for one in MERGED.get(kind, ())}
    key = {k: v for k, v in row.items() if k in single}
    value = {k: v for k, v in row.items() if k not in ("versions", "at", *single, *fields)}
    if kind in ("message", "name"):
        value["known"] = True
    if kind == "attention":
        value = {"order": value.get("order", [])} | ({"why": value["refused"]} if "refused" in value else {})
    if kind == "moe":
        value.setdefault("order", [])
    usual = {"drafts": ["none"], "tp": [8]} if engine == "sglang" and kind in ("default", "refusal") else {}
    lists = {one: row.get(many, usual.get(many)) for many, one in fields.items()}
    known = {one: values for one, values in lists.items() if values is not None}
    for case in itertools.product(*known.values()):
        yield kind, {**key, **dict(zip(known, case, strict=True))}, value


def write(facts: Path, out: Path) -> int:
    """Write a file for each engine; releases that it has and the facts lack are kept. Return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    for engine, name in FILES.items():
        kept = facts_of(json.loads((out / name).read_text(encoding="utf-8"))) if (out / name).is_file() else {}
        found = {**kept, **load(facts, engine)}
        releases = dict(sorted(found.items(), key=lambda item: version_key(item[0])))
        if not releases:
            raise ValueError(f"{facts} has no facts of {engine}")
        document: Row = {"engine": engine, "cache_names": CACHE_NAMES.get(engine, {}), "releases": list(releases)}
        for kind, row in engine_tables(engine, releases):
            document.setdefault(kind, []).append(row)
        (out / name).write_text(dump(document), encoding="utf-8")
        print(f"{name}: {len(releases)} releases, {(out / name).stat().st_size / 1000:.0f} kB")
    return 0
