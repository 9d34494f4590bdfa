"""plan.json to what was expected: the plan as it was stored, or as `moebox plan --json` prints it."""

from collections.abc import Iterable

from moebox.loose import Json, get_number, get_object, get_objects, get_text, get_texts, is_true
from moebox.report.record import DeviceParts, ForecastRow, PlanRecord

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
PARTS: tuple[str, ...] = ("experts", "attention", "other weights", "vision", "draft", "weights", "in use")
PARTS += ("KV cache", "activations", "overhead", "unused", "free")
# What else lies on a device, by the names it was given over time.
OTHERS = {
    "in use": ("used_bytes",),
    "KV cache": ("kv", "kv_bytes"),
    "unused": ("unused", "unused_bytes"),
    "free": ("free", "free_bytes"),
}
ACTIVATIONS = ("activations", "activations_bytes", "compute_bytes", "activation_bytes", "graph_bytes")


def plan_record(document: object) -> PlanRecord:
    """The plan; one that says nothing where there is none."""
    memory = get_object(document, "memory")
    return PlanRecord(
        devices=tuple(devices_of(get_objects(memory, "devices", "per_device"))),
        kv_tokens=get_number(memory, "kv_tokens"),
        rows=tuple(map(expected_of, get_objects(document, "forecast", "rows"))),
        reasons=tuple(get_texts(document, "reasons")),
        warnings=tuple(
            (get_text(row, "text", "message"), get_text(row, "remedy")) for row in get_objects(document, "warnings")
        ),
        alternatives=tuple(
            (get_text(row, "title"), get_text(row, "loses")) for row in get_objects(document, "alternatives")
        ),
    )


def devices_of(found: Iterable[Json]) -> list[DeviceParts]:
    """The devices whose size is known."""
    return [device for device in map(device_of, found) if device.total > 0]


def device_of(row: Json) -> DeviceParts:
    """One device's bar, its weights by group where they are told apart."""
    parts = weights_of(row)
    for name, keys in OTHERS.items():
        put(parts, name, get_number(row, *keys))
    for name in ACTIVATIONS:
        put(parts, "activations", get_number(row, name))
    put(parts, "overhead", overhead_of(row))
    total = get_number(row, "total", "total_bytes") or sum(parts.values())
    ordered = {name: parts[name] for name in PARTS if name in parts}
    return DeviceParts(name=get_text(row, "device", "name") or "gpu", total=total, parts=ordered)


def weights_of(row: Json) -> dict[str, float]:
    """Weights by group, the draft's apart; in one where they are not told apart."""
    parts = grouped(get_object(row, "weights", "by_component"))
    if parts:
        put(parts, "draft", get_number(row, "draft", "draft_bytes"))
    else:
        put(parts, "weights", get_number(row, "weights_bytes", "weights"))  # the draft's are among these
    return parts


def overhead_of(row: Json) -> float | None:
    """What is neither weights nor cache, without the activations where those are given apart."""
    both = get_number(row, "overhead_bytes")
    return get_number(row, "overhead") if both is None else both - (get_number(row, "activations_bytes") or 0)


def grouped(weights: Json) -> dict[str, float]:
    """Components of weights summed up by the groups that are drawn."""
    parts: dict[str, float] = {}
    for name, size in weights.items():
        if isinstance(size, int | float):
            put(parts, GROUPS.get(name, "other weights"), size)
    return parts


def put(parts: dict[str, float], name: str, size: float | None) -> None:
    """Add a part that there is."""
    if size and size > 0:
        parts[name] = parts.get(name, 0.0) + size


def expected_of(row: Json) -> ForecastRow:
    """One forecast row: the plan's own, the decode forecast's, or one in the serving benchmark's names."""
    served = get_number(row, "output_throughput", "output_tok_s")
    ttft_s = get_number(row, "ttft_s")
    return ForecastRow(
        concurrency=get_number(row, "concurrency", "max_concurrency"),
        context=get_number(row, "context"),
        output_tok_s=served if served is not None else get_number(row, "decode_tok_s"),
        low_tok_s=get_number(row, "low_tok_s", "low_output_throughput"),
        high_tok_s=get_number(row, "high_tok_s", "high_output_throughput"),
        ttft_ms=get_number(row, "mean_ttft_ms") or (ttft_s * 1e3 if ttft_s else None),
        tpot_ms=get_number(row, "mean_tpot_ms"),
        tg_tok_s=get_number(row, "tg_tok_s"),
        pp_tok_s=get_number(row, "pp_tok_s", "prefill_tok_s"),
        workload=get_text(row, "workload"),
        decode_only=served is None and not is_true(row, "served"),
    )
