"""The flags of `moebox bench` that describe the requests and the load, turned into a workload and loads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from cyclopts import Parameter

from moebox import codec
from moebox.bench.command import REQUESTS_PER_STREAM
from moebox.cli import flags
from moebox.cli.flags import parse_counts, parse_rates, parse_token_count
from moebox.core.measure import Load, SearchAxis
from moebox.core.setting import apply_settings
from moebox.core.workload_file import WorkloadFile, find_workload_file, shipped_workloads
from moebox.errors import BadInput, refuse_if

OPEN_LOOP_REQUESTS = 100  # requests at a rate, if nothing sets the number


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArgs:
    """The requests and the load, as flags; None if a flag was not given."""

    concurrency: str | None = None
    "Concurrent requests, or a sweep: 1,8,32,128. Default: 1."
    rate: str | None = None
    "Requests a second (open loop), or a sweep; --concurrency then limits the requests in flight, if given."
    requests: int | None = None
    "Requests for each load. Default: four for each stream, unless --duration is given."
    duration: str | None = None
    "Send no new request after this time, like 60s."
    input: str | None = None
    "Prompt tokens, like 8192 or 8k. Default: 256."
    output: str | None = None
    "Reply tokens. Default: 100."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """How the server is reached."""

    tokenizer: str = ""  # a local tokenizer.json, for exact prompt lengths if the server has no /tokenize
    insecure: bool = False  # accept any TLS certificate
    ca_file: str = ""  # certificates to trust


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings(WorkloadFile):
    """What --set changes: the keys of a workload file, and the connection."""

    endpoint: ServerAccess = ServerAccess()
    label: str = ""  # a name for the result
    allow_failures: bool = False  # exit with 0 even if requests failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan(BenchSettings):
    """A workload and the loads to measure it at."""

    loads: tuple[Load, ...]
    name: str = ""  # of the workload file; it ends in "-changed" if a flag changed a published benchmark

    def load_at(self, axis: str, value: float) -> Load:
        """Return the first load with its concurrency or rate replaced."""
        first = self.loads[0]
        if axis == "rate":
            return replace(first, rate=value)
        streams = int(value)
        scaled = max(streams, round(first.requests * streams / max(1, first.concurrency))) if first.requests else 0
        return replace(first, concurrency=streams, requests=scaled)


def make_bench_plan(
    args: BenchArgs, name: str = "", settings: Sequence[str] = (), search: SearchAxis | None = None
) -> BenchPlan:
    """Turn a workload file, settings and flags into a workload and loads; BadInput names a wrong one.

    `search`: the axis along which loads are searched, starting at the given one.
    """
    base = find_workload_file(name or "random")
    whole = BenchSettings(**codec.shared_fields(base, BenchSettings))
    whole = _with_flags(apply_settings(whole, settings or ()), args)
    if args.rate and whole.concurrency == base.concurrency:  # it is of the file's closed loop
        whole = replace(whole, concurrency=())
    work = whole.workload
    unused = {"prompts": {"input": args.input}, "trace": {"input": args.input, "output": args.output}}
    flags.refuse_unused(f"{work.kind} come from a file", **unused.get(work.kind, {}))
    whole.check(search_rate=search == "rate")
    refuse_if(search == "rate" and work.kind == "trace", "a trace has its own times: it does not take --search rate")
    _refuse_several(whole, search)
    shipped = name in shipped_workloads()
    kind = name if shipped or name.endswith(".toml") else ""
    label = kind.rpartition("/")[2].removesuffix(".toml")
    if shipped and _benchmark(whole) != _benchmark(base):
        label += "-changed"
    return BenchPlan(**codec.shared_fields(whole, BenchPlan), loads=_make_loads(whole), name=label)


def _with_flags(whole: BenchSettings, args: BenchArgs) -> BenchSettings:
    refuse_if(args.requests is not None and args.requests < 1, "--requests must be 1 or more")
    work, load = whole.workload, whole.load
    prompt, reply = parse_token_count("--input", args.input), parse_token_count("--output", args.output)
    work = replace(
        work,
        input_tokens=work.input_tokens if prompt is None else prompt,
        output_tokens=work.output_tokens if reply is None else reply,
    )
    seconds = flags.parse_duration("--duration", args.duration) if args.duration else load.duration_s
    return replace(
        whole,
        workload=work,
        load=replace(load, duration_s=seconds),
        concurrency=parse_counts("--concurrency", args.concurrency) or whole.concurrency,
        rate=parse_rates(args.rate) or whole.rate,
        requests=args.requests or (0 if args.duration else whole.requests),
    )


def _refuse_several(whole: BenchSettings, search: SearchAxis | None) -> None:
    """Raise BadInput for lists of which only the first would count."""
    start, limit = "--search starts at one load", "an open loop has one limit of requests in flight"
    is_open = whole.workload.kind == "trace" or whole.rate
    for name, values, reason in (
        ("concurrency", whole.concurrency, start if search else limit if is_open else ""),
        ("rate", whole.rate, start if search else ""),
    ):
        if reason and len(values) > 1:
            text = ",".join(f"{value:g}" for value in values)
            raise BadInput(f"--{name} {text}: {reason}", hint=f"--{name} {values[0]:g}")


def _benchmark(file: WorkloadFile) -> tuple[object, ...]:
    """Return what makes a published benchmark: lengths and loads, not how its requests are drawn or sent."""
    work = replace(file.workload, seed=0, reuse_prompts=False, api="chat")
    return work, file.concurrency, file.rate, file.requests, file.requests_per_stream, file.load.duration_s


def _make_loads(file: WorkloadFile) -> tuple[Load, ...]:
    """Return a load for each concurrency or rate; a trace has its own times."""
    common = Load(**asdict(file.load), requests=file.requests)
    limited = replace(common, concurrency=file.concurrency[0] if file.concurrency else 0)
    if file.workload.kind == "trace":
        return (limited,)
    fixed = bool(common.requests or common.duration_s)  # a duration alone means: without a limit
    if file.rate:
        requests = common.requests if fixed else OPEN_LOOP_REQUESTS
        return tuple(replace(limited, rate=rate, requests=requests) for rate in file.rate)
    each = file.requests_per_stream or REQUESTS_PER_STREAM * file.workload.turns
    loads = []
    for number in file.concurrency or (1,):
        requests = common.requests if fixed else each * number
        loads.append(replace(common, concurrency=min(number, requests or number), requests=requests))
    return tuple(loads)
