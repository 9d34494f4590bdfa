"""Results of a benchmark, with every figure of docs/metrics.md, as they are stored in files.

Files have the flat field names of vLLM's serving benchmark (`mean_ttft_ms`). Files of other tools are not read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from moebox import codec
from moebox.core.conditions import Conditions
from moebox.core.measure import Load, Slo, Workload
from moebox.errors import BadInput
from moebox.loose import Json, drop_keys, get_object, get_path, is_number

FORMAT = 1
TokenCounts = Literal["usage", "tokenizer", "chunks"]  # the source of token counts
STATS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
# Fields before the figures in a file.
LEADING_FIELDS: tuple[str, ...] = ("format", "kind", "tool", "date", "label", "simulation", "backend", "endpoint_type")
LEADING_FIELDS += ("model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")
LATENCIES = ("ttft", "ttfc", "tpot", "itl", "chunk_gap", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """A latency over many requests, in milliseconds; None without requests."""

    mean: float | None = None
    median: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def mean_or_median(self) -> float | None:
        """The mean, or the median if only that is known."""
        return self.mean if self.mean is not None else self.median if self.median is not None else self.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCheck:
    """The client's own measurements; `reasons` is empty if the client did not limit the result."""

    clock: Literal["kernel", "user"]
    workers: int
    cpu_s: float
    cpu_share: float  # of one core, the busiest worker
    peak_cpu_share: float
    cpu_us_per_token: float
    read_lag_p50_ms: float
    read_lag_p99_ms: float
    read_lag_max_ms: float
    send_lag_p99_ms: float
    merged_share: float  # of tokens with the same time as the one before
    estimated_share: float  # of tokens whose time is an estimate
    peak_ready: int  # sockets readable at once
    retried: int
    bytes_per_chunk: int
    peak_rss_bytes: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The steady state, without the start and the end of the load."""

    start_s: float
    end_s: float
    requests: int
    request_throughput: float
    output_throughput: float
    mean_concurrency: float
    halves: tuple[float, float] | None = None  # output tok/s of the window's first and second half
    ttft: LatencyStats = LatencyStats()
    tpot: LatencyStats = LatencyStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Figures over time, one per bin."""

    bin_s: float = 1.0
    output_tokens: tuple[int, ...] = ()
    in_flight: tuple[float, ...] = ()
    ended: tuple[int, ...] = ()
    ttft_ms: tuple[float | None, ...] = ()


class PositionSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speed of one stream between two positions of its reply."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The server's metrics during a run: gauges as `peak_NAME` and `mean_NAME`, counters as their growth, shares."""

    figures: dict[str, float] = field(default_factory=dict)
    series: dict[str, tuple[float | None, ...]] = field(default_factory=dict)  # time_s, and one column per metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """All GPUs of this machine during a run."""

    mean_watts: float
    joules: float
    output_tokens_per_joule: float | None
    peak_memory_bytes: int
    time_s: tuple[float, ...] = ()
    watts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageCheck:
    """Tokens of a few replies, counted by the server and by a tokenizer."""

    replies: int
    usage_tokens: int
    tokenizer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """Figures computed from the samples of one load (bench/metrics.py)."""

    duration: float
    completed: int
    failed: int
    truncated: int
    empty: int
    cancelled: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    cached_input_tokens: int
    silent: int = 0
    stopped_early: int
    ttft: LatencyStats = LatencyStats()
    ttfc: LatencyStats = LatencyStats()
    tpot: LatencyStats = LatencyStats()
    itl: LatencyStats = LatencyStats()
    chunk_gap: LatencyStats = LatencyStats()
    e2el: LatencyStats = LatencyStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(LoadSummary):
    """The measurement of one load. Fields are named as in files, except latencies."""

    format: int = FORMAT
    kind: Literal["serving"] = "serving"
    tool: str
    date: str
    label: str | None = None
    simulation: bool = False
    backend: str
    endpoint_type: str
    model_id: str
    tokenizer_id: str
    num_prompts: int
    request_rate: float | Literal["inf"]
    burstiness: float
    max_concurrency: int | None
    partial: bool = False
    away_s: float = 0.0
    workload: Workload
    load: Load
    warmup: int = 0
    slo: Slo | None = None
    token_counts: TokenCounts
    prompts_exact: bool
    errors: dict[str, int] = field(default_factory=dict)
    steady: SteadyState | None = None
    timeline: Timeline = Timeline()
    speed_by_position: tuple[PositionSpeed, ...] = ()
    client_limited: bool
    client: ClientCheck
    server: ServerView | None = None
    power: Power | None = None
    conditions: Conditions | None = None
    tokens_per_joule: float | None = None
    prefix_cache_hit_rate: float | None = None
    prompts_cached: bool = False
    prompts_repeated: int = 0
    usage_check: UsageCheck | None = None
    counts_doubtful: bool = False
    flags: tuple[str, ...] = ()
    samples: str | None = None

    @property
    def bad_requests(self) -> int:
        """Requests that failed, were truncated or came back empty."""
        return self.failed + self.truncated + self.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDecodeRow:
    """A test of prefill or decode alone; `pp_tok_s` or `tg_tok_s` repeats the mean."""

    test: str
    cold: bool
    tokens: int
    mean_tok_s: float | None
    std_tok_s: float
    tries: int
    mean_ttft_ms: float | None
    pp_tok_s: float | None = None
    tg_tok_s: float | None = None
    prompt_tokens: float
    cached_tokens: int = 0
    failed: int = 0  # requests without a reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDecode:
    """The tests of --pp and --tg."""

    format: int = FORMAT
    kind: Literal["pp-tg"] = "pp-tg"
    tool: str
    date: str
    simulation: bool = False
    model_id: str
    tokenizer_id: str
    workload: Workload = Workload()
    load: Load = Load()
    repeat: int = 3
    flags: tuple[str, ...] = ()
    rows: tuple[PrefillDecodeRow, ...] = ()


def result_document(result: Measurement | PrefillDecode) -> dict[str, object]:
    """Convert a result to the document that is written to a file."""
    plain = codec.to_plain(result)
    if isinstance(result, PrefillDecode):
        for row in plain["rows"]:  # without the rate of the other kind of test
            row.pop("tg_tok_s" if row["test"].startswith("pp") else "pp_tok_s")
        return {**plain}
    flat = _flatten_latencies({name: plain[name] for name in LEADING_FIELDS} | plain)
    flat["steady"] = plain["steady"] and _flatten_latencies(plain["steady"])
    flat["server"] = plain["server"] and {**plain["server"]["figures"], "series": plain["server"]["series"]}
    return flat


def parse_measurement(values: Json, where: str) -> Measurement:
    """Read a measurement that moebox wrote, also of an older version. Raise BadInput if it is damaged."""
    _refuse_huge_numbers(values, where)
    nested = _nest_latencies(values)
    if get_object(nested, "steady"):
        nested["steady"] = _nest_latencies(get_object(nested, "steady"))
    if server := get_object(nested, "server"):
        figures = {name: value for name, value in server.items() if is_number(value)}
        nested["server"] = {"figures": figures, "series": server.get("series", {})}
    nested.pop("source", None)  # of a file that was imported
    return codec.decode(Measurement, nested, where=where)


def parse_prefill_decode(values: Json, where: str) -> PrefillDecode:
    """Read tests of prefill and decode that moebox wrote. Raise BadInput if they are damaged."""
    _refuse_huge_numbers(values, where)
    return codec.decode(PrefillDecode, drop_keys(values, "source"), where=where)


def _refuse_huge_numbers(value: object, where: str) -> None:
    """Raise BadInput for an integer that no float can hold: JSON's integers have no limit."""
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            _refuse_huge_numbers(part, where)
    elif type(value) is int and not is_number(value):
        raise BadInput(f"{where}: a count of some hundred digits")


def is_own_document(values: Any) -> bool:
    """True for a document that moebox wrote."""
    return isinstance(values, dict) and str(values.get("tool", "")).startswith("moebox ")


def _flatten_latencies(plain: Json) -> dict[str, object]:
    """Replace each latency by separate fields such as mean_ttft_ms."""
    flat: dict[str, object] = {}
    for key, value in plain.items():
        figures = {f"{stat}_{key}_ms": get_path(value, stat) for stat in STATS}
        flat |= figures if key in LATENCIES else {key: value}
    return flat


def _nest_latencies(values: Json) -> dict[str, object]:
    """Undo `_flatten_latencies`."""
    names = {f"{stat}_{latency}_ms": (latency, stat) for latency in LATENCIES for stat in STATS}
    latencies: dict[str, dict[str, object]] = {}
    for key in values.keys() & names.keys():
        latency, stat = names[key]
        latencies.setdefault(latency, {})[stat] = values[key]
    return {**drop_keys(values, *names), **latencies}
