"""Flags of `moebox bench` that repeat a measurement (for reports, and after an interrupt), and published presets."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from moebox import codec
from moebox.core import catalogue
from moebox.core.measure import Load, Slo, Workload
from moebox.errors import UnknownName

REQUESTS_PER_STREAM = 4  # if no number of requests is given
DEFAULT_LOAD, DEFAULT_SLO = Load(), Slo()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPreset:
    """The settings of one published benchmark."""

    about: str
    source: str
    workload: Workload
    concurrency: tuple[int, ...] = (1,)
    requests: int = 0  # for each concurrency; 0 takes requests_per_stream
    requests_per_stream: int = 4

    def request_count(self, concurrency: int) -> int:
        return self.requests or concurrency * self.requests_per_stream


@functools.cache
def load_presets() -> dict[str, BenchPreset]:
    rows = catalogue.load_table("presets")
    return {name: codec.decode(BenchPreset, row, where=f"preset {name}") for name, row in rows.items()}


def find_preset(name: str) -> BenchPreset:
    if name not in load_presets():
        raise UnknownName("preset", name, load_presets())
    return load_presets()[name]


def bench_flags(
    workload: Workload, loads: Sequence[Load], *, warmup: int = 0, slo: Slo | None = None, search: bool = False
) -> list[list[str]]:
    """Return the flags for these loads of one workload, in as many commands as needed; `search`: loads are searched."""
    commands: dict[tuple[object, ...], list[Load]] = {}  # loads that one command can ask for
    for load in loads:
        default = not load.rate and load.requests == REQUESTS_PER_STREAM * load.concurrency * workload.turns
        same = replace(load, concurrency=0, rate=0.0, requests=0)
        key = (same, bool(load.rate), load.concurrency if load.rate else 0, None if default else load.requests)
        commands.setdefault(key, []).append(load)
    return [
        _workload_flags(workload)
        + _load_flags(group, workload, with_requests=key[-1] is not None)
        + _flag_unless_default("--warmup", warmup, 0)
        + _limit_flags(group[0])
        + (slo_flags(slo, search=search) if slo else [])
        for key, group in commands.items()
    ]


def prefill_decode_flags(tests: Sequence[str], workload: Workload, repeat: int, load: Load = DEFAULT_LOAD) -> list[str]:
    """Return the flags for tests named like pp512 and tg128."""
    flags = []
    for kind in ("pp", "tg"):
        lengths = dict.fromkeys(test[2:] for test in tests if test.startswith(kind))
        flags += [f"--{kind}", ",".join(lengths)] if lengths else []
    return flags + _flag_unless_default("--repeat", repeat or 3, 3) + _prompt_flags(workload) + _limit_flags(load)


def slo_flags(slo: Slo, *, search: bool = False) -> list[str]:
    """Return the flags of an SLO; if it is searched for, also the share of requests that must meet it."""
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "itl": slo.itl_s, "e2e": slo.e2e_s}
    text = ",".join(f"{name}={_exact_number(limit)}s" for name, limit in limits.items() if limit is not None)
    share = _flag_unless_default("--slo-share", slo.share, DEFAULT_SLO.share) if search else []
    return ["--slo", text, *share] if text else []


def _workload_flags(work: Workload) -> list[str]:
    flags = _flag_unless_default("--workload", work.kind, "random")
    if work.kind in ("prompts", "trace"):
        flags += ["--file", work.file]
    if work.kind != "trace":
        flags += ["--input", str(work.input_tokens)] if work.kind != "prompts" else []
        flags += ["--output", str(work.output_tokens)]
    if work.kind == "turns":
        flags += ["--turns", str(work.turns), "--think", f"{_exact_number(work.think_s)}s"]
    if work.kind == "prefix":
        flags += ["--prefix", str(work.prefix_tokens), *_flag_unless_default("--prefixes", work.prefixes, 1)]
    return flags + _prompt_flags(work)


def _prompt_flags(work: Workload) -> list[str]:
    flags = _flag_unless_default("--seed", work.seed, 0)
    flags += ["--reuse-prompts"] if work.reuse_prompts and work.kind != "prompts" else []
    flags += _flag_unless_default("--api", work.api, "chat")
    flags += [] if work.ignore_eos else ["--stop-at-eos"]
    return flags + (["--extra-body", json.dumps(work.extra)] if work.extra else [])


def _load_flags(loads: Sequence[Load], work: Workload, *, with_requests: bool) -> list[str]:
    first = loads[0]
    limit = ["--concurrency", str(first.concurrency)] if first.concurrency else []
    requests = ["--requests", str(first.requests)] if first.requests and with_requests else []
    if first.rate:
        rates = ",".join(_exact_number(load.rate) for load in loads)
        arrivals = _flag_unless_default("--arrivals", first.arrivals, DEFAULT_LOAD.arrivals)
        if first.arrivals != "constant":
            arrivals += _flag_unless_default("--burstiness", first.burstiness, DEFAULT_LOAD.burstiness)
        return ["--rate", rates, *limit, *arrivals, *requests]
    if work.kind == "trace":
        return limit + requests
    return ["--concurrency", ",".join(str(load.concurrency) for load in loads), *requests]


def _limit_flags(load: Load) -> list[str]:
    flags: list[str] = []
    for name, value, default in (
        ("--duration", load.duration_s, 0.0),
        ("--ramp", load.ramp_s, 0.0),
        ("--timeout", load.timeout_s, DEFAULT_LOAD.timeout_s),
        ("--stall", load.stall_s, DEFAULT_LOAD.stall_s),
    ):
        flags += [name, f"{_exact_number(value)}s"] if value != default else []
    return flags + _flag_unless_default("--workers", load.workers, 0)


def _exact_number(value: float) -> str:
    """Format a number so that it reads back as the same one, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"


def _flag_unless_default(flag: str, value: object, default: object) -> list[str]:
    return [] if value == default else [flag, str(value)]
