"""The words of `moebox bench` that ask again what was asked: for reports, and after an interrupt."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from moebox.core.measure import Load, Slo, Workload

PER_STREAM = 4  # requests for each stream, where nothing says how many
USUAL_LOAD, USUAL_WORK, USUAL_SLO = Load(), Workload(), Slo()


def flags_of(
    workload: Workload, loads: Sequence[Load], *, warmup: int = 0, slo: Slo | None = None, search: bool = False
) -> list[list[str]]:
    """The flags for these loads of one workload, in as many commands as they need; `search`: loads are searched."""
    groups: dict[tuple[object, ...], list[Load]] = {}
    for load in loads:
        groups.setdefault(_alike(load, workload), []).append(load)
    return [
        _of_workload(workload)
        + _of_loads(same, workload, usual=key[-1] == "usual")
        + _pair("--warmup", warmup, 0)
        + _of_bounds(same[0])
        + (slo_flags(slo, search=search) if slo else [])
        for key, same in groups.items()
    ]


def _alike(load: Load, workload: Workload) -> tuple[object, ...]:
    """The same for loads that one command can ask for; its last part says "usual" where --requests is not needed."""
    usual = not load.rate and load.requests == PER_STREAM * load.concurrency * workload.turns
    limit = load.concurrency if load.rate else 0
    alike = replace(load, concurrency=0, rate=0.0, requests=0)
    return alike, bool(load.rate), limit, "usual" if usual else load.requests


def flags_of_tests(tests: Sequence[str], workload: Workload, repeat: int, load: Load = USUAL_LOAD) -> list[str]:
    """The flags for tests named like pp512 and tg128."""
    flags = _of_kind("pp", tests) + _of_kind("tg", tests)
    return flags + _pair("--repeat", repeat or 3, 3) + _of_prompts(workload) + _of_bounds(load)


def _of_kind(kind: str, tests: Sequence[str]) -> list[str]:
    lengths = dict.fromkeys(test[2:] for test in tests if test.startswith(kind))
    return [f"--{kind}", ",".join(lengths)] if lengths else []


def slo_flags(slo: Slo, *, search: bool = False) -> list[str]:
    """The flags of what a good request keeps to, and of how many must where that is searched for."""
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "itl": slo.itl_s, "e2e": slo.e2e_s}
    text = ",".join(f"{name}={_exact(limit)}s" for name, limit in limits.items() if limit is not None)
    share = _pair("--slo-share", slo.share, USUAL_SLO.share) if search else []
    return ["--slo", text, *share] if text else []


def _of_workload(work: Workload) -> list[str]:
    flags = _pair("--workload", work.kind, "random")
    if work.kind in ("prompts", "trace"):
        flags += ["--file", work.file]
    if work.kind != "trace":
        flags += ["--input", str(work.input_tokens)] if work.kind != "prompts" else []
        flags += ["--output", str(work.output_tokens)]
    if work.kind == "turns":
        flags += ["--turns", str(work.turns), "--think", f"{_exact(work.think_s)}s"]
    if work.kind == "prefix":
        flags += ["--prefix", str(work.prefix_tokens), *_pair("--prefixes", work.prefixes, 1)]
    return flags + _of_prompts(work)


def _of_prompts(work: Workload) -> list[str]:
    flags = _pair("--seed", work.seed, 0)
    flags += ["--reuse-prompts"] if work.reuse_prompts and work.kind != "prompts" else []
    flags += _pair("--api", work.api, "chat")
    flags += [] if work.ignore_eos else ["--stop-at-eos"]
    return flags + (["--extra-body", json.dumps(work.extra)] if work.extra else [])


def _of_loads(loads: Sequence[Load], work: Workload, *, usual: bool) -> list[str]:
    first = loads[0]
    limit = ["--concurrency", str(first.concurrency)] if first.concurrency else []
    requests = ["--requests", str(first.requests)] if first.requests and not usual else []
    if first.rate:
        rates = ",".join(_exact(load.rate) for load in loads)
        return ["--rate", rates, *limit, *_of_arrivals(first), *requests]
    if work.kind == "trace":
        return limit + requests
    return ["--concurrency", ",".join(str(load.concurrency) for load in loads), *requests]


def _of_arrivals(load: Load) -> list[str]:
    flags = _pair("--arrivals", load.arrivals, USUAL_LOAD.arrivals)
    if load.arrivals == "constant":
        return flags
    return flags + _pair("--burstiness", load.burstiness, USUAL_LOAD.burstiness)


def _of_bounds(load: Load) -> list[str]:
    flags: list[str] = []
    for name, value, usual in (
        ("--duration", load.duration_s, 0.0),
        ("--ramp", load.ramp_s, 0.0),
        ("--timeout", load.timeout_s, USUAL_LOAD.timeout_s),
        ("--stall", load.stall_s, USUAL_LOAD.stall_s),
    ):
        flags += [name, f"{_exact(value)}s"] if value != usual else []
    return flags + _pair("--workers", load.workers, 0)


def _exact(value: float) -> str:
    """A number that is read back as the same one, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"


def _pair(flag: str, value: object, usual: object) -> list[str]:
    """A flag with its value, unless that is the usual one."""
    return [] if value == usual else [flag, str(value)]
