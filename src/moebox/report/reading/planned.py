"""plan.json to what was expected: the plan as it was stored, or as `moebox plan --json` prints it."""

from typing import Any

from moebox.loose import Json, figure, inner, rows, texts, truth, words
from moebox.report.record import Device, ForecastRow, Planned

# Components as they are drawn: experts, attention, other weights, then what grows with use, then the rest.
GROUPS = {
    "routed_experts": "experts",
    "shared_experts": "experts",
    "attention": "attention",
    "embed": "other weights",
    "lm_head": "other weights",
    "dense_ffn": "other weights",
    "router": "other weights",
    "norms": "other weights",
    "vision": "vision",
    "mtp": "draft",
    "draft": "draft",
}
PARTS = (
    "experts",
    "attention",
    "other weights",
    "vision",
    "draft",
    "weights",
    "in use",
    "KV cache",
    "activations",
    "overhead",
    "unused",
    "free",
)


def planned_of(document: Any) -> Planned | None:
    """The plan, or None where there is none."""
    if not isinstance(document, dict):
        return None
    memory = inner(document, "memory")
    devices = tuple(device_of(row) for row in rows(memory, "devices", "per_device"))
    return Planned(
        devices=tuple(device for device in devices if device.total > 0),
        kv_tokens=figure(memory, "kv_tokens"),
        rows=tuple(expected_of(row) for row in rows(document, "forecast", "rows")),
        reasons=tuple(texts(document, "reasons")),
        warnings=tuple(
            (words(row, "severity") or "warning", words(row, "text", "message"), words(row, "remedy"))
            for row in rows(document, "warnings")
        ),
        alternatives=tuple((words(row, "title"), words(row, "loses")) for row in rows(document, "alternatives")),
        goal=words(document, "goal"),
    )


def device_of(row: Json) -> Device:
    """One device's bar, its weights by group where they are told apart."""
    parts: dict[str, float] = {}
    for name, size in inner(row, "weights", "by_component").items():
        if isinstance(size, int | float) and size > 0:
            group = GROUPS.get(name, "other weights")
            parts[group] = parts.get(group, 0.0) + size
    if not parts:
        put(parts, "weights", figure(row, "weights_bytes", "weights"))  # the draft's are among these
    else:
        put(parts, "draft", figure(row, "draft", "draft_bytes"))
    put(parts, "in use", figure(row, "used_bytes"))
    put(parts, "KV cache", figure(row, "kv", "kv_bytes"))
    for name in ("activations", "activations_bytes", "compute_bytes", "activation_bytes", "graph_bytes"):
        put(parts, "activations", figure(row, name))
    both = figure(row, "overhead_bytes")  # activations included, where those are given apart
    put(parts, "overhead", figure(row, "overhead") if both is None else both - (figure(row, "activations_bytes") or 0))
    put(parts, "unused", figure(row, "unused", "unused_bytes"))
    put(parts, "free", figure(row, "free", "free_bytes"))
    total = figure(row, "total", "total_bytes") or sum(parts.values())
    ordered = {name: parts[name] for name in PARTS if name in parts}
    return Device(name=words(row, "device", "name") or "gpu", total=total, parts=ordered)


def put(parts: dict[str, float], name: str, size: float | None) -> None:
    """Add a part that there is."""
    if size and size > 0:
        parts[name] = parts.get(name, 0.0) + size


def expected_of(row: Json) -> ForecastRow:
    """One forecast row: the plan's own, the decode forecast's, or one in the serving benchmark's names."""
    served = figure(row, "output_throughput", "output_tok_s")
    ttft_s = figure(row, "ttft_s")
    return ForecastRow(
        concurrency=figure(row, "concurrency", "max_concurrency"),
        context=figure(row, "context"),
        output_tok_s=served if served is not None else figure(row, "decode_tok_s"),
        low_tok_s=figure(row, "low_tok_s", "low_output_throughput"),
        high_tok_s=figure(row, "high_tok_s", "high_output_throughput"),
        ttft_ms=figure(row, "mean_ttft_ms") or (ttft_s * 1e3 if ttft_s else None),
        tpot_ms=figure(row, "mean_tpot_ms"),
        tg_tok_s=figure(row, "tg_tok_s"),
        pp_tok_s=figure(row, "pp_tok_s", "prefill_tok_s"),
        workload=words(row, "workload"),
        decode_only=served is None and not truth(row, "served"),
    )
