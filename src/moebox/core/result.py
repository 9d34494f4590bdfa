"""What a benchmark found, as it is kept in files and read back: every figure of docs/metrics.md with its type.

Files carry the flat field names of vLLM's serving benchmark (`mean_ttft_ms`); `document` writes them, `measurement` and
`prefill_decode` read them. Files that other tools wrote are not read here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from moebox import codec
from moebox.core.measure import Load, Slo, Workload
from moebox.errors import BadInput
from moebox.loose import Json, get_object, get_path, get_text, is_number

FORMAT = 1
TokenCounts = Literal["usage", "tokenizer", "chunks"]  # who counted the tokens
STATS = ("mean", "median", "std", "p50", "p90", "p95", "p99")
# What stands before the figures in a file.
LEADING_FIELDS: tuple[str, ...] = ("format", "kind", "tool", "date", "label", "simulation", "backend", "endpoint_type")
LEADING_FIELDS += ("model_id", "tokenizer_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")
LATENCIES = ("ttft", "ttfc", "tpot", "itl", "chunk_gap", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """A latency over many requests, in milliseconds; None where there is nothing to average."""

    mean: float | None = None
    median: float | None = None
    std: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def mean_or_median(self) -> float | None:
        """The mean, or the median where only that is known."""
        return self.mean if self.mean is not None else self.median if self.median is not None else self.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCheck:
    """What the client measured of itself; `reasons` is empty when it kept up."""

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
    estimated_share: float  # of tokens whose time is a guess
    peak_ready: int  # sockets readable at once
    retried: int
    bytes_per_chunk: int
    peak_rss_bytes: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """The window in which load neither built up nor ran out."""

    start_s: float
    end_s: float
    requests: int
    request_throughput: float
    output_throughput: float
    mean_concurrency: float
    ttft: LatencyStats = LatencyStats()
    tpot: LatencyStats = LatencyStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Figures over time, one for each bin."""

    bin_s: float = 1.0
    output_tokens: tuple[int, ...] = ()
    in_flight: tuple[float, ...] = ()
    ended: tuple[int, ...] = ()
    ttft_ms: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionSpeed:
    """How fast one stream runs between two positions of its reply (`from` and `to` in files)."""

    first: int
    last: int
    tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """What the server's metrics said during a run: gauges as peak and mean, counters by how much they grew."""

    peak_running: float | None = None
    mean_running: float | None = None
    peak_waiting: float | None = None
    mean_waiting: float | None = None
    peak_kv_use: float | None = None
    mean_kv_use: float | None = None
    peak_accept_length: float | None = None
    mean_accept_length: float | None = None
    peak_cache_hit_rate: float | None = None
    mean_cache_hit_rate: float | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    drafted: float | None = None
    drafts: float | None = None
    accepted: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    acceptance: float | None = None  # accepted of drafted
    accepted_per_step: float | None = None  # tokens a step gives, its own included
    prefix_hit_rate: float | None = None
    series: dict[str, tuple[float | None, ...]] = field(default_factory=dict)  # time_s, and a column for each


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
    """The server's count of a few replies beside a tokenizer's."""

    replies: int
    usage_tokens: int
    tokenizer_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What the samples of one load come to (bench/metrics.py); latencies are a Spread each."""

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
    """One load, measured. Fields are named as in files, but for latencies, which are a Spread each."""

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
        """Requests that ended, and not well."""
        return self.failed + self.truncated + self.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDecodeRow:
    """Prefill or decode alone; `pp_tok_s` or `tg_tok_s` repeats the mean."""

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
    failed: int = 0  # requests that brought no reply


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
    """A result as it stands in a file."""
    plain = codec.to_plain(result)
    if isinstance(result, PrefillDecode):
        return {**plain, "rows": [_used(row) for row in plain["rows"]]}
    flat = _flat({name: plain[name] for name in LEADING_FIELDS} | plain)
    flat["steady"] = plain["steady"] and _flat(plain["steady"])
    flat["server"] = plain["server"] and {key: value for key, value in plain["server"].items() if value is not None}
    flat["speed_by_position"] = [_part(part) for part in plain["speed_by_position"]]
    return flat


def _part(part: Mapping[str, object]) -> dict[str, object]:
    return {"from": part["first"], "to": part["last"], "tok_s": part["tok_s"]}


def parse_measurement(values: Json, where: str) -> Measurement:
    """The measurement in a file of ours, also of an older version; BadInput names what is wrong with it."""
    nested = _nested(values)
    if get_object(nested, "steady"):
        nested["steady"] = _nested(get_object(nested, "steady"))
    if get_object(nested, "server"):
        nested["server"] = _known(ServerView, get_object(nested, "server"))
    parts = nested.get("speed_by_position")
    if isinstance(parts, list):
        nested["speed_by_position"] = [_position(part, where) for part in parts]
    nested.pop("source", None)  # of a file that was imported
    _refuse_endless(nested, where)
    return codec.decode(Measurement, nested, where=where)


def parse_prefill_decode(values: Json, where: str) -> PrefillDecode:
    """The tests in a file of ours; BadInput names what is wrong with it."""
    _refuse_endless(values, where)
    return codec.decode(PrefillDecode, {key: values[key] for key in values if key != "source"}, where=where)


def _refuse_endless(value: object, where: str) -> None:
    """BadInput for a count that no float holds: JSON's integers have no end, and every figure is divided by another."""
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            _refuse_endless(part, where)
    elif type(value) is int and not is_number(value):
        raise BadInput(f"{where}: a count of some hundred digits")


def is_own_document(values: Any) -> bool:
    """A document that moebox wrote itself."""
    return isinstance(values, dict) and str(values.get("tool", "")).startswith("moebox ")


def _used(row: Json) -> Json:
    """Without the rate of the other kind of test."""
    unused = "tg_tok_s" if get_text(row, "test").startswith("pp") else "pp_tok_s"
    return {key: value for key, value in row.items() if key != unused}


def _flat(plain: Json) -> dict[str, object]:
    """Each latency's figures as fields of their own, where it stood."""
    flat: dict[str, object] = {}
    for key, value in plain.items():
        figures = {f"{stat}_{key}_ms": get_path(value, stat) for stat in STATS}
        flat |= figures if key in LATENCIES else {key: value}
    return flat


def _nested(values: Json) -> dict[str, object]:
    """The figures of each latency gathered."""
    names = {f"{stat}_{latency}_ms": (latency, stat) for latency in LATENCIES for stat in STATS}
    latencies: dict[str, dict[str, object]] = {}
    for key in values.keys() & names.keys():
        latency, stat = names[key]
        latencies.setdefault(latency, {})[stat] = values[key]
    others = {key: value for key, value in values.items() if key not in names}
    return {**others, **latencies}


def _known(kind: type[Any], values: Json) -> Json:
    """The fields that `kind` has: what a server's metrics are called grows with its versions."""
    names = {each.name for each in fields(kind)}
    return {key: value for key, value in values.items() if key in names}


def _position(part: object, where: str) -> Json:
    if not isinstance(part, dict) or not {"from", "to", "tok_s"} <= set(part):
        raise BadInput(f"{where}: speed_by_position holds {part!r}")
    return {"first": part["from"], "last": part["to"], "tok_s": part["tok_s"]}
