"""`moebox bench`: one workload or a sweep against any OpenAI-compatible endpoint."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox.cli import flags
from moebox.cli import target as targets
from moebox.cli.bench_keep import ResultKeeper
from moebox.cli.bench_plan import BenchArgs, BenchPlan, make_bench_plan, parse_counts, refuse_load_flags
from moebox.cli.kept_in import warn_simulation
from moebox.cli.output import exit_code, print_result, stderr_console, stdout_console
from moebox.core.measure import Load, SearchAxis, Slo
from moebox.core.result import Measurement, result_document
from moebox.errors import INTERRUPTED, AnswerIsNo, ExternalError, refuse_if
from moebox.escape import printable_line
from moebox.loose import Document

if TYPE_CHECKING:
    from moebox.bench.measure import MeasuredLoad
    from moebox.bench.probe import ProbedEndpoint

SHARE, REPEAT = 0.9, 3


def bench(
    target: str = "",
    /,
    *,
    model: str = "",
    key_env: str = "",
    preset: str = "",
    asked: BenchArgs = BenchArgs(),  # noqa: B008  (frozen)
    slo: str = "",
    slo_share: float | None = None,
    search: SearchAxis | None = None,
    pp: str = "",
    tg: str = "",
    repeat: int | None = None,
    tokenizer: str = "",
    insecure: Annotated[bool, Parameter(negative=())] = False,
    ca_file: str = "",
    allow_failures: Annotated[bool, Parameter(negative=())] = False,
    label: str = "",
    output_file: Annotated[Path | None, Parameter(name=["--output-file", "-o"])] = None,
    run: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Measure how fast an endpoint is, with a client that is never the limit, or says so.

    Args:
        target: A URL, a recipe, or the name of an engine that moebox started; the running one when left out.
        model: The name it is served under; may be left out where the server lists only one.
        key_env: The environment variable that holds the key.
        preset: A published benchmark's settings: shenanigans-sm120, lambda, aiperf-16-turns, long-generation, …; loads,
            lengths and request counts given with it replace the preset's.
        asked: Workload and load.
        slo: Limits that a good request keeps, like ttft=2s,tpot=50ms; adds goodput.
        slo_share: Share of requests that must be good when searching; 0.9 when left out.
        search: Find the highest concurrency or rate that meets --slo; starts at --concurrency or --rate.
        pp: Prefill only, for these prompt lengths (512,4096): PP cold and warm.
        tg: Decode only, for these reply lengths (128): TG.
        repeat: Repetitions of each --pp and --tg test; 3 when left out.
        tokenizer: A local tokenizer.json, for exact prompt lengths where the server has no /tokenize.
        insecure: Accept any TLS certificate.
        ca_file: Certificates to trust.
        allow_failures: Exit with 0 although requests failed; otherwise any that did makes the exit code 1.
        label: A name for the result.
        output_file: Keep the result here (JSON), and the samples beside it.
        run: Keep the result in this run's measurements; a run of its own where neither this nor --output-file is given.
        json: Print JSON.
    """
    from moebox.bench.probe import probe_endpoint
    from moebox.bench.search import parse_slo

    tests = (parse_counts("--pp", pp), parse_counts("--tg", tg))
    if any(tests):
        refuse_load_flags(asked, preset=preset, slo=slo, slo_share=slo_share, search=search)
    else:
        flags.refuse_without("--pp or --tg", repeat=repeat)
    if not search:
        flags.refuse_without("--search", slo_share=slo_share)
    limits = parse_slo(slo, share=SHARE if slo_share is None else slo_share) if slo else None
    refuse_if(search and limits is None, "--search needs --slo to search for", hint="--slo ttft=2s,tpot=50ms")
    plan = make_bench_plan(asked, preset, search)
    endpoint = targets.find_endpoint(target, model=model, key_env=key_env, insecure=insecure, ca_file=ca_file)
    keeper = ResultKeeper(output_file, run, label or plan.name, endpoint=endpoint)
    subject = probe_endpoint(
        endpoint,
        tokenizer=tokenizer,
        api=asked.api,
        insecure=insecure,
        ca_file=ca_file,
        timeout_s=plan.loads[0].timeout_s,
    )
    if not json:
        where = f"{printable_line(endpoint.model)} at {endpoint.base_url}; prompt lengths by {subject.words.source}"
        stderr_console().print(where, style="dim", markup=False)
    warn_simulation(subject.simulation)
    if any(tests):
        return _tests(subject, tests, REPEAT if repeat is None else repeat, plan, keeper, json, allow_failures)
    values = {"--model": model, "--key-env": key_env, "--tokenizer": tokenizer}
    values |= {"--ca-file": ca_file, "--label": label, "--run": run}
    switches = {"--insecure": insecure, "--allow-failures": allow_failures}
    words = _command(target, values, switches)
    return _serve(subject, plan, limits, search, keeper, json, allow_failures, words)


def _command(target: str, values: dict[str, str], switches: dict[str, bool]) -> list[str]:
    """The command with what was given, for the line that says how to go on."""
    words = ["moebox", "bench", *([target] if target else [])]
    for flag, value in values.items():
        words += [flag, value] if value else []
    return words + [flag for flag, given in switches.items() if given]


class _Gone(ExternalError):
    """Nobody listens any more where requests were answered before."""


class _Sweep:
    """Measures one load after the other and keeps each result."""

    def __init__(self, subject: "ProbedEndpoint", plan: BenchPlan, slo: Slo | None, keeper: ResultKeeper) -> None:
        self.subject, self.plan, self.slo, self.keeper = subject, plan, slo, keeper
        self.done: list[MeasuredLoad] = []
        self.sent = 0  # requests so far: prompts of a file go on where the load before ended
        self.stopped = False  # before the first request of a load was measured
        self.gone: ExternalError | None = None  # why the server cannot be reached any more

    def measure(self, load: Load) -> "MeasuredLoad":
        """One load."""
        from moebox.bench.measure import measure_load
        from moebox.cli.bench_view import LiveLine

        title = f"{load.rate:g}/s" if load.rate else f"c{load.concurrency}"
        with LiveLine(stderr_console(), title, total=load.requests, duration_s=load.duration_s) as line:
            measured = measure_load(
                self.subject,
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
            self._reach(title)
        return self.done[-1]

    def _reach(self, title: str) -> None:
        """_Gone where the server died under a load: the others would measure nothing."""
        try:
            self.subject.check_listening()
        except ExternalError as problem:
            raise _Gone(f"the server is gone since {title}: {problem.message}", hint="start it again") from None

    def run(self, search: SearchAxis | None) -> int | None:
        """Every load of the plan, or the search for the highest that meets the SLO; that one's place, if any."""
        from moebox.bench.search import run_sweep

        try:
            if search and self.slo:
                return self._highest(search, self.slo)
            run_sweep(range(len(self.plan.loads)), lambda at: self.measure(self.plan.loads[int(at)]))
        except KeyboardInterrupt:
            self.stopped = True
        except _Gone as problem:
            self.gone = problem
        return None

    def _highest(self, axis: SearchAxis, slo: Slo) -> int | None:
        from moebox.bench.search import find_highest_load

        first = self.plan.loads[0]
        start = first.rate if axis == "rate" else first.concurrency
        return find_highest_load(
            lambda value: self.measure(self.plan.load_at(axis, value)), slo, axis=axis, start=start or 1
        )[1]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it, in a load or between two."""
        return self.stopped or any(measured.was_interrupted for measured in self.done)

    @property
    def finished(self) -> int:
        """Loads that need not be measured again: neither interrupted nor the one under which the server died."""
        whole = sum(not measured.was_interrupted for measured in self.done)
        return whole - 1 if self.gone else whole

    @property
    def results(self) -> list[Document]:
        """What was measured, as documents."""
        return [result_document(measured.result) for measured in self.done]


def _serve(
    subject: "ProbedEndpoint",
    plan: BenchPlan,
    slo: Slo | None,
    search: SearchAxis | None,
    keeper: ResultKeeper,
    json: bool,
    allow_failures: bool,
    words: list[str],
) -> int:
    """Measure, keep, show; or say how to go on after an interrupt."""
    from moebox.cli.bench_view import load_label

    sweep = _Sweep(subject, plan, slo, keeper)
    best = sweep.run(search)
    results = sweep.results
    if results:
        _show(results, search, best, keeper, json)
    if sweep.interrupted or sweep.gone:
        _say_how_to_go_on(sweep, search, words)
    keeper.raise_if_lost()
    if sweep.gone:
        raise sweep.gone
    if sweep.interrupted:
        return INTERRUPTED
    if search and best is None:
        raise AnswerIsNo(f"not even {load_label(results[0])} met the SLO")
    return _code([measured.result for measured in sweep.done], allow_failures=allow_failures)


def _show(
    results: list[Document], search: SearchAxis | None, best: int | None, keeper: ResultKeeper, json: bool
) -> None:
    """The results, and where they are kept."""
    from moebox.cli.bench_view import print_results

    whole = _together(results, search, best)
    try:
        print_result(json, whole, lambda: print_results(stdout_console(), results, best=best))
    finally:  # whoever reads the answer may have gone
        keeper.write_document(whole)
    _say_where(keeper, json)


def _together(results: list[Document], search: SearchAxis | None, best: int | None) -> Document:
    """One result as it is; several, or a search, as a sweep."""
    if search:
        return {"kind": "sweep", "results": results, "best": best}
    return results[0] if len(results) == 1 else {"kind": "sweep", "results": results}


def _say_where(keeper: ResultKeeper, json: bool) -> None:
    """The run that was made for the results, where they are in it."""
    if keeper.own_run and not keeper.lost and not json:
        stderr_console().print(f"kept: `moebox report {keeper.own_run}` shows it", style="dim", soft_wrap=True)


def _say_how_to_go_on(sweep: _Sweep, search: SearchAxis | None, words: list[str]) -> None:
    """The command for what was not measured yet; a search begins anew."""
    from rich.text import Text

    from moebox.bench.command import bench_flags

    finished = 0 if search else sweep.finished
    words = [*words, *(("--search", search) if search else ())]
    own_run = sweep.keeper.own_run
    words += ["--run", own_run] if own_run else []
    plan = sweep.plan
    commands = bench_flags(plan.workload, plan.loads[finished:], warmup=plan.warmup, slo=sweep.slo, search=bool(search))
    for number, more in enumerate(commands, 2 if finished else 1):
        line = shlex.join([*words, *more, *sweep.keeper.output_flags(number)])
        stderr_console().print(Text(f"go on with: {line}"), soft_wrap=True)


def _code(results: Sequence[Measurement], *, allow_failures: bool) -> int:
    """1 when requests failed, unless that is allowed, and when none was completed."""
    bad = any(result.bad_requests for result in results) and not allow_failures
    completed = any(result.completed for result in results)
    return exit_code(completed and not bad)


def _tests(
    subject: "ProbedEndpoint",
    tests: tuple[tuple[int, ...], tuple[int, ...]],
    repeat: int,
    plan: BenchPlan,
    keeper: ResultKeeper,
    json: bool,
    allow_failures: bool,
) -> int:
    from moebox.bench.pptg import measure_prefill_decode
    from moebox.cli.bench_view import print_test_rows

    result = measure_prefill_decode(
        subject,
        pp=tests[0],
        tg=tests[1],
        repeat=max(1, repeat),
        workload=plan.workload,
        load=plan.loads[0],
        on_test=(lambda name: None) if json else (lambda name: stderr_console().print(name, style="dim")),
    )
    try:
        print_result(json, result_document(result), lambda: print_test_rows(stdout_console(), result_document(result)))
    finally:
        keeper.save_tests(result)
    _say_where(keeper, json)
    failed = [row for row in result.rows if row.failed]
    for row in failed:
        stderr_console().print(f"{row.test}: {row.failed} of {result.repeat} requests failed", style="red")
    keeper.raise_if_lost()
    return exit_code(allow_failures or not failed)
