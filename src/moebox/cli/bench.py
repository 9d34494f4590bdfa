"""`moebox bench`: measure a workload or a sweep at any OpenAI-compatible endpoint; `bench import` reads other tools."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.bench.command import REQUESTS_PER_STREAM, bench_flags
from moebox.bench.importers import load_results
from moebox.bench.measure import MeasuredLoad, measure_load
from moebox.bench.pptg import measure_prefill_decode
from moebox.bench.probe import ProbedEndpoint, probe_endpoint
from moebox.bench.search import find_highest_load, parse_slo
from moebox.cli import flags
from moebox.cli.bench_results import (
    LiveLine,
    ResultKeeper,
    load_label,
    print_results,
    print_test_rows,
    write_measurement,
)
from moebox.cli.flags import AsJson, KeyEnv, ServedModel, Settings, Target, parse_counts, parse_rates, parse_token_count
from moebox.cli.output import exit_code, print_note, print_result, stderr_console, stdout_console
from moebox.cli.target import find_endpoint, warn_simulation
from moebox.core.measure import Load, SearchAxis, Slo
from moebox.core.result import result_document
from moebox.core.setting import apply_settings, flag_words, setting_flags
from moebox.core.workload_file import WorkloadFile, find_workload_file, shipped_workloads
from moebox.detect.stall import ServerStalled
from moebox.errors import INTERRUPTED, AnswerIsNo, BadInput, ExternalError, refuse_if
from moebox.escape import printable_line
from moebox.files import report_write_errors
from moebox.loose import Document
from moebox.serve.state import hold_endpoint
from moebox.store.run import Run, safe_name

Counts = tuple[int, ...]
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
    whole = apply_settings(BenchSettings(**codec.shared_fields(base, BenchSettings)), settings or ())
    refuse_if(args.requests is not None and args.requests < 1, "--requests must be 1 or more")
    work, load = whole.workload, whole.load
    if (prompt := parse_token_count("--input", args.input)) is not None:
        work = replace(work, input_tokens=prompt)
    if (reply := parse_token_count("--output", args.output)) is not None:
        work = replace(work, output_tokens=reply)
    if args.duration:
        load = replace(load, duration_s=flags.parse_duration("--duration", args.duration))
        whole = replace(whole, requests=0)
    streams = parse_counts("--concurrency", args.concurrency) or whole.concurrency
    if args.rate and streams == base.concurrency:  # it is of the file's closed loop
        streams = ()
    rate, requests = parse_rates(args.rate) or whole.rate, args.requests or whole.requests
    whole = replace(whole, workload=work, load=load, concurrency=streams, rate=rate, requests=requests)
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


def _refuse_several(whole: BenchSettings, search: SearchAxis | None) -> None:
    """Raise BadInput for lists of which only the first would count."""
    is_open = whole.workload.kind == "trace" or whole.rate
    reason = "--search starts at one load" if search else "an open loop has one limit of requests in flight"
    for name, values, is_limit in (("concurrency", whole.concurrency, is_open), ("rate", whole.rate, False)):
        if (search or is_limit) and len(values) > 1:
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


def bench(
    target: Target = "",
    /,
    *,
    model: ServedModel = "",
    key_env: KeyEnv = "",
    workload: str = "",
    args: BenchArgs = BenchArgs(),
    slo: str = "",
    search: SearchAxis | None = None,
    pp: str = "",
    tg: str = "",
    settings: Settings = (),
    output_file: Annotated[Path | None, Parameter(name=["--output-file", "-o"])] = None,
    run: str = "",
    json: AsJson = False,
) -> int:
    """Measure how fast an endpoint is, and report if the client was the limit.

    Args:
        workload: A workload file; a shipped one that repeats a published benchmark (shenanigans-sm120, lambda,
            aiperf-16-turns, long-generation, …); or a kind: random (default), code, turns, prefix, prompts, trace.
        args: Lengths and load; they replace those of the workload.
        slo: Limits that a good request keeps, like ttft=2s,tpot=50ms; adds goodput. In a search share=0.95 is the share
            of requests that must; 0.9 without it.
        search: Find the highest concurrency or rate that meets --slo; starts at --concurrency or --rate.
        pp: Prefill only, for these prompt lengths (512,4096): PP cold and warm.
        tg: Decode only, for these reply lengths (128): TG.
        settings: Another value of the workload file, such as load.arrivals=constant, workload.turns=8 or warmup=4,
            or of the connection, such as endpoint.ca_file=ca.pem; label=NAME for the result; allow_failures=true for
            exit code 0 after failed requests; repeatable. docs/metrics.md lists them.
        output_file: Write the result to this file (JSON), and the samples beside it.
        run: Keep the result in this run's measurements. Default: a new run, unless --output-file is given.
    """
    prompts, replies = parse_counts("--pp", pp), parse_counts("--tg", tg)
    if prompts or replies:
        ignored = flags.given_flags(**asdict(args), workload=workload, slo=slo, search=search)
        text = f"--pp and --tg send one request at a time and do not take {', '.join(ignored)}"
        refuse_if(ignored, text, hint="leave it out, or run `moebox bench` again without --pp and --tg")
    limits = parse_slo(slo) if slo else None
    refuse_if("share=" in slo and not search, "--slo share=… needs --search")
    refuse_if(search and limits is None, "--search needs --slo", hint="--slo ttft=2s,tpot=50ms")
    plan = make_bench_plan(args, workload, settings, search)
    access = plan.endpoint
    endpoint = find_endpoint(target, model=model, key_env=key_env, insecure=access.insecure, ca_file=access.ca_file)
    keeper = ResultKeeper(output_file, run, plan.label or plan.name, endpoint=endpoint)
    keeper.connection = tuple(setting_flags(access, ServerAccess(), "endpoint."))
    timeout_s = plan.loads[0].timeout_s
    probed = probe_endpoint(endpoint, api=plan.workload.api, timeout_s=timeout_s, notify=print_note, **asdict(access))
    if not json:
        about = f"{printable_line(endpoint.model)} at {endpoint.base_url}; prompt lengths by {probed.words.source}"
        print_note((about, "dim"))
    warn_simulation(probed.simulation)
    if prompts or replies:
        with hold_endpoint(endpoint.base_url, "moebox bench"):
            return _run_tests(probed, prompts, replies, plan, keeper, json=json)
    words = [*filter(None, [target]), *flag_words({"model": model, "key_env": key_env, "run": run})]
    words += keeper.connection
    words += setting_flags(BenchSettings(label=plan.label, allow_failures=plan.allow_failures), BenchSettings())
    sweep = _Sweep(probed, plan, limits, keeper)
    with hold_endpoint(endpoint.base_url, "moebox bench"):
        best = sweep.run_loads(search)
    results = [result_document(measured.result) for measured in sweep.done]
    if results:
        whole: Document = results[0] if len(results) == 1 else {"kind": "sweep", "results": results}
        whole = {"kind": "sweep", "results": results, "best": best} if search else whole
        try:
            print_result(json, whole, lambda: print_results(stdout_console(), results, best=best))
        finally:  # the reader of the pipe may be gone
            keeper.write_document(whole)
        _print_own_run(keeper, json)
    left = _resume_commands(sweep, search, words) if sweep.was_interrupted or sweep.server_gone else []
    for more in left:
        print_note(f"resume with: {shlex.join(['moebox', 'bench', *more])}")
    keeper.note_server(left)
    keeper.raise_if_lost()
    if sweep.server_gone:
        raise sweep.server_gone
    if sweep.was_interrupted:
        return INTERRUPTED
    if search and best is None:
        raise AnswerIsNo(f"even {load_label(results[0])} did not meet the SLO")
    failed = any(measured.result.bad_requests for measured in sweep.done) and not plan.allow_failures
    return exit_code(any(measured.result.completed for measured in sweep.done) and not failed)


class _ServerGone(ExternalError):
    """The server stopped listening during the measurement."""


class _Sweep:
    """Measures one load after the other and keeps each result."""

    def __init__(self, probed: ProbedEndpoint, plan: BenchPlan, slo: Slo | None, keeper: ResultKeeper) -> None:
        self.probed, self.plan, self.slo, self.keeper = probed, plan, slo, keeper
        self.done: list[MeasuredLoad] = []
        self.sent = 0  # requests so far: the next load takes the prompts of a file after these
        self.stopped = False  # before the first request of a load was measured
        self.server_gone: ExternalError | None = None

    def run_loads(self, search: SearchAxis | None) -> int | None:
        """Measure every load of the plan; or search the highest that meets the SLO, and return its index if any."""
        first = self.plan.loads[0]
        try:
            if search and self.slo:
                start = (first.rate if search == "rate" else first.concurrency) or 1
                measure = lambda value: self.measure_load(self.plan.load_at(search, value))  # noqa: E731
                return find_highest_load(measure, self.slo, axis=search, start=start)
            for load in self.plan.loads:
                if self.measure_load(load).result.partial:
                    break
        except KeyboardInterrupt:
            self.stopped = True
        except (_ServerGone, ServerStalled) as problem:
            self.server_gone = problem
        return None

    def measure_load(self, load: Load) -> MeasuredLoad:
        """Measure one load; raise _ServerGone if the server died under it, as the others would measure nothing."""
        title = f"{load.rate:g}/s" if load.rate else f"c{load.concurrency}"
        with LiveLine(stderr_console(), title, total=load.requests, duration_s=load.duration_s) as line:
            measured = measure_load(
                self.probed,
                self.plan.workload,
                load,
                slo=self.slo,
                warmup=self.plan.warmup,
                label=self.keeper.label,
                watch=line,
                offset=self.sent if self.plan.workload.kind == "prompts" else 0,
            )
        self.sent += self.plan.warmup + len(measured.samples)
        self.done.append(replace(measured, result=self.keeper.save_measurement(measured, title)))
        if measured.result.bad_requests:
            try:
                self.probed.check_listening()
            except ExternalError as problem:
                text = f"the server has not answered since {title}: {problem.message}"
                raise _ServerGone(text, hint="start it again") from None
        return self.done[-1]

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, in a load or between two."""
        return self.stopped or any(measured.result.partial for measured in self.done)


def _print_own_run(keeper: ResultKeeper, json: bool) -> None:
    if keeper.own_run and not keeper.lost and not json:
        print_note((f"kept: `moebox report {keeper.own_run}` shows it", "dim"))


def _resume_commands(sweep: _Sweep, search: SearchAxis | None, words: list[str]) -> list[list[str]]:
    """Return the words of bench for the loads that are not measured yet; a search starts again."""
    # not those that were interrupted, nor the one under which the server died
    kept = sum(not each.result.partial for each in sweep.done) - isinstance(sweep.server_gone, _ServerGone)
    finished = 0 if search else kept
    plan, words = sweep.plan, [*words, *flag_words({"search": search, "run": sweep.keeper.own_run})]
    commands = bench_flags(plan.workload, plan.loads[finished:], warmup=plan.warmup, slo=sweep.slo, search=bool(search))
    numbered = enumerate(commands, 2 if finished else 1)
    return [[*words, *more, *sweep.keeper.output_flags(number)] for number, more in numbered]


def _run_tests(
    probed: ProbedEndpoint, pp: Counts, tg: Counts, plan: BenchPlan, keeper: ResultKeeper, *, json: bool
) -> int:
    result = measure_prefill_decode(
        probed,
        pp=pp,
        tg=tg,
        repeat=plan.repeat,
        workload=plan.workload,
        load=plan.loads[0],
        on_test=lambda name: None if json else print_note((name, "dim")),
    )
    document = result_document(result)
    try:
        print_result(json, document, lambda: print_test_rows(stdout_console(), document))
    finally:
        keeper.save_tests(result)
    _print_own_run(keeper, json)
    failed = [row for row in result.rows if row.failed]
    for row in failed:
        print_note((f"{row.test}: {row.failed} of {result.repeat} requests failed", "red"))
    keeper.raise_if_lost()
    return exit_code(plan.allow_failures or not failed)


def import_(files: list[Path], /, *, run: str = "", json: AsJson = False) -> int:
    """Read results of vllm bench serve, sglang.bench_serving, guidellm, aiperf or llama-bench.

    Args:
        files: The files that these tools wrote (JSON or JSON lines).
        run: Keep the results in this run's measurements, so that its report shows them.
    """
    results = [result for path in files for result in load_results(path)]
    folder = Run.open_shared(run) if run else None

    def show() -> None:  # serving results in one table, prefill and decode tests in one each
        console = stdout_console()
        serving = [result for result in results if result.get("kind") == "serving"]
        if serving:
            console.print(", ".join(dict.fromkeys(str(result["tool"]) for result in serving)), style="dim")
            print_results(console, serving)
        for result in results:
            if result.get("kind") == "pp-tg":
                console.print(f"{result['tool']} {result.get('model_id', '')}", style="dim")
                print_test_rows(console, result)

    print_result(json, {"kind": "sweep", "results": results}, show)
    if folder:
        with report_write_errors(folder.path):
            for place, result in enumerate(results):
                name = safe_name(Path(str(result["source"])).stem) or "imported"
                write_measurement(folder, f"{name}-{place}", result)
    return 0
