"""A run folder as a record, with our own files in the types that wrote them. Verdict and status are decided here.

Figures are floats or None, never NaN. `gaps` names what is missing or unreadable, `sources` where imported figures come
from.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moebox.core.box import Box, Gpu
from moebox.core.engine_facts import DeviceFacts
from moebox.core.event import ClimbStep, ServerMeasured
from moebox.core.kernel import KernelFindings
from moebox.core.pipeline import NO_PIPELINE, Pipeline
from moebox.core.plan import NO_MEMORY, Memory, Plan
from moebox.core.quirks import is_known_warning
from moebox.core.recipe import Recipe
from moebox.core.result import LatencyStats, Measurement, PrefillDecode
from moebox.core.upgrade_result import UpgradeResult
from moebox.core.verdict import CheckVerdict, Mark
from moebox.loose import Json
from moebox.quality.measure import QualityResult
from moebox.tasks.result import TaskRun
from moebox.units import plural

Outcome = Literal["SUCCESS", "PARTIAL", "FAILED", "RUNNING", "STOPPED"]
RunVerdict = Literal["", "pass", "warn", "fail", "interrupted", "in part"]
RunStatus = Literal["WORKING", "PARTLY", "FAILED", "INTERRUPTED", "SIMULATED", "RUNNING", "ENDED", "not tried"]
LAUNCH_STATUS: dict[Outcome, RunStatus] = {"SUCCESS": "WORKING", "PARTIAL": "PARTLY", "FAILED": "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """run.json; the fields after `simulation` belong to imported runs."""

    format: int = 1
    moebox: str = ""
    name: str = ""
    created: float = 0.0
    pid: int = 0
    simulation: bool = False
    imported: bool = False
    title: str = ""
    label: str = ""
    sources: tuple[dict[str, str], ...] = ()  # title, url
    box_notes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    commands: tuple[dict[str, str], ...] = ()  # title, text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One load: measured by moebox, or imported from another tool's file."""

    name: str
    workload: str = ""
    concurrency: float | None = None  # of a closed loop; None for an open one, whose limit is no load
    request_rate: float | None = None  # requests/s offered, open loop
    input_tokens: float | None = None  # per request, as requested
    output_tokens: float | None = None
    mean_input_tokens: float | None = None  # per request, as counted
    mean_output_tokens: float | None = None
    uniform_lengths: bool = False  # lengths drawn evenly up to the requested ones
    requests: float | None = None
    completed: float | None = None
    failed: float | None = None
    duration_s: float | None = None
    request_s: float | None = None
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    peak_tok_s: float | None = None
    tg_tok_s: float | None = None  # decode rate of one stream, as llama-bench reports it
    pp_tok_s: float | None = None  # prompt processing rate
    ttft: LatencyStats = LatencyStats()
    tpot: LatencyStats = LatencyStats()
    itl: LatencyStats = LatencyStats()
    e2e: LatencyStats = LatencyStats()
    slo_share: float | None = None  # of requests that met the SLO; None without one
    missed_slo: bool = False  # by more requests than the SLO allows
    tokens_per_joule: float | None = None
    acceptance: float | None = None  # tokens accepted per speculative step
    client_limited: bool = False
    flags: tuple[str, ...] = ()  # further reasons not to trust the figures
    partial: bool = False
    simulation: bool = False
    model: str = ""
    source: str = ""
    note: str = ""
    samples: Path | None = None
    measurement: Measurement | None = None  # None for tests and imported figures
    tests: PrefillDecode | None = None  # of --pp and --tg, of which it is `test`
    test: str = ""
    raw: Json = field(default_factory=dict)  # the document it was read from

    @property
    def headline_tok_s(self) -> float | None:
        """Output rate of all streams, or of one stream if only that was measured."""
        return self.output_tok_s or self.tg_tok_s

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons not to draw conclusions from the figures."""
        parts = (
            f"{plural(self.failed, 'request')} failed" if self.failed else "",
            "interrupted" if self.partial else "",
            "the client was the limit" if self.client_limited else "",
        )
        return (*filter(None, parts), *self.flags)

    @property
    def load_name(self) -> str:
        """The rate of an open loop ("25/s"), else the concurrency ("8") or the measurement's name."""
        name = f"{self.request_rate:g}/s" if self.request_rate else self.name
        return f"{self.concurrency:,.0f}" if self.concurrency else name

    @property
    def load_value(self) -> float:
        """Position on a load axis: concurrency or request rate, 0 if neither is known."""
        return self.concurrency or self.request_rate or 0.0

    @property
    def is_serving_load(self) -> bool:
        """True for one point of a sweep over concurrency."""
        return bool(self.concurrency and self.output_tok_s)

    @property
    def is_single_stream(self) -> bool:
        """True if prefill or decode of one stream was measured."""
        return bool(self.tg_tok_s or self.pp_tok_s)

    @property
    def stream_tok_s(self) -> float | None:
        """Tokens per second that one client sees while its reply streams."""
        if self.tg_tok_s:
            return self.tg_tok_s
        return 1e3 / self.tpot.mean_or_median if self.tpot.mean_or_median else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """A forecast for one load: output tok/s (or one stream's TG) with its range, and latencies."""

    concurrency: float | None = None
    context: float | None = None
    output_tok_s: float | None = None
    low_tok_s: float | None = None
    high_tok_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tg_tok_s: float | None = None
    pp_tok_s: float | None = None
    workload: str = ""
    lengths: str = ""  # of prompts and replies as counted, if they differ from the requested ones
    decode_only: bool = False  # decode at full batch without prefill: not comparable with a serving benchmark

    @property
    def tok_s_range(self) -> tuple[float, float] | None:
        return None if self.low_tok_s is None or self.high_tok_s is None else (self.low_tok_s, self.high_tok_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    number: int
    outcome: Outcome
    model: str = ""
    configuration: str = ""
    is_rehearsal: bool = False
    reason: str = ""
    remedy: str = ""
    started: float = 0.0
    ended: float = 0.0
    command: str = ""
    source: str = ""

    @property
    def title(self) -> str:
        """ "attempt 2" or "rehearsal 1"."""
        return f"{'rehearsal' if self.is_rehearsal else 'attempt'} {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProblem:
    title: str
    cause: str = ""
    remedy: str = ""
    excerpt: str = ""
    severity: str = "warning"
    source: str = ""
    count: int = 1
    is_fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """Why a run ended early: the step, its error, and what the engine's log adds."""

    step: str = ""
    message: str
    hint: str = ""
    log_line: str = ""
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. The last group of fields is filled in by the report."""

    id: str
    path: Path
    info: RunInfo = RunInfo()
    started: float = 0.0
    ended: float = 0.0
    locked: bool = False  # a process works on it
    open_step: str = ""  # step of `moebox run`, or "climb", "upgrade" or "bench", that began and did not end
    resume_command: str = ""  # goes on with it, without "moebox"
    upgrade: UpgradeResult | None = None
    simulation: bool = False
    box: Box | None = None
    recipe: Recipe | None = None
    plan: Plan | None = None
    pipeline: Pipeline = NO_PIPELINE
    reported_devices: tuple[DeviceFacts, ...] = ()
    memory_note: str = ""
    kv_tokens: float | None = None
    loads: tuple[LoadResult, ...] = ()
    damaged_loads: tuple[str, ...] = ()  # a line for each measurement that cannot be read
    checks: tuple[CheckVerdict, ...] = ()
    summed_check: CheckVerdict | None = None  # the verdict over all checks if it is worse than each of them
    unfinished_checks: tuple[str, ...] | None = None  # checks of a verification without an end; None if it ended
    check_total: int = 0  # number of checks that exist; 0 if unknown
    server: ServerMeasured = ServerMeasured()  # that was checked, measured or given jobs last
    attempts: tuple[LaunchAttempt, ...] = ()
    climb_steps: tuple[ClimbStep, ...] = ()
    climb_source: str = ""  # where an imported climb was published
    problems: tuple[LogProblem, ...] = ()
    failure: RunFailure | None = None
    kernels: tuple[KernelFindings, ...] = ()
    tasks: TaskRun | None = None
    quality: QualityResult | None = None
    phases: tuple[tuple[str, float, float], ...] = ()  # name, start, end
    commands: tuple[tuple[str, str], ...] = ()  # title, text
    versions: tuple[tuple[str, str], ...] = ()
    gaps: tuple[str, ...] = ()

    label: str = ""
    page_label: str = ""  # the label on a page of several runs, "" on a page of one
    planned_memory: Memory = NO_MEMORY  # of the plan, or computed by this moebox
    forecast: tuple[ForecastRow, ...] = ()
    forecast_basis: str = ""

    @property
    def imported(self) -> bool:
        """True for published figures that moebox did not measure."""
        return self.info.imported

    @property
    def live(self) -> bool:
        """True while a process works on the run; a run that only writes its report has ended."""
        return self.locked and self.open_step != "report"

    @property
    def interrupted_step(self) -> str:
        """The step in which a run was left by its process."""
        return "" if self.locked else self.open_step

    @property
    def title_suffix(self) -> str:
        """The run's label behind a title; "" on a page of one run."""
        return f": {self.page_label}" if self.page_label else ""

    @property
    def sentence_prefix(self) -> str:
        """The run's label before a sentence; "" on a page of one run."""
        return f"{self.page_label}: " if self.page_label else ""

    @property
    def requested_model(self) -> str:
        return self.pipeline.request.model

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.box.gpus if self.box else ()

    @property
    def has_no_gpu(self) -> bool:
        return self.box is not None and not self.box.gpus

    @property
    def checks_run(self) -> tuple[CheckVerdict, ...]:
        return tuple(check for check in self.checks if check.verdict != "skip")

    @property
    def all_checks(self) -> tuple[CheckVerdict, ...]:
        """The checks, and the verdict over all of them if it is worse."""
        return (*self.checks, self.summed_check) if self.summed_check else self.checks

    @property
    def failed_checks(self) -> tuple[CheckVerdict, ...]:
        """Failed checks, the verdict over all of them included."""
        return tuple(check for check in self.all_checks if check.verdict == "fail")

    def check_names(self, mark: Mark) -> list[str]:
        return [check.name for check in self.all_checks if check.verdict == mark]

    def warned_names(self, *, known: bool) -> list[str]:
        """Names of the checks with warnings: those that known quirks of the engine explain, or the others."""
        warned = [check for check in self.all_checks if check.verdict == "warn"]
        return [check.name for check in warned if is_known_warning(check) == known]

    @property
    def missing_check_count(self) -> int:
        """Number of checks that were neither run nor skipped."""
        return max(0, self.check_total - len(self.checks))

    @property
    def check_count_text(self) -> str:
        """ "15 of 17 checks passed", or how many are done if the verification has no end."""
        if self.unfinished_checks is not None:
            done, wanted = len(self.checks), len(self.unfinished_checks)
            count = f"{done} of {plural(wanted, 'check')}" if wanted else plural(done, "check")
            return f"{'still running' if self.live else 'interrupted'}: {count} done"
        passed = f"{len(self.check_names('pass'))} of {len(self.checks_run)} checks passed"
        return f"{passed}, {self.missing_check_count} not made" if self.verdict_is_partial else passed

    @property
    def verdict_is_partial(self) -> bool:
        """True if only some of the checks were made, as with `verify --only`."""
        return 0 < len(self.checks) < self.check_total

    @property
    def verdict(self) -> RunVerdict:
        """The worst check. Without a failure, an unfinished or partial verification is neither green nor yellow."""
        marks = {check.verdict for check in self.all_checks}
        if "fail" in marks:
            return "fail"
        if self.unfinished_checks is not None:
            return "interrupted"
        if self.verdict_is_partial:
            return "in part"
        return "warn" if "warn" in marks else "pass" if "pass" in marks else ""

    @property
    def unfinished_step(self) -> str:
        """The step in which the run was interrupted, a `moebox verify` included; "" while it is live or if it ended."""
        if self.interrupted_step or self.live:
            return self.interrupted_step
        return "verify" if self.unfinished_checks is not None else ""

    @property
    def status(self) -> RunStatus:
        """Whether the configuration works: by its checks, then its launches, then its figures.

        Rehearsals do not count: they load no real weights.
        """
        if self.simulation:
            return "SIMULATED"
        if self.failure and not any(load.headline_tok_s for load in self.loads):
            return "FAILED"
        if self.failed_checks:
            return "PARTLY"
        if self.unfinished_step:
            return "INTERRUPTED"
        launches = [attempt for attempt in self.attempts if not attempt.is_rehearsal]
        if launches:
            return LAUNCH_STATUS.get(launches[-1].outcome, "RUNNING" if self.live else "ENDED")
        return "WORKING" if self.check_names("pass") or any(load.headline_tok_s for load in self.loads) else "not tried"

    def loads_of(self, workload: str) -> list[LoadResult]:
        return [load for load in self.loads if load.workload == workload]

    def peak_load(self, figure: str = "output_tok_s") -> LoadResult | None:
        """The load with the highest `figure`, preferably a reliable one that met its SLO, else a reliable one."""
        known = [load for load in self.loads if getattr(load, figure) is not None]
        return max(known, key=lambda load: (not load.doubts, not load.missed_slo, getattr(load, figure)), default=None)

    def highest_value(self, figure: str) -> float | None:
        return getattr(self.peak_load(figure), figure, None)
