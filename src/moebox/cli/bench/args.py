"""The flags of `moebox bench` that describe the requests and the load, turned into a workload and loads."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from moebox.bench.command import REQUESTS_PER_STREAM
from moebox.cli import flags
from moebox.cli.flags import Switch
from moebox.core.measure import Api, Arrivals, Load, SearchAxis, Workload, WorkloadKind
from moebox.errors import BadInput, refuse_if
from moebox.units import parse_tokens

if TYPE_CHECKING:
    from moebox.bench.command import BenchPreset

DEFAULT_TURNS, DEFAULT_THINK_S = 16, 1.0  # of a conversation, if neither a flag nor a preset sets them
MAX_COUNT = 1_200_000  # tokens of a prompt or reply, and streams
OPEN_LOOP_REQUESTS = 100  # requests at a rate, if nothing sets the number
FILE_KINDS: tuple[WorkloadKind, ...] = ("prompts", "trace")
PRESET_FLAGS = ("workload", "file")  # with other values the preset would be another benchmark under its name
# Flags that do not make a preset another benchmark.
NEUTRAL_FLAGS = (
    "arrivals",
    "burstiness",
    "ramp",
    "seed",
    "reuse_prompts",
    "api",
    "timeout",
    "stall",
    "workers",
    "warmup",
)
# Flags of one workload only.
KIND_FLAGS: dict[WorkloadKind, tuple[str, ...]] = {"turns": ("turns", "think"), "prefix": ("prefix", "prefixes")}
# Flags that --pp and --tg ignore: they send one request at a time, with their own lengths.
LOAD_FLAGS: tuple[str, ...] = ("concurrency", "rate", "requests", "duration", "ramp", "warmup", "workload", "input")
LOAD_FLAGS += ("output", "file", "turns", "think", "prefix", "prefixes", "arrivals", "burstiness")
# Flags that a workload ignores because its file sets them.
IGNORED_FLAGS: dict[WorkloadKind, tuple[str, tuple[str, ...]]] = {
    "prompts": ("prompts of a file are sent as they are", ("input", "reuse_prompts")),
    "trace": ("a trace has its own times and lengths", ("rate", "arrivals", "burstiness", "ramp", "input", "output")),
}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArgs:
    """The requests and the load, as flags; None if a flag was not given."""

    concurrency: str | None = None
    "Concurrent requests, or a sweep: 1,8,32,128. Default: 1."
    rate: str | None = None
    "Requests a second (open loop), or a sweep; --concurrency then limits the requests in flight, if given."
    arrivals: Arrivals | None = None
    "How requests arrive in an open loop (--rate). Default: poisson."
    burstiness: float | None = None
    "Shape of the gamma distribution of gaps between requests: 1 (default) is Poisson, below 1 comes in bursts."
    requests: int | None = None
    "Requests for each load. Default: four for each stream, unless --duration is given."
    duration: str | None = None
    "Send no new request after this time, like 60s."
    ramp: str | None = None
    "Build the load up over this time."
    warmup: int | None = None
    "Requests sent before the measurement, and not counted."
    workload: WorkloadKind | None = None
    "random words (default), code, a prompts file, turns of conversations, a shared prefix, or a trace."
    input: str | None = None
    "Prompt tokens, like 8192 or 8k. Default: 256."
    output: str | None = None
    "Reply tokens. Default: 100."
    file: Path | None = None
    "The prompts (JSON lines or ShareGPT) or the trace."
    turns: int | None = None
    "Turns of each conversation. Default: 16."
    think: str | None = None
    "Pause between a reply and the next turn. Default: 1s."
    prefix: str | None = None
    "Tokens that requests share (workload prefix)."
    prefixes: int | None = None
    "How many different shared prefixes."
    seed: int = 0
    "Seed of arrivals and lengths; with --reuse-prompts of the prompts too."
    reuse_prompts: Switch = False
    "Send the same prompts as before with this seed, so that a prefix cache may help. Default: no prompt is sent twice."
    api: Api = "chat"
    "The API to call."
    stop_at_eos: Switch = False
    "Let the model end its replies before --output tokens."
    extra_body: str = ""
    "JSON merged into every request's body."
    timeout: str = "2h"
    "Longest time for one request."
    stall: str = "30m"
    "Longest silence within one request."
    workers: int = 0
    "Client processes; 0 chooses the number."

    def selected(self, names: tuple[str, ...]) -> dict[str, object]:
        """Return these flags with their values."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A workload and the loads to measure it at."""

    workload: Workload
    loads: tuple[Load, ...]
    warmup: int = 0
    name: str = ""  # of the preset; it ends in "-changed" if a flag changed the benchmark

    def load_at(self, axis: str, value: float) -> Load:
        """Return the first load with its concurrency or rate replaced."""
        first = self.loads[0]
        if axis == "rate":
            return replace(first, rate=value)
        streams = int(value)
        scaled = max(streams, round(first.requests * streams / max(1, first.concurrency))) if first.requests else 0
        return replace(first, concurrency=streams, requests=scaled)


def make_bench_plan(args: BenchArgs, name: str, search: SearchAxis | None = None) -> BenchPlan:
    """Turn flags, and the preset called `name` if any, into a workload and loads; BadInput names a wrong flag.

    `search`: the axis along which loads are searched, starting at the given one.
    """
    base = None
    if name:
        from moebox.bench.command import find_preset

        base = find_preset(name)
        refused = flags.given_flags(**args.selected(PRESET_FLAGS))
        refuse_if(
            refused,
            f"--preset {name} sets the workload: it does not take {' or '.join(refused)}",
            hint="leave --preset out; lengths, loads and request counts may be given with it",
        )
    workload = _make_workload(args, base)
    _refuse_load_conflicts(args, workload, search)
    warmup = args.warmup or 0
    refuse_if(warmup < 0, "--warmup must be 0 or more")
    loads = _make_loads(args, workload, base)
    if base:
        neutral = BenchArgs(**args.selected(NEUTRAL_FLAGS))  # type: ignore[arg-type]
        original = _make_workload(neutral, base)
        if (workload, loads) != (original, _make_loads(neutral, original, base)):
            name = f"{name}-changed"
    return BenchPlan(workload=workload, loads=loads, warmup=warmup, name=name)


def refuse_load_flags(args: BenchArgs, **others: object) -> None:
    """Raise BadInput for flags that --pp and --tg would ignore."""
    ignored = flags.given_flags(**args.selected(LOAD_FLAGS), **others)
    refuse_if(
        ignored,
        f"--pp and --tg send one request at a time and do not take {', '.join(ignored)}",
        hint="leave it out, or run `moebox bench` again without --pp and --tg",
    )


def _refuse_load_conflicts(args: BenchArgs, workload: Workload, search: SearchAxis | None) -> None:
    """Raise BadInput for open-loop flags without a rate, and for lists of which only the first would count."""
    if args.rate is None and search != "rate":
        flags.refuse_without("--rate", arrivals=args.arrivals, burstiness=args.burstiness)
    if args.arrivals == "constant":
        flags.refuse_unused("--arrivals constant has equal gaps", burstiness=args.burstiness)
    single: list[tuple[str, str | None, str]] = []
    if search:
        if workload.kind == "trace" and search == "rate":
            flags.refuse_unused("a trace has its own times", search=search)
        start = "--search starts at one load"
        single += [("concurrency", args.concurrency, start), ("rate", args.rate, start)]
    if workload.kind == "trace" or args.rate is not None:
        single.append(("concurrency", args.concurrency, "an open loop has one limit of requests in flight"))
    for name, text, reason in single:
        if text and "," in text:
            raise BadInput(f"--{name} {text}: {reason}", hint=f"--{name} {text.partition(',')[0]}")


def _make_workload(args: BenchArgs, base: "BenchPreset | None") -> Workload:
    """Return the preset's workload, or the default of its kind, with what the flags change."""
    kind = args.workload or "random"
    usual = (
        Workload(kind=kind, turns=DEFAULT_TURNS, think_s=DEFAULT_THINK_S) if kind == "turns" else Workload(kind=kind)
    )
    before = base.workload if base else usual
    for other, names in KIND_FLAGS.items():
        if other != before.kind:
            flags.refuse_without(f"--workload {other}", **args.selected(names))
    if before.kind not in FILE_KINDS:
        flags.refuse_without("--workload prompts or trace", file=args.file)
    if not (args.prefix or before.prefix_tokens):
        flags.refuse_without("--prefix", prefixes=args.prefixes)
    reason, names = IGNORED_FLAGS.get(before.kind, ("", ()))
    flags.refuse_unused(reason, **args.selected(names))
    needs_file = before.kind in FILE_KINDS and not (args.file or before.file)
    refuse_if(needs_file, f"--workload {before.kind} needs --file")
    refuse_if(args.file and not args.file.is_file(), f"{args.file}: no such file")
    workload = replace(
        before,
        input_tokens=_tokens("--input", args.input, before.input_tokens),
        output_tokens=_tokens("--output", args.output, before.output_tokens),
        file=str(args.file) if args.file else before.file,
        turns=_positive("--turns", args.turns, before.turns) if before.kind == "turns" else 1,
        think_s=_seconds("--think", args.think, before.think_s),
        prefix_tokens=_tokens("--prefix", args.prefix, before.prefix_tokens),
        prefixes=_positive("--prefixes", args.prefixes, before.prefixes),
        seed=args.seed,
        reuse_prompts=args.reuse_prompts,
        api=args.api,
        ignore_eos=before.ignore_eos and not args.stop_at_eos,
        extra=before.extra | _parse_extra_body(args.extra_body),
    )
    refuse_if(min(workload.input_tokens, workload.output_tokens) < 1, "--input and --output must be 1 or more")
    return workload


def _make_loads(args: BenchArgs, workload: Workload, base: "BenchPreset | None") -> tuple[Load, ...]:
    """Return a load for each concurrency or rate; a trace has its own times."""
    burstiness = 1.0 if args.burstiness is None else args.burstiness
    refuse_if(burstiness <= 0, "--burstiness must be above 0")
    common = Load(
        arrivals=args.arrivals or "poisson",
        burstiness=burstiness,
        requests=_positive("--requests", args.requests, 0),
        duration_s=_seconds("--duration", args.duration, 0.0),
        ramp_s=_seconds("--ramp", args.ramp, 0.0),
        timeout_s=_seconds("--timeout", args.timeout, 0.0),
        stall_s=_seconds("--stall", args.stall, 0.0),
        workers=args.workers,
    )
    fixed = bool(common.requests or common.duration_s)  # a duration alone means: without a limit
    streams = parse_counts("--concurrency", args.concurrency)
    limited = replace(common, concurrency=streams[0] if streams else 0)
    if workload.kind == "trace":
        return (limited,)
    if args.rate is not None:
        requests = common.requests if fixed else (base.requests if base else 0) or OPEN_LOOP_REQUESTS
        rates = flags.parse_numbers(
            args.rate.split(","),
            float,
            lambda rate: 0 < rate < 1e6,
            not_numbers=f"--rate: {args.rate!r} is not a list of rates",
            hint="write it like 0.5,1,2",
        )
        return tuple(replace(limited, rate=rate, requests=requests) for rate in rates)
    loads = []
    for number in streams or (base.concurrency if base else (1,)):
        usual = base.request_count(number) if base else REQUESTS_PER_STREAM * number * workload.turns
        requests = common.requests if fixed else usual
        loads.append(replace(common, concurrency=min(number, requests or number), requests=requests))
    return tuple(loads)


def parse_counts(flag: str, text: str | None) -> tuple[int, ...]:
    """Parse counts written like "1,8,32"."""
    return flags.parse_numbers(
        text.split(",") if text else (),
        parse_tokens,
        lambda value: 1 <= value <= MAX_COUNT,
        not_numbers=f"{flag}: {text!r} is not a list of counts",
        out_of_range=f"{flag}: {text!r} is out of range: each count is from 1 to {MAX_COUNT:,}",
        hint="write it like 1,8,32",
    )


def _tokens(flag: str, text: str | None, default: int) -> int:
    return default if text is None else flags.parse_value(flag, text, parse_tokens)


def _seconds(flag: str, text: str | None, default: float) -> float:
    return flags.parse_duration(flag, text) if text else default


def _positive(flag: str, value: int | None, default: int) -> int:
    refuse_if(value is not None and value < 1, f"{flag} must be 1 or more")
    return default if value is None else value


def _parse_extra_body(text: str) -> dict[str, object]:
    import json

    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"--extra-body is not JSON: {problem}") from None
    refuse_if(not isinstance(value, dict), "--extra-body is not a JSON object")
    return dict(value)
