"""The flags of `moebox bench` that say what is asked and how hard, turned into a workload and loads."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from moebox.bench.command import REQUESTS_PER_STREAM
from moebox.cli import flags
from moebox.core.measure import Api, Arrivals, Load, SearchAxis, Workload, WorkloadKind
from moebox.errors import BadInput, refuse_if
from moebox.units import parse_tokens

if TYPE_CHECKING:
    from moebox.bench.command import BenchPreset

TURNS = 16  # of a conversation, where neither a flag nor a preset says it
THINK_S = 1.0
MOST_TOKENS = 1_200_000  # of one prompt or reply, and streams
OPEN_LOOP = 100  # requests at a rate, where nothing says how many
OF_A_FILE: tuple[WorkloadKind, ...] = ("prompts", "trace")
# What a preset is made of: with other values it would be another benchmark under its name.
OF_A_PRESET = ("workload", "file")
# Flags of one workload alone.
OF_A_KIND: dict[WorkloadKind, tuple[str, ...]] = {"turns": ("turns", "think"), "prefix": ("prefix", "prefixes")}
# What --pp and --tg have no use for: they send one request at a time, and their own lengths.
OF_A_LOAD: tuple[str, ...] = ("concurrency", "rate", "requests", "duration", "ramp", "warmup", "workload", "input")
OF_A_LOAD += ("output", "file", "turns", "think", "prefix", "prefixes", "arrivals", "burstiness")
# What a workload brings along, so that a flag for it would be ignored.
OWN: dict[WorkloadKind, tuple[str, tuple[str, ...]]] = {
    "prompts": ("prompts of a file are sent as they are", ("input", "reuse_prompts")),
    "trace": ("a trace has its own times and lengths", ("rate", "arrivals", "burstiness", "ramp", "input", "output")),
}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArgs:
    """What is asked and how hard, as flags; None where a flag was not given."""

    concurrency: str | None = None
    "Concurrent requests, or a sweep: 1,8,32,128. 1 when left out."
    rate: str | None = None
    "Requests a second (open loop), or a sweep; --concurrency then limits what is in flight, if given."
    arrivals: Arrivals | None = None
    "How requests arrive in an open loop (--rate); poisson when left out."
    burstiness: float | None = None
    "Shape of the gamma distribution of gaps between requests: 1 (when left out) is Poisson, below 1 comes in bursts."
    requests: int | None = None
    "Requests for each load; four for each stream when neither this nor --duration is given."
    duration: str | None = None
    "No new request after this long, like 60s."
    ramp: str | None = None
    "Build the load up over this long."
    warmup: int | None = None
    "Requests sent before the measurement, and not counted."
    workload: WorkloadKind | None = None
    "random words (when left out), code, a prompts file, turns of conversations, a shared prefix, or a trace."
    input: str | None = None
    "Prompt tokens, like 8192 or 8k; 256 when left out."
    output: str | None = None
    "Tokens to ask for; 100 when left out."
    file: Path | None = None
    "The prompts (JSON lines or ShareGPT) or the trace."
    turns: int | None = None
    "Turns of each conversation; 16 when left out."
    think: str | None = None
    "Pause between a reply and the next turn; 1s when left out."
    prefix: str | None = None
    "Tokens that requests share (workload prefix)."
    prefixes: int | None = None
    "How many different shared prefixes."
    seed: int = 0
    "Arrivals and lengths follow from it; prompts too, with --reuse-prompts."
    reuse_prompts: Annotated[bool, Parameter(negative=())] = False
    "Send the same prompts as before with this seed: a prefix cache may then answer. Otherwise no prompt is sent twice."
    api: Api = "chat"
    "Which API is called."
    stop_at_eos: Annotated[bool, Parameter(negative=())] = False
    "Let the model end its replies before --output tokens."
    extra_body: str = ""
    "JSON merged into every request's body."
    timeout: str = "2h"
    "Longest time for one request, whatever arrives meanwhile."
    stall: str = "30m"
    "Longest silence within one request."
    workers: int = 0
    "Client processes; chosen when 0."

    def selected(self, names: tuple[str, ...]) -> dict[str, object]:
        """These flags by name, with what was given for them."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A workload and the loads it is driven at."""

    workload: Workload
    loads: tuple[Load, ...]
    warmup: int = 0
    name: str = ""  # of the preset, said to be changed where a flag changed it

    def load_at(self, axis: str, value: float) -> Load:
        """The first load with its concurrency or rate replaced."""
        if axis == "rate":
            return replace(self.loads[0], rate=value)
        streams = int(value)
        first = self.loads[0]
        scaled = max(streams, round(first.requests * streams / max(1, first.concurrency))) if first.requests else 0
        return replace(first, concurrency=streams, requests=scaled)


def make_bench_plan(args: BenchArgs, name: str, search: SearchAxis | None = None) -> BenchPlan:
    """Flags, over a preset where one is named, to a workload and loads; BadInput says which flag cannot be meant.

    `search`: along which axis loads are searched, beginning with the one that is asked for.
    """
    base = _preset(name, args) if name else None
    workload = _workload(args, base)
    _refuse_pace(args, workload, search)
    common = _common(args)
    warmup = args.warmup or 0
    refuse_if(warmup < 0, "--warmup is not below 0")
    loads = _loads(args, common, workload, base)
    changed = base is not None and (workload, loads) != _unchanged(_bare(args), base)
    return BenchPlan(workload=workload, loads=loads, warmup=warmup, name=f"{name}-changed" if changed else name)


def refuse_load_flags(args: BenchArgs, **others: object) -> None:
    """--pp and --tg are tests of their own: what they would ignore is refused."""
    ignored = flags.given_flags(**args.selected(OF_A_LOAD), **others)
    refuse_if(
        ignored,
        f"--pp and --tg send one request at a time and do not take {', '.join(ignored)}",
        hint="leave it out, or run `moebox bench` once more without --pp and --tg",
    )


def _refuse_pace(asked: BenchArgs, workload: Workload, search: SearchAxis | None) -> None:
    """BadInput for flags of an open loop where there is none, and for loads of which only the first would count."""
    if asked.rate is None and search != "rate":
        flags.refuse_without("--rate", arrivals=asked.arrivals, burstiness=asked.burstiness)
    if asked.arrivals == "constant":
        flags.refuse_unused("--arrivals constant has equal gaps", burstiness=asked.burstiness)
    if search:
        _refuse_in_search(asked, workload, search)
    if workload.kind == "trace" or asked.rate is not None:
        _refuse_several("one limit is kept to in an open loop", concurrency=asked.concurrency)


def _refuse_in_search(asked: BenchArgs, workload: Workload, search: SearchAxis) -> None:
    """BadInput for what a search cannot change, and for more than it begins with."""
    if workload.kind == "trace" and search == "rate":
        flags.refuse_unused("a trace has its own times", search=search)
    _refuse_several("--search starts at one load", concurrency=asked.concurrency, rate=asked.rate)


def _refuse_several(why: str, **lists: str | None) -> None:
    """BadInput for a list of which only the first would be taken."""
    for name, text in lists.items():
        if text and "," in text:
            raise BadInput(f"--{name} {text}: {why}", hint=f"--{name} {text.partition(',')[0]}")


def _unchanged(asked: BenchArgs, base: "BenchPreset") -> tuple[Workload, tuple[Load, ...]]:
    workload = _workload(asked, base)
    return workload, _loads(asked, _common(asked), workload, base)


def _bare(asked: BenchArgs) -> BenchArgs:
    """The same without the flags that change what a preset asks or how often."""
    kept = ("arrivals", "burstiness", "ramp", "seed", "reuse_prompts", "api", "timeout", "stall", "workers", "warmup")
    return BenchArgs(**{field.name: getattr(asked, field.name) for field in fields(asked) if field.name in kept})


def _preset(name: str, asked: BenchArgs) -> "BenchPreset":
    from moebox.bench.command import find_preset

    base = find_preset(name)
    refused = flags.given_flags(**asked.selected(OF_A_PRESET))
    refuse_if(
        refused,
        f"--preset {name} says what is asked: it does not take {' or '.join(refused)}",
        hint="leave --preset out; lengths, loads and counts of requests may be given with it",
    )
    return base


def _workload(asked: BenchArgs, base: "BenchPreset | None") -> Workload:
    before = base.workload if base else _usual_workload(asked.workload or "random")
    _refuse_flags(asked, before)
    workload = replace(
        before,
        input_tokens=_tokens("--input", asked.input, before.input_tokens),
        output_tokens=_tokens("--output", asked.output, before.output_tokens),
        file=str(asked.file) if asked.file else before.file,
        turns=_whole("--turns", asked.turns, before.turns) if before.kind == "turns" else 1,
        think_s=_seconds("--think", asked.think, before.think_s),
        prefix_tokens=_tokens("--prefix", asked.prefix, before.prefix_tokens),
        prefixes=_whole("--prefixes", asked.prefixes, before.prefixes),
        seed=asked.seed,
        reuse_prompts=asked.reuse_prompts,
        api=asked.api,
        ignore_eos=before.ignore_eos and not asked.stop_at_eos,
        extra=before.extra | _extra(asked.extra_body),
    )
    refuse_if(min(workload.input_tokens, workload.output_tokens) < 1, "--input and --output are above 0")
    return workload


def _refuse_flags(asked: BenchArgs, workload: Workload) -> None:
    """BadInput for flags of another kind of workload, and for a file that is missing."""
    for kind, names in OF_A_KIND.items():
        if kind != workload.kind:
            flags.refuse_without(f"--workload {kind}", **asked.selected(names))
    if workload.kind not in OF_A_FILE:
        flags.refuse_without("--workload prompts or trace", file=asked.file)
    if not (asked.prefix or workload.prefix_tokens):
        flags.refuse_without("--prefix", prefixes=asked.prefixes)
    why, names = OWN.get(workload.kind, ("", ()))
    flags.refuse_unused(why, **asked.selected(names))
    _refuse_file(asked.file, workload)


def _refuse_file(given: Path | None, workload: Workload) -> None:
    """BadInput where a workload of a file has none, or it is not there."""
    if workload.kind in OF_A_FILE:
        refuse_if(not (given or workload.file), f"--workload {workload.kind} needs --file")
    refuse_if(given and not given.is_file(), f"{given}: no such file")


def _usual_workload(kind: WorkloadKind) -> Workload:
    return Workload(kind=kind, turns=TURNS, think_s=THINK_S) if kind == "turns" else Workload(kind=kind)


def _common(asked: BenchArgs) -> Load:
    burstiness = 1.0 if asked.burstiness is None else asked.burstiness
    refuse_if(burstiness <= 0, "--burstiness is above 0")
    return Load(
        arrivals=asked.arrivals or "poisson",
        burstiness=burstiness,
        requests=_whole("--requests", asked.requests, 0),
        duration_s=_seconds("--duration", asked.duration, 0.0),
        ramp_s=_seconds("--ramp", asked.ramp, 0.0),
        timeout_s=_seconds("--timeout", asked.timeout, 0.0),
        stall_s=_seconds("--stall", asked.stall, 0.0),
        workers=asked.workers,
    )


def _loads(asked: BenchArgs, common: Load, workload: Workload, base: "BenchPreset | None") -> tuple[Load, ...]:
    """One load for each concurrency or rate; a trace has its own times."""
    streams = parse_counts("--concurrency", asked.concurrency)
    limited = replace(common, concurrency=streams[0] if streams else 0)
    if workload.kind == "trace":
        return (limited,)
    if asked.rate is not None:
        requests = _requests(common, (base.requests if base else 0) or OPEN_LOOP)
        return tuple(replace(limited, rate=rate, requests=requests) for rate in _rates(asked.rate))
    usual = base.concurrency if base else (1,)
    return tuple(_closed(common, number, _usual(number, workload, base)) for number in streams or usual)


def _closed(common: Load, streams: int, usual: int) -> Load:
    """So many streams, each sending its next request when the one before has ended."""
    requests = _requests(common, usual)
    return replace(common, concurrency=min(streams, requests or streams), requests=requests)


def _requests(common: Load, usual: int) -> int:
    """How many are sent: as asked, without end for a duration, as usual otherwise."""
    return usual if not common.requests and not common.duration_s else common.requests


def _usual(streams: int, workload: Workload, base: "BenchPreset | None") -> int:
    return base.request_count(streams) if base else REQUESTS_PER_STREAM * streams * workload.turns


def parse_counts(flag: str, text: str | None) -> tuple[int, ...]:
    """Numbers written like "1,8,32"."""
    return flags.parse_numbers(
        text.split(",") if text else (),
        parse_tokens,
        lambda value: 1 <= value <= MOST_TOKENS,
        not_numbers=f"{flag}: {text!r} is not a list of counts",
        out_of_range=f"{flag}: {text!r} holds a count out of range",
        hint="write it like 1,8,32",
    )


def _rates(text: str) -> tuple[float, ...]:
    wrong = f"--rate: {text!r} is not a list of rates"
    return flags.parse_numbers(
        text.split(","), float, lambda rate: 0 < rate < 1e6, not_numbers=wrong, hint="write it like 0.5,1,2"
    )


def _tokens(flag: str, text: str | None, usual: int) -> int:
    return usual if text is None else flags.parse_value(flag, text, parse_tokens)


def _seconds(flag: str, text: str | None, usual: float) -> float:
    return flags.parse_duration(flag, text) if text else usual


def _whole(flag: str, value: int | None, usual: int) -> int:
    if value is None:
        return usual
    refuse_if(value < 1, f"{flag} is above 0")
    return value


def _extra(text: str) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as problem:
        raise BadInput(f"--extra-body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise BadInput("--extra-body is not a JSON object")
    return value
