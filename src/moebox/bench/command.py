"""Flags of `moebox bench` that repeat a measurement, for reports and after an interrupt."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from moebox.core.measure import Load, Slo, Workload
from moebox.core.setting import flag_words, setting_flags
from moebox.core.workload_file import WorkloadFile, find_workload_file

REQUESTS_PER_STREAM = 4  # if no number of requests is given
DEFAULT_LOAD = Load()


def bench_flags(
    workload: Workload, loads: Sequence[Load], *, warmup: int = 0, slo: Slo | None = None, search: bool = False
) -> list[list[str]]:
    """Return the flags for these loads of one workload, in as many commands as needed; `search`: loads are searched."""
    commands: dict[tuple[object, ...], list[Load]] = {}  # loads that one command can ask for
    alike = len(loads) > 1 and len({load.requests for load in loads}) == 1
    for load in loads:
        default = not (alike or load.rate) and load.requests == REQUESTS_PER_STREAM * load.concurrency * workload.turns
        same = replace(load, concurrency=0, rate=0.0, requests=0)
        key = (same, bool(load.rate), load.concurrency if load.rate else 0, None if default else load.requests)
        commands.setdefault(key, []).append(load)
    after = ["--set", f"warmup={warmup}"] if warmup else []
    if slo:
        limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "itl": slo.itl_s, "e2e": slo.e2e_s}
        parts = [f"{name}={_exact_number(limit)}s" for name, limit in limits.items() if limit is not None]
        parts += [f"share={_exact_number(slo.share)}"] if parts and search and slo.share != Slo().share else []
        after += flag_words({"--slo": ",".join(parts)})
    found = []
    for (*_, requests), group in commands.items():
        rates = ",".join(_exact_number(load.rate) for load in group if load.rate)
        limited = group[:1] if rates or workload.kind == "trace" else group  # an open loop has one
        streams = ",".join(str(load.concurrency) for load in limited if load.concurrency)
        words = flag_words({"--rate": rates, "--concurrency": streams, "--requests": requests or ""})
        found.append(_workload_flags(workload) + words + _sending_flags(group[0]) + after)
    return found


def prefill_decode_flags(tests: Sequence[str], workload: Workload, repeat: int, load: Load = DEFAULT_LOAD) -> list[str]:
    """Return the flags for tests named like pp512 and tg128."""
    lengths = {kind: dict.fromkeys(test[2:] for test in tests if test.startswith(kind)) for kind in ("pp", "tg")}
    flags = flag_words({f"--{kind}": ",".join(each) for kind, each in lengths.items()})
    repeats = ["--set", f"repeat={repeat}"] if repeat not in (0, WorkloadFile().repeat) else []
    prompts = replace(workload, kind="random", input_tokens=256, output_tokens=100, salt="")
    return flags + repeats + setting_flags(prompts, Workload(), "workload.") + _sending_flags(load)


def _workload_flags(work: Workload) -> list[str]:
    usual = find_workload_file(work.kind).workload
    flags = [] if work.kind == "random" else ["--workload", work.kind]
    if work.kind != "trace":
        flags += ["--input", str(work.input_tokens)] if work.kind != "prompts" else []
        flags += ["--output", str(work.output_tokens)]
    same = {"input_tokens": usual.input_tokens, "output_tokens": usual.output_tokens, "salt": ""}
    if work.kind == "prompts":
        same["reuse_prompts"] = usual.reuse_prompts
    return flags + setting_flags(replace(work, **same), usual, "workload.")  # type: ignore[arg-type]


def _sending_flags(load: Load) -> list[str]:
    """Return the flags for how requests are sent, without their number."""
    duration = ["--duration", f"{_exact_number(load.duration_s)}s"] if load.duration_s else []
    sent = replace(load, concurrency=0, rate=0.0, requests=0, duration_s=0.0)
    if not load.rate:
        sent = replace(sent, arrivals=DEFAULT_LOAD.arrivals)
    if not load.rate or load.arrivals == "constant":
        sent = replace(sent, burstiness=DEFAULT_LOAD.burstiness)
    return duration + setting_flags(sent, DEFAULT_LOAD, "load.")


def _exact_number(value: float) -> str:
    """Format a number so that it reads back as the same one, without an exponent."""
    return f"{Decimal(repr(value)).normalize():f}"
