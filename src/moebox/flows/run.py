"""`moebox run`: plan, doctor, rehearse, up, verify, climb, bench, task, report, as one pipeline.

Each step is the same function that its own command calls, loaded when it is its turn. The engine lives across steps and
is started again where a step needs it and it is not there: after a crash, a resume, or a climb to a better recipe.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from moebox import codec
from moebox.checkpoint import deploy, resolve_model
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.event import STEP_EVENTS, EngineLost, PipelineSlept
from moebox.core.pipeline import Pipeline, PipelineStep, RunRequest, StepFigures, StepName
from moebox.core.plan import Plan
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import PlannedFor, Recipe
from moebox.core.result import Measurement
from moebox.core.verdict import Mark
from moebox.doctor.logs import is_transient
from moebox.errors import AnswerIsNo, BadInput, ExternalError, MoeboxError
from moebox.flows import boxes, phantom, recipes
from moebox.flows.live_engine import LiveEngine
from moebox.flows.pipeline import BY_HAND, REPORT, DiskFull, raise_disk_full, save_pipeline
from moebox.serve.faults import MEMORY_HINT, OUT_OF_MEMORY
from moebox.store import Run, calibrations
from moebox.stream.awake import AwakeClock
from moebox.units import format_count, format_range, format_seconds, format_streams, format_tok_s
from moebox.verify.options import VerifyOptions

T = TypeVar("T")
RunListener = Callable[[str, Any], None]  # ("step", Step), ("news", str), ("check", Verdict), ("trial", Trial)
NOT_SIMULATED: dict[StepName, str] = {
    "rehearse": "a simulation",
    "climb": "a simulation has no settings that could break",
    "task": "a simulation does no work",
}
LIVES, NAPS = 2, 3  # engines that may die under one step less one, and sleeps that may spoil it
TIMED_S, TIMED_TOKENS = 40.0, 1024  # for the steps of an embedded engine, and the longest request among them
TWIN_CHECKS = ("alive",)  # what a simulation, which has no answers, can be asked
CHECK_OPTIONS = (16_384, VerifyOptions(trials=12, parallel=4))  # the longest text in tokens, and how hard to look
SHORT_CHECK_OPTIONS = (1_024, VerifyOptions(trials=6, parallel=4, depths=(0.1, 0.9)))
LOADS = (1, 2, 4, 8, 16, 32, 64)  # streams at once
MARKS: tuple[Mark, ...] = ("pass", "warn", "fail", "skip")


class Runner:
    """Runs one pipeline in one run folder."""

    def __init__(
        self, run: Run, pipeline: Pipeline, *, awake: AwakeClock, notify: RunListener, confirm: Callable[[str], bool]
    ) -> None:
        self.run, self.pipeline, self.awake, self.notify, self.confirm = run, pipeline, awake, notify, confirm
        self.request: RunRequest = pipeline.request
        self.engine = LiveEngine(run, twin=pipeline.request.twin, planned_for=self._place, notify=self.report_news)
        self._figures: StepFigures = {}
        self._work: dict[StepName, Callable[[], None]] = {
            "plan": self._plan,
            "doctor": self._doctor,
            "rehearse": self._rehearse,
            "up": self._up,
            "verify": self._verify,
            "climb": self._climb,
            "bench": self._bench,
            "task": self._task,
            "report": self._report,
        }

    @property
    def _place(self) -> PlannedFor:
        """The box as it was given."""
        asked = self.request
        return PlannedFor(box=asked.box, ram=asked.ram, ram_bandwidth=asked.ram_bandwidth)

    def run_steps(self) -> Pipeline:
        """Every step that is left, up to the one asked for; the report is made whatever happened before it."""
        problem: MoeboxError | None = None
        try:
            for name in self._left():
                if _reached(name, problem):
                    problem = self._step(name) or problem
        finally:
            self.engine.close(detach=self.request.keep and problem is None)
        if problem:
            raise problem
        return self.pipeline

    def _left(self) -> list[StepName]:
        return [name for name in self.request.wanted_steps if not self.pipeline.step(name).is_over]

    def _step(self, name: StepName) -> MoeboxError | None:
        """One step, marked before and after; its failure is its result."""
        why = self._pointless(name)
        if why:
            with raise_disk_full(self.run):
                self._mark(PipelineStep(name=name, state="skipped", why=why))
            return None
        self._figures, began, away = {}, self.awake.active_now(), self.awake.away_s
        step = PipelineStep(name=name, state="running")
        problem: MoeboxError | None = None
        try:
            with raise_disk_full(self.run):
                self._mark(step)
                self._work[name]()
                if self.awake.away_s > away:
                    self.run.add_event(PipelineSlept(step=name, seconds=self.awake.away_s - away))
                done = dataclasses.replace(step, state="done", figures=self._figures)
                self._mark(dataclasses.replace(done, seconds=self.awake.active_now() - began))
        except MoeboxError as found:
            problem = found
            failed = dataclasses.replace(
                step, state="failed", why=found.message, hint=found.hint or "", figures=self._figures
            )
            with contextlib.suppress(DiskFull), raise_disk_full(self.run):  # then the file still says that it runs
                self._mark(dataclasses.replace(failed, seconds=self.awake.active_now() - began))
        return problem

    def _mark(self, step: PipelineStep) -> None:
        self.pipeline = self.pipeline.with_step(step)
        self.run.add_event(STEP_EVENTS[step.state](step=step.name, why=step.why), sync=step.state == "done")
        if step.state == "failed":  # first: the full disk that it may be about refuses the file too
            self.notify("step", step)
        save_pipeline(self.pipeline, self.run)
        if step.state != "failed":
            self.notify("step", step)

    def _pointless(self, name: StepName) -> str:
        """Why a step is left out; "" when it is to be done."""
        if name in self.request.skip:
            return BY_HAND
        if self.request.twin and name in NOT_SIMULATED:
            return NOT_SIMULATED[name]
        own = {"task": self._no_task, "doctor": self._no_doctor}.get(name)
        return own() if own else ""

    def _no_task(self) -> str:
        wanted = self.request.until == "task" or not self.request.quick
        return "" if wanted else "left out by --quick; `--until task` does it"

    def _no_doctor(self) -> str:
        return f"{self.request.box} is described, not this machine" if self.request.box else ""

    def report_news(self, text: str) -> None:
        """Something worth a line."""
        self.notify("news", text)

    # The steps.

    def _plan(self) -> None:
        box = self._box()
        self.run.write_file("box.toml", codec.to_toml(box))
        recipe = recipes.load_recipe(self.request.recipe) if self.request.recipe else self._planned_recipe(box)
        if self.request.port is not None:
            recipe = recipe.with_port(self.request.port)
        self._figures |= {
            "engine": recipe.engine,
            "checkpoint": Path(recipe.checkpoint).name,
            "context": recipe.context or "the model's",
        }
        self.run.write_file("recipe.toml", codec.to_toml(recipe))
        self.run.write_file("asked.toml", codec.to_toml(recipe))

    def _planned_recipe(self, box: Box) -> Recipe:
        plan = self._planned(box)
        self.run.write_json("plan.json", plan)
        self._figures |= {"kv_tokens": plan.memory.kv_tokens}
        if plan.forecast:
            first = plan.forecast[0]
            load = f"with {format_streams(first.concurrency)} at {format_count(first.context)} tokens"
            band = format_range(first.low_tok_s, first.high_tok_s)
            self._figures["forecast"] = f"{format_tok_s(first.decode_tok_s)} ({band}) {load}"
        for caution in plan.warnings:
            if caution.severity == "fatal":
                raise AnswerIsNo(f"the plan would not start: {caution.text}", hint=caution.remedy)
        return plan.recipe

    def _planned(self, box: Box) -> Plan:
        if not self.request.model:
            return phantom.plan_phantom(box)
        from moebox.planner.choose import choose_plan
        from moebox.planner.constraints import Constraints

        model, checkpoints = resolve_model(self.request.model)
        plan, asked = choose_plan(box, model, checkpoints, Constraints()), self.request
        return boxes.with_planned_box(plan, asked.box, ram=asked.ram, ram_bandwidth=asked.ram_bandwidth)

    def _doctor(self) -> None:
        from moebox.doctor.box import check_this_machine

        checks = check_this_machine(self._box())
        self.run.write_json("doctor.json", {"checks": checks})
        bad = [check for check in checks if check.verdict == "fail"]
        self._figures |= {"checked": len(checks), "failed": len(bad)}
        self._kernels()
        for check in bad:
            self.report_news(f"{check.name}: {check.found}. {check.fix}")
        if bad and not self.confirm(f"{len(bad)} checks of this machine failed; go on?"):
            raise AnswerIsNo(f"{bad[0].name}: {bad[0].found}", hint=bad[0].fix)

    def _kernels(self) -> None:
        """Which kernels of the engine are known not to launch here, from the table; the report shows it."""
        from moebox.flows import kernels

        found = kernels.lookup_findings(deploy(self._recipe(), self._box()))
        if found is None:
            return
        kernels.save_findings(self.run, found)
        self._figures["kernels_failing"] = len(found.bad)
        for bad in found.bad:
            asked = f"{bad.kernel} asks {format_count(bad.shared_bytes)} bytes of {format_count(bad.limit_bytes)}"
            self.report_news(f"{asked}: `moebox doctor kernels --engine {found.engine} --kv {found.kv} --fix` fixes it")

    def _rehearse(self) -> None:
        from moebox.flows.rehearse import rehearse

        if self._recipe().runtime.kind == "embedded":
            self._timed()
            return
        found = rehearse(deploy(self._recipe()), self.run)
        self._figures |= {"rehearsed": str(getattr(found, "summary", "") or "booted, prompted, stopped")}

    def _timed(self) -> None:
        """An engine with its weights here needs no rehearsal of its start: its steps are timed, for the forecast."""
        from moebox.flows.calibrate import calibrate
        from moebox.planner.speed import Speed

        try:
            found = calibrate(self._recipe(), self.run, longest=TIMED_TOKENS, budget_s=TIMED_S)
        except (AnswerIsNo, ExternalError) as problem:
            self.report_news(f"the forecast stays as planned: {problem.message}")
            return
        box = calibrations.with_calibrations(self._box())
        self.run.write_file("box.toml", codec.to_toml(box))
        speed = Speed.for_deployment(deploy(self._recipe(), box))
        self._figures |= {"forecast": speed.measured.text if speed.measured else found.id}

    def _up(self) -> None:
        endpoint = self.engine.start(self._recipe())
        self._figures |= {"url": endpoint.base_url, "startup": format_seconds(self.engine.startup_s)}
        if self.engine.facts.kv_tokens:
            self._figures["kv_tokens"] = int(self.engine.facts.kv_tokens)

    def _verify(self) -> None:
        from moebox.verify.ladder import run_checks

        only = TWIN_CHECKS if self.request.twin else ()
        longest, options = SHORT_CHECK_OPTIONS if self.request.is_short else CHECK_OPTIONS
        options = dataclasses.replace(options, context=min(self._recipe().context, longest))

        def check_endpoint(endpoint: Endpoint) -> None:
            ladder = run_checks(
                endpoint, options, only=only, run=self.run, on_check=lambda rung: self.notify("check", rung)
            )
            self._figures = {mark: len(ladder.checks_with(mark)) for mark in MARKS if ladder.checks_with(mark)}
            why = first_unexpected_failure(ladder)
            if why:
                raise AnswerIsNo(f"the endpoint did not pass the ladder ({why})", hint=f"evidence in {self.run.path}")
            # What every server of this engine does is no reason to stop; `moebox run` still ends with exit code 1.
            for rung in ladder.checks_with("fail"):
                self.report_news(f"{rung.name} fails by a known habit of {'; '.join(rung.habits)}")

        self._with_engine(check_endpoint)

    def _climb(self) -> None:
        from moebox.flows.climb import climb
        from moebox.flows.effort import NORMAL_CLIMB, SHORT_CLIMB

        self.engine.stop()
        effort = SHORT_CLIMB if self.request.is_short else NORMAL_CLIMB
        asked = codec.read_toml(Recipe, self.run.path / "asked.toml")
        summit = climb(asked, self.run, effort=effort, notify=self._climbing, box=self._box())
        kept = [trial for trial in summit.trials if trial.kept]
        self._figures |= {"steps": len(summit.trials), "kept": len(kept)}
        if summit.best:
            self.run.write_file("recipe.toml", codec.to_toml(summit.best.recipe))
            self._figures["best"] = (
                f"{format_tok_s(summit.best.output_tok_s)} of short prompts "
                f"at context {format_count(summit.best.recipe.context)}"
            )

    def _climbing(self, kind: str, what: Any) -> None:
        if kind == "done":
            self.notify("trial", what)
        elif kind == "news":
            self.report_news(what)

    def _bench(self) -> None:
        rows = self._with_engine(self._measured)
        honest = [row for row in rows if not row.client_limited]
        best = max(honest or rows, key=lambda row: row.output_throughput)
        self._figures |= {
            "output": f"{format_tok_s(best.output_throughput)} with {format_streams(best.max_concurrency)}",
            "ttft": format_seconds((best.ttft.mean or 0.0) / 1e3),
            **_failures(rows),
        }

    def _measured(self, endpoint: Endpoint) -> list[Measurement]:
        from moebox.flows.measure import measure_loads

        short, most = self.request.is_short, self._recipe().max_seqs or 32
        levels = self.request.concurrency or tuple(level for level in LOADS if level <= 2 * most)
        return measure_loads(
            endpoint,
            self.run,
            loads=levels,
            short=short,
            notify=self.report_news,
            is_alive=lambda: not self.engine.is_dead(),
        )

    def _task(self) -> None:
        from moebox.flows.work import run_tasks

        short = self.request.is_short
        told = self._with_engine(lambda endpoint: run_tasks(endpoint, self.run, short=short, notify=self.report_news))
        self._figures |= {
            "solved": f"{sum(result.solved for result in told.finished_results)} of {len(told.finished_results)} jobs"
        }
        if told.unfinished_jobs:
            self._figures["left"] = len(told.unfinished_jobs)

    def _report(self) -> None:
        from moebox.report.files import write_report

        made = write_report([self.run], self.run.path / REPORT, markdown=True)
        self._figures |= {"report": made[0].name}  # a run folder may be copied

    # What the steps share.

    def _with_engine(self, work: Callable[[Endpoint], T]) -> T:
        """Do `work` against the live engine; once more when the engine dies under it, or when it slept and failed."""
        deaths, naps = 0, NAPS
        while True:
            endpoint = self.engine.start(self._recipe())
            away = self.awake.away_s
            try:
                return work(endpoint)
            except MoeboxError:
                if self.engine.is_dead():
                    deaths += 1
                elif self.awake.away_s > away and naps:  # deadlines passed while nobody was here
                    naps -= 1
                    self.report_news("the machine slept or moebox was stopped; once more")
                    continue
                else:
                    raise
            self._lost(deaths)

    def _lost(self, deaths: int) -> None:
        """The engine died; Outside where it is not started again."""
        self.run.add_event(EngineLost(attempt=deaths))
        if self.engine.stop():
            raise ExternalError(f"the engine {OUT_OF_MEMORY}", hint=MEMORY_HINT)
        if deaths == LIVES:
            log = f"{self.run.path}/engine.log"
            raise ExternalError("the engine died twice under the same step", hint=f"`moebox doctor logs {log}`")
        self.report_news("the engine died; it is started again")

    @property
    def _recipe_path(self) -> Path:
        """The climb's best, once it is over; until then the plan's."""
        planned = self.run.path / "recipe.toml"
        if self.pipeline.step("climb").state != "done":
            return planned
        from moebox.flows.climb import BEST_FILE

        best = self.run.path / BEST_FILE
        return best if best.exists() else planned

    def _recipe(self) -> Recipe:
        path = self._recipe_path
        if not path.exists():
            raise BadInput(f"{self.run.path} has no recipe yet", hint="the plan is the first step")
        recipe = codec.read_toml(Recipe, path)
        if not self.request.is_rehearsal or self.request.port is not None:
            return recipe
        return recipe.with_port(0)

    def _box(self) -> Box:
        saved = self.run.path / "box.toml"
        if saved.exists():
            return codec.read_toml(Box, saved)
        asked = self.request
        memory = {"ram": asked.ram, "ram_bandwidth": asked.ram_bandwidth}
        if asked.twin and asked.recipe:  # the twin is of the box that the recipe was planned for
            return boxes.box_for_recipe(recipes.load_recipe(asked.recipe), asked.box, **memory)
        if asked.box:
            return boxes.calibrated_box(asked.box, **memory)
        from moebox.detect.declared import with_ram
        from moebox.detect.machine import detect_machine as look

        told = self.request.ram_bandwidth
        here = with_ram(look(measure=not told), ram=self.request.ram, ram_bandwidth=told)
        return calibrations.with_calibrations(here)


def _reached(name: StepName, problem: MoeboxError | None) -> bool:
    """Whether a step is done after `problem`: a report is made of whatever there is, but not on a full disk."""
    return problem is None or (name == "report" and not isinstance(problem, DiskFull))


def _failures(rows: Sequence[Measurement]) -> StepFigures:
    """How many requests failed, and how many by a known habit of the engine; nothing where none did."""
    asked, bad = sum(row.num_prompts for row in rows), sum(row.bad_requests for row in rows)
    known = sum(times for row in rows for error, times in row.errors.items() if is_transient(error))
    counted = {"requests_failed": bad - known, "failed_by_a_known_habit": known}
    return {name: f"{number} of {asked}" for name, number in counted.items() if number > 0}
