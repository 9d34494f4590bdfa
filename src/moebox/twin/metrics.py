"""The twin's counters as Prometheus text, under vLLM's metric names."""

from dataclasses import dataclass, field

# vLLM 0.32's buckets, seconds.
SHORT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
TTFT = (*SHORT, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
BLOCK = 16  # tokens, vLLM's default


@dataclass(slots=True)
class LatencyHistogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    number: int = 0

    def observe(self, seconds: float) -> None:
        self.counts = self.counts or [0] * len(self.bounds)
        for place, bound in enumerate(self.bounds):
            self.counts[place] += seconds <= bound
        self.total += seconds
        self.number += 1

    def text_lines(self, name: str, label: str) -> list[str]:
        buckets = zip(self.bounds, self.counts or [0] * len(self.bounds), strict=True)
        rows = [f'{name}_bucket{{le="{bound}",{label}}} {number}' for bound, number in buckets]
        rows += [f'{name}_bucket{{le="+Inf",{label}}} {self.number}', f"{name}_count{{{label}}} {self.number}"]
        return [f"# TYPE {name} histogram", *rows, f"{name}_sum{{{label}}} {self.total:.6f}"]


@dataclass(slots=True, kw_only=True)
class TwinCounters:
    """Totals since the twin started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"length": 0, "abort": 0})
    ttft: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(TTFT))
    ttft_by_tier: dict[str, LatencyHistogram] = field(default_factory=dict)  # "" if all was computed
    cached_tokens: dict[str, int] = field(default_factory=dict)  # by tier
    itl: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(ITL))
    e2e: LatencyHistogram = field(default_factory=lambda: LatencyHistogram(E2E))


def metrics_text(
    counters: TwinCounters,
    *,
    model: str,
    running: int,
    waiting: int,
    used: float,
    kv_tokens: int,
    context: int,
    preempted: int,
) -> str:
    name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    label = f'engine="0",model_name="{name}"'
    share, cached = min(used / kv_tokens, 1.0) if kv_tokens else 0.0, counters.cached_tokens
    lines = ["# SIMULATION: these figures come from moebox twin, not from an engine"]
    for metric, kind, value in (
        ("num_requests_running", "gauge", running),
        ("num_requests_waiting", "gauge", waiting),
        ("kv_cache_usage_perc", "gauge", f"{share:.6f}"),
        ("num_preemptions_total", "counter", preempted),
        ("prompt_tokens_total", "counter", counters.prompt_tokens),
        ("generation_tokens_total", "counter", counters.generation_tokens),
        ("prefix_cache_queries_total", "counter", counters.prompt_tokens),
        ("prefix_cache_hits_total", "counter", cached.get("GPUs", 0)),
        ("external_prefix_cache_hits_total", "counter", sum(cached.values()) - cached.get("GPUs", 0)),
    ):
        lines += [f"# TYPE vllm:{metric} {kind}", f"vllm:{metric}{{{label}}} {value}"]
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, number in counters.finished.items():
        lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {number}')
    info = (
        f'block_size="{BLOCK}",num_gpu_blocks="{kv_tokens // BLOCK}",kv_cache_size_tokens="{kv_tokens}",'
        f'kv_cache_max_concurrency="{kv_tokens / context:.2f}",simulation="true",engine="0"'
    )
    lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1"]
    lines += counters.ttft.text_lines("vllm:time_to_first_token_seconds", label)
    lines += counters.itl.text_lines("vllm:inter_token_latency_seconds", label)
    lines += counters.e2e.text_lines("vllm:e2e_request_latency_seconds", label)
    return "\n".join(lines) + "\n"
