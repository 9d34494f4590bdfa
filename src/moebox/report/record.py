"""What the report knows about one run, read from its folder: everything optional, nothing trusted.

Figures are floats or None, never NaN. `gaps` says what is missing or unreadable; `sources` where imported figures
come from.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from moebox.core.box import Box, Gpu
from moebox.core.measure import Load, Slo, Workload
from moebox.core.recipe import Recipe
from moebox.core.result import LatencyStats
from moebox.loose import Json
from moebox.report.kernels import KernelScanRow
from moebox.tasks.result import TaskRun
from moebox.units import plural

Outcome = Literal["SUCCESS", "PARTIAL", "FAILED", "RUNNING", "STOPPED"]
Mark = Literal["pass", "fail", "skip", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What a measurement of moebox asked, how hard, and what besides; `test` is one of --pp or --tg."""

    workload: Workload
    load: Load
    warmup: int = 0
    slo: Slo | None = None
    test: str = ""
    repeat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """One measurement: a workload at one load."""

    name: str
    workload: str = ""
    concurrency: float | None = None
    request_rate: float | None = None  # requests/s offered, open loop
    input_tokens: float | None = None  # of one request, as asked
    output_tokens: float | None = None
    mean_input_tokens: float | None = None  # of one request, on average, as they were counted
    mean_output_tokens: float | None = None
    requests: float | None = None
    completed: float | None = None
    failed: float | None = None
    duration_s: float | None = None
    request_s: float | None = None
    output_tok_s: float | None = None
    total_tok_s: float | None = None
    peak_tok_s: float | None = None
    tg_tok_s: float | None = None  # one stream's decode rate, as llama.cpp people report it
    pp_tok_s: float | None = None  # prompt processing rate
    ttft: LatencyStats = LatencyStats()
    tpot: LatencyStats = LatencyStats()
    itl: LatencyStats = LatencyStats()
    e2e: LatencyStats = LatencyStats()
    tokens_per_joule: float | None = None
    acceptance: float | None = None  # tokens accepted per speculative step, where told
    client_limited: bool = False
    flags: tuple[str, ...] = ()  # why the figures are not to be trusted, besides
    partial: bool = False
    simulation: bool = False
    source: str = ""
    note: str = ""
    samples: Path | None = None
    request: "LoadRequest | None" = None  # how to ask the same again, where moebox measured it
    raw: Json = field(default_factory=dict)

    @property
    def headline_tok_s(self) -> float | None:
        """The rate that is shown first: of all streams, or of one where only that was measured."""
        return self.output_tok_s or self.tg_tok_s

    @property
    def load_value(self) -> float:
        """Where it stands on an axis of loads: requests at once, or a second; 0 where neither is known."""
        return self.concurrency or self.request_rate or 0.0

    @property
    def is_serving_load(self) -> bool:
        """Whether it is a rate of serving at a known concurrency, one point of a sweep."""
        return bool(self.concurrency and self.output_tok_s)

    @property
    def is_single_stream(self) -> bool:
        """Whether prefill or decode of one stream was measured."""
        return bool(self.tg_tok_s or self.pp_tok_s)

    @property
    def stream_tok_s(self) -> float | None:
        """Tokens per second that one client sees while its answer streams."""
        if self.tg_tok_s:
            return self.tg_tok_s
        return 1e3 / self.tpot.mean_or_median if self.tpot.mean_or_median else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """One device's memory: parts in drawing order; they need not fill `total`."""

    name: str
    total: float
    parts: dict[str, float]

    @property
    def on_host(self) -> bool:
        """Whether it is the machine's RAM, not a GPU."""
        return self.name == "ram"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """One row of a forecast: output tok/s (or one stream's TG) with its band, latencies where given."""

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
    lengths: str = ""  # of prompts and replies as they really were, where they were asked otherwise
    decode_only: bool = False  # decode at full batch, no prefill: not comparable with a serving benchmark

    @property
    def tok_s_range(self) -> tuple[float, float] | None:
        """The ends of its band in tok/s; None without one."""
        if self.low_tok_s is None or self.high_tok_s is None:
            return None
        return self.low_tok_s, self.high_tok_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """What the plan said; nothing where there is none."""

    devices: tuple[DeviceParts, ...] = ()
    kv_tokens: float | None = None
    rows: tuple[ForecastRow, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()  # text, remedy
    alternatives: tuple[tuple[str, str], ...] = ()  # title, what it loses


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """One try at a launch."""

    number: int
    outcome: Outcome
    model: str = ""
    configuration: str = ""
    is_rehearsal: bool = False  # a rehearsal: not what the run is about
    reason: str = ""
    remedy: str = ""
    started: float = 0.0
    ended: float = 0.0
    command: str = ""
    source: str = ""

    @property
    def title(self) -> str:
        """What it is called where its number alone would say too little."""
        return f"{'rehearsal' if self.is_rehearsal else 'attempt'} {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One question a check asked."""

    name: str
    mark: Mark
    detail: str = ""
    evidence: tuple[tuple[str, str], ...] = ()  # title, text
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check's verdict with its evidence."""

    name: str
    mark: Mark
    detail: str = ""
    score: str = ""
    quirks: tuple[str, ...] = ()  # known ones of the engine that it shows
    probes: tuple[ProbeRow, ...] = ()
    evidence: tuple[tuple[str, str], ...] = ()
    seconds: float | None = None
    is_sum: bool = False  # what the others add up to: no check of its own

    @property
    def has_failed(self) -> bool:
        """Whether it did not pass, for whatever reason."""
        return self.mark == "fail"

    @property
    def failed_unexpectedly(self) -> bool:
        """Whether it failed, and not by a habit that every server of its engine has."""
        return self.has_failed and not self.quirks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbRow:
    """One step of a climb."""

    change: str
    mark: Mark
    kept: bool
    reason: str = ""
    output_tok_s: float | None = None
    ttft_ms: float | None = None
    kv_tokens: float | None = None
    gain: float | None = None  # relative to the last good step
    interval: tuple[float, float] | None = None  # in which the gain lies
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProblem:
    """Something that went wrong, with what is known about it."""

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
    """Why a run ended before its end: the step, what moebox said, and what the log says about it."""

    step: str = ""
    message: str
    hint: str = ""
    log_line: str = ""  # of the engine's log
    cause: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as far as its folder tells."""

    id: str
    path: Path
    label: str = ""
    page_label: str = ""  # the label, on a page that shows several runs
    title: str = ""
    requested_model: str = ""  # the model that `run` was asked for, where no recipe came of it
    started: float = 0.0
    ended: float = 0.0
    version: str = ""
    live: bool = False
    interrupted_step: str = ""  # the step of `moebox run` in which it was, or the climb by itself
    resume_command: str = "run"  # the command that goes on with it
    simulation: bool = False
    imported: bool = False
    sources: tuple[tuple[str, str], ...] = ()  # what, URL
    box: Box | None = None
    box_notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    plan: PlanRecord = PlanRecord()
    reported_devices: tuple[DeviceParts, ...] = ()
    memory_note: str = ""
    kv_tokens: float | None = None
    facts: tuple[tuple[str, str], ...] = ()
    loads: tuple[LoadResult, ...] = ()
    checks: tuple[CheckRow, ...] = ()
    unfinished_checks: tuple[str, ...] | None = (
        None  # checks of a verification without an end; empty where it is not told
    )
    all_checks: int = 0  # that there are; 0 where it is not told
    url: str = ""  # of the server that was asked, where no recipe tells
    attempts: tuple[LaunchAttempt, ...] = ()
    steps: tuple[ClimbRow, ...] = ()
    problems: tuple[LogProblem, ...] = ()
    failure: RunFailure | None = None
    kernels: tuple[KernelScanRow, ...] = ()
    tasks: TaskRun | None = None
    phases: tuple[tuple[str, float, float], ...] = ()  # name, start, end
    commands: tuple[tuple[str, str], ...] = ()  # title, text
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()  # remarks that came with imported figures
    gaps: tuple[str, ...] = ()

    @property
    def title_suffix(self) -> str:
        """Whose it is, behind a title; "" on a page of one run."""
        return f": {self.page_label}" if self.page_label else ""

    @property
    def sentence_prefix(self) -> str:
        """Whose it is, before a sentence; "" on a page of one run."""
        return f"{self.page_label}: " if self.page_label else ""

    def loads_of(self, workload: str) -> list[LoadResult]:
        """The levels of one workload."""
        return [level for level in self.loads if level.workload == workload]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of its box; none where the box is not known."""
        return self.box.gpus if self.box else ()

    @property
    def has_no_gpu(self) -> bool:
        """Whether its box is known to have no GPU."""
        return self.box is not None and not self.box.gpus

    @property
    def single_checks(self) -> tuple[CheckRow, ...]:
        """The checks, without what they add up to."""
        return tuple(check for check in self.checks if not check.is_sum)

    @property
    def checks_run(self) -> tuple[CheckRow, ...]:
        """The checks that were not skipped."""
        return tuple(check for check in self.single_checks if check.mark != "skip")

    @property
    def has_unfinished_jobs(self) -> bool:
        """Whether an agent was given jobs that are not done."""
        return self.tasks is not None and bool(self.tasks.unfinished_jobs)

    @property
    def unfinished_step(self) -> str:
        """The step in which it was interrupted, checks made by hand included; "" where it goes on or ended."""
        if self.interrupted_step or self.live:
            return self.interrupted_step
        return "verify" if self.is_verification_unfinished else ""

    @property
    def is_verification_unfinished(self) -> bool:
        """Whether its verification has no end: it goes on, or was interrupted."""
        return self.unfinished_checks is not None

    @property
    def check_count_text(self) -> str:
        """How many checks passed; of a verification without an end, how many were done."""
        if self.unfinished_checks is not None:
            return f"{'still running' if self.live else 'interrupted'}: {self._done(len(self.unfinished_checks))} done"
        passed = f"{len(self.check_names('pass'))} of {len(self.checks_run)} checks passed"
        return f"{passed}, {self.missing_check_count} not made" if self.is_partly_checked else passed

    def _done(self, wanted: int) -> str:
        """So many checks; of how many, where that is told."""
        done = len(self.single_checks)
        return f"{done} of {plural(wanted, 'check')}" if wanted else plural(done, "check")

    @property
    def missing_check_count(self) -> int:
        """How many checks there are beside those that were made or skipped."""
        return self.all_checks - len(self.single_checks)

    @property
    def is_partly_checked(self) -> bool:
        """Some checks were never made: `verify --only`, say."""
        return 0 < len(self.single_checks) < self.all_checks

    def check_names(self, mark: Mark) -> list[str]:
        """The names of the checks with that verdict."""
        return [check.name for check in self.checks if check.mark == mark]

    def highest_value(self, figure: str) -> float | None:
        """The highest value of `figure`; None where it was not measured."""
        return getattr(self.peak_load(figure), figure, None)

    def peak_load(self, figure: str = "output_tok_s") -> LoadResult | None:
        """The level where `figure` is highest; one that the client did not limit, where there is one."""
        known = [level for level in self.loads if getattr(level, figure) is not None]
        honest = [level for level in known if not level.client_limited]
        return max(honest or known, key=lambda level: float(getattr(level, figure)), default=None)
