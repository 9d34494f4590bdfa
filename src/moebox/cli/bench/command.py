"""`moebox bench`: measure a workload or a sweep at any OpenAI-compatible endpoint; `bench import` reads other tools."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.bench.command import bench_flags
from moebox.bench.importers import load_results
from moebox.bench.measure import MeasuredLoad, measure_load
from moebox.bench.pptg import measure_prefill_decode
from moebox.bench.probe import ProbedEndpoint, probe_endpoint
from moebox.bench.search import find_highest_load, parse_slo, run_sweep
from moebox.cli import flags
from moebox.cli.bench.args import BenchArgs, BenchPlan, ServerAccess, make_bench_plan
from moebox.cli.bench.results import LiveLine, ResultKeeper, RunMeasurements, load_label, print_results, print_test_rows
from moebox.cli.flags import AsJson, KeyEnv, ServedModel, Settings, Target, parse_counts
from moebox.cli.output import exit_code, print_note, print_result, stderr_console, stdout_console
from moebox.cli.target import find_endpoint, warn_simulation
from moebox.core.measure import Load, SearchAxis, Slo
from moebox.core.result import result_document
from moebox.core.setting import flag_words, setting_flags
from moebox.detect.stall import ServerStalled
from moebox.errors import INTERRUPTED, AnswerIsNo, ExternalError, refuse_if
from moebox.escape import printable_line
from moebox.files import report_write_errors
from moebox.loose import Document
from moebox.serve.state import hold_endpoint
from moebox.store.run import Run, safe_name

Counts = tuple[int, ...]


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
    probed = probe_endpoint(endpoint, api=plan.workload.api, timeout_s=plan.loads[0].timeout_s, **asdict(access))
    if not json:
        about = f"{printable_line(endpoint.model)} at {endpoint.base_url}; prompt lengths by {probed.words.source}"
        print_note((about, "dim"))
    warn_simulation(probed.simulation)
    if prompts or replies:
        with hold_endpoint(endpoint.base_url, "moebox bench"):
            return _run_tests(probed, prompts, replies, plan, keeper, json=json)
    words = ["moebox", "bench", *([target] if target else [])]
    words += flag_words({"model": model, "key_env": key_env, "run": run})
    words += setting_flags(plan.endpoint, ServerAccess(), "endpoint.")
    own = {"label": plan.label, "allow_failures": "true" if plan.allow_failures else ""}
    words += [word for key, value in own.items() if value for word in ("--set", f"{key}={value}")]
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
    if sweep.was_interrupted or sweep.server_gone:
        _print_resume_commands(sweep, search, words)
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
                return find_highest_load(measure, self.slo, axis=search, start=start)[1]
            run_sweep(range(len(self.plan.loads)), lambda at: self.measure_load(self.plan.loads[int(at)]))
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
        return self.stopped or any(measured.was_interrupted for measured in self.done)


def _print_own_run(keeper: ResultKeeper, json: bool) -> None:
    if keeper.own_run and not keeper.lost and not json:
        print_note((f"kept: `moebox report {keeper.own_run}` shows it", "dim"))


def _print_resume_commands(sweep: _Sweep, search: SearchAxis | None, words: list[str]) -> None:
    """Print the commands for the loads that are not measured yet; a search starts again."""
    # not those that were interrupted, nor the one under which the server died
    finished = sum(not each.was_interrupted for each in sweep.done) - isinstance(sweep.server_gone, _ServerGone)
    finished = 0 if search else finished
    own_run, plan = sweep.keeper.own_run, sweep.plan
    words = [*words, *flag_words({"search": search, "run": own_run})]
    commands = bench_flags(plan.workload, plan.loads[finished:], warmup=plan.warmup, slo=sweep.slo, search=bool(search))
    for number, more in enumerate(commands, 2 if finished else 1):
        print_note(f"resume with: {shlex.join([*words, *more, *sweep.keeper.output_flags(number)])}")


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
    measurements = RunMeasurements(Run.open_shared(run)) if run else None
    print_result(json, {"kind": "sweep", "results": results}, lambda: _print_imported(results))
    if measurements:
        with report_write_errors(measurements.run.path):
            for place, result in enumerate(results):
                name = safe_name(Path(str(result["source"])).stem) or "imported"
                measurements.write(f"{name}-{place}", result)
    return 0


def _print_imported(results: Sequence[Document]) -> None:
    """Print serving results in one table, prefill and decode tests in one each."""
    console = stdout_console()
    serving = [result for result in results if result.get("kind") == "serving"]
    if serving:
        console.print(", ".join(dict.fromkeys(str(result["tool"]) for result in serving)), style="dim")
        print_results(console, serving)
    for result in results:
        if result.get("kind") == "pp-tg":
            console.print(f"{result['tool']} {result.get('model_id', '')}", style="dim")
            print_test_rows(console, result)
