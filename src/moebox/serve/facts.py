"""What a live engine says of itself: from its log, and better from its own endpoints where it has them."""

import json
import re

import msgspec

from moebox import http
from moebox.core import registry
from moebox.core.endpoint import Endpoint
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.serve.watch import LogSummary

_LABEL = re.compile(r'(\w+)="([^"]*)"')
# vLLM's info metric carries these as labels (0.32).
CACHE_LABELS = {"kv_cache_size_tokens": "kv_tokens", "kv_cache_max_concurrency": "max_concurrency"}


def gather_facts(endpoint: Endpoint, summary: LogSummary) -> EngineFacts:
    """Facts of the whole engine and of each device."""
    figures = dict(summary.facts)
    cache_path = (
        registry.engine_traits(endpoint.engine).kv_cache_endpoint if endpoint.engine in registry.engine_names() else ""
    )
    if cache_path:
        text = http.get(f"{endpoint.server_url}{cache_path}", headers=endpoint.headers).text
        figures |= parse_props(text) if cache_path == "/props" else parse_cache_metrics(text)
    devices = tuple(
        msgspec.convert({**sizes, "device": name}, DeviceFacts) for name, sizes in by_device(summary).items()
    )
    return EngineFacts.from_figures(figures, devices)


def by_device(seen: LogSummary) -> dict[str, dict[str, float]]:
    """What each device holds; an engine with one worker names no device, so its bytes are the first GPU's."""
    if seen.devices or "weights_bytes" not in seen.facts:
        return seen.devices
    return {"gpu0": {name: value for name, value in seen.facts.items() if name.endswith("_bytes")}}


def parse_cache_metrics(text: str) -> dict[str, float]:
    """The cache's size from vLLM's `cache_config_info`, exact where the log rounds."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:cache_config_info"):
            for label, value in _LABEL.findall(line):
                if label in CACHE_LABELS and re.fullmatch(r"\d+(\.\d+)?", value):
                    found[CACHE_LABELS[label]] = float(value)
    return found


def parse_props(text: str) -> dict[str, float]:
    """Context of a slot and number of slots from llama.cpp's /props."""
    try:
        document = json.loads(text)
        slots = int(document["total_slots"])
        context = int(document["default_generation_settings"]["n_ctx"])
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return {}
    return {"context": float(context), "slots": float(slots), "kv_tokens": float(context * slots)}
