"""The words of `moebox bench` that ask again what was asked: for reports, and after an interrupt."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from moebox.core.measure import Load, Slo, Workload

REQUESTS_PER_STREAM = 4  # requests for each stream, where nothing says how many
DEFAULT_LOAD, USUAL_WORK, DEFAULT_SLO = Load(), Workload(), Slo()


def bench_flags(
    workload: Workload, loads: Sequence[Load], *, warmup: int = 0, slo: Slo | None = None, search: bool = False
) -> list[list[str]]:
    """The flags for these loads of one workload, in as many commands as they need; `search`: loads are searched."""
    groups: dict[tuple[object, ...], list[Load]] = {}
    for load in loads:
        groups.setdefault(_alike(load, workload), []).append(load)
    return [
        _workload_flags(workload)
        + _load_flags(same, workload, usual=key[-1] == "usual")
        + _flag_unless_default("--warmup", warmup, 0)
        + _limit_flags(same[0])
        + (slo_flags(slo, search=search) if slo else [])
        for key, same in groups.items()
    ]


def _alike(load: Load, workload: Workload) -> tuple[object, ...]:
    """The same for loads that one command can ask for; its last part says "usual" where --requests is not needed."""
    usual = not load.rate and load.requests == REQUESTS_PER_STREAM * load.concurrency * workload.turns
    limit = load.concurrency if load.rate else 0
    alike = replace(load, concurrency=0, rate=0.0, requests=0)
    return alike, bool(load.rate), limit, "usual" if usual else load.requests


def prefill_decode_flags(tests: Sequence[str], workload: Workload, repeat: int, load: Load = DEFAULT_LOAD) -> list[str]:
    """The flags for tests named like pp512 and tg128."""
    flags = _of_kind("pp", tests) + _of_kind("tg", tests)
    return flags + _flag_unless_default("--repeat", repeat or 3, 3) + _prompt_flags(workload) + _limit_flags(load)


def _of_kind(kind: str, tests: Sequence[str]) -> list[str]:
    lengths = dict.fromkeys(test[2:] for test in tests if test.startswith(kind))
    return [f"--{kind}", ",".join(lengths)] if lengths else []


def slo_flags(slo: Slo, *, search: bool = False) -> list[str]:
    """The flags of what a good request keeps to, and of how many must where that is searched for."""
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


def _load_flags(loads: Sequence[Load], work: Workload, *, usual: bool) -> list[str]:
    first = loads[0]
    limit = ["--concurrency", str(first.concurrency)] if first.concurrency else []
    requests = ["--requests", str(first.requests)] if first.requests and not usual else []
    if first.rate:
        rates = ",".join(_exact_number(load.rate) for load in loads)
        return ["--rate", rates, *limit, *_of_arrivals(first), *requests]
    if work.kind == "trace":
        return limit + requests
    return ["--concurrency", ",".join(str(load.concurrency) for load in loads), *requests]


def _of_arrivals(load: Load) -> list[str]:
    flags = _flag_unless_default("--arrivals", load.arrivals, DEFAULT_LOAD.arrivals)
    if load.arrivals == "constant":
        return flags
    return flags + _flag_unless_default("--burstiness", load.burstiness, DEFAULT_LOAD.burstiness)


def _limit_flags(load: Load) -> list[str]:
    flags: list[str] = []
    for name, value, usual in (
        ("--duration", load.duration_s, 0.0),
        ("--ramp", load.ramp_s, 0.0),
        ("--timeout", load.timeout_s, DEFAULT_LOAD.timeout_s),
        ("--stall", load.stall_s, DEFAULT_LOAD.stall_s),
    ):
        flags += [name, f"{_exact_number(value)}s"] if value != usual else []
    return flags + _flag_unless_default("--workers", load.workers, 0)


def _exact_number(value: float) -> str:
    """A number that is read back as the same one, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"


def _flag_unless_default(flag: str, value: object, usual: object) -> list[str]:
    """A flag with its value, unless that is the usual one."""
    return [] if value == usual else [flag, str(value)]
