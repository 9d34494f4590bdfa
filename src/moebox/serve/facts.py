"""What a live engine answers: a first chat, facts from its log and endpoints, and the plan compared with them."""

import json
import re
import threading

import msgspec

from moebox import engines, http
from moebox.core import registry
from moebox.core.deployment import Deployment
from moebox.core.endpoint import Endpoint
from moebox.core.engine_event import PlanRealityRow
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.plan import Memory
from moebox.errors import MoeboxError
from moebox.loose import get_number, get_objects, get_text
from moebox.serve.watch import LogSummary

HEALTH_TIMEOUT_S = 2.0
CHAT_TIMEOUT_S = 900.0  # the first request may compile kernels; the session's patience usually ends before
LABEL = re.compile(r'(\w+)="([^"]*)"')
# vLLM's info metric carries these as labels (0.32).
CACHE_LABELS = {"kv_cache_size_tokens": "kv_tokens", "kv_cache_max_concurrency": "max_concurrency"}


class ChatProbe(threading.Thread):
    """One short chat, sent while the log is watched; `reply` is None until it is answered."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.reply: http.HttpReply | None = None

    def run(self) -> None:
        body: dict[str, object] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
        if self.endpoint.model:
            body["model"] = self.endpoint.model
        url = f"{self.endpoint.base_url}/chat/completions"
        self.reply = http.post_json(url, body, headers=self.endpoint.headers, timeout_s=CHAT_TIMEOUT_S)

    @property
    def problem(self) -> str:
        """Why the reply is not a chat completion, or ""."""
        assert self.reply is not None
        if not self.reply.ok:
            return self.reply.error
        document = self.reply.json()
        choices = get_objects(document, "choices")
        if not choices or not isinstance(choices[0].get("message"), dict):
            return f"not a chat completion: {self.reply.text[:120]!r}"
        text = get_text(choices[0], "message.content", "message.reasoning", "message.reasoning_content")
        return "" if text or get_number(document, "usage.completion_tokens") else "an empty answer"


def gather_facts(endpoint: Endpoint, summary: LogSummary) -> EngineFacts:
    figures = dict(summary.facts)
    if endpoint.engine in registry.engine_names():
        traits = registry.engine_traits(endpoint.engine)
        if traits.has_slots:
            figures |= parse_props(http.get(f"{endpoint.server_url}/props", headers=endpoint.headers).text)
        if traits.cache_in_metrics:
            figures |= parse_cache_metrics(http.get(f"{endpoint.server_url}/metrics", headers=endpoint.headers).text)
    sizes_by_device = by_device(summary).items()
    devices = tuple(msgspec.convert({**sizes, "device": name}, DeviceFacts) for name, sizes in sizes_by_device)
    return EngineFacts.from_figures(figures, devices)


def by_device(summary: LogSummary) -> dict[str, dict[str, float]]:
    """Bytes of each device; an engine with one worker does not name its GPU."""
    if summary.devices or "weights_bytes" not in summary.facts:
        return summary.devices
    return {"gpu0": {name: value for name, value in summary.facts.items() if name.endswith("_bytes")}}


def parse_cache_metrics(text: str) -> dict[str, float]:
    """The cache's size from vLLM's `cache_config_info`; exact, whereas the log rounds it."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:cache_config_info"):
            for label, value in LABEL.findall(line):
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


CPU_NAMES = ("cpu", "host", "ram")
COMPARED = ("weights", "kv", "activation", "graph")


def planned_memory(deployment: Deployment) -> Memory | None:
    """The planner's memory budget on this machine, or None if the model or checkpoint is unknown."""
    from moebox import detect

    if not deployment.is_known:
        return None
    try:
        return engines.memory_budget(deployment if deployment.box else deployment.on_box(detect.load_box()))
    except MoeboxError:
        return None


def compare_with_plan(facts: EngineFacts, memory: Memory | None) -> list[PlanRealityRow]:
    """A row for every figure that the engine reported; `planned` is None if the plan has none."""
    rows = []
    if facts.kv_tokens:
        planned = float(memory.kv_tokens) if memory else None
        rows.append(PlanRealityRow(what="cache", planned=planned, real=facts.kv_tokens, unit="tokens"))
    places: dict[str, DeviceFacts] = {}
    for row in facts.devices:  # llama.cpp's host buffers (CPU, CPU_Mapped, CPU_REPACK, CUDA_Host) are one place
        on_host = row.device.lower().startswith(CPU_NAMES) or row.device.endswith("_Host")
        name = "ram" if on_host else row.device
        places[name] = places.get(name, DeviceFacts(device=name)).merge_with(row)
    by_name = {place.device: place for place in memory.devices} if memory else {}
    for name, place in places.items():
        digits = "".join(filter(str.isdigit, name))  # "CUDA1", "TP1" and "gpu1" are the same GPU
        budget = by_name.get("ram" if name == "ram" else f"gpu{digits or 0}")
        figures = {"weights": budget.weights_total, "kv": budget.kv, "activation": budget.activations} if budget else {}
        sizes = place.sizes_by_name()
        for what in COMPARED:
            if real := sizes.get(f"{what}_bytes"):
                planned = float(figures.get(what, 0)) or None
                rows.append(PlanRealityRow(what=what, device=name, planned=planned, real=real, unit="bytes"))
    return rows
