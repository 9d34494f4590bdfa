"""`moebox run`: plan, doctor, rehearse, up, verify, climb, bench, task, report, as one pipeline.

Each step calls the same function as its own command. The engine lives across steps and is started again if a step
needs it and it is not running: after a crash, a resume, or a climb to a better recipe.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from moebox import codec
from moebox.checkpoint import deploy, resolve_model
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.event import STEP_EVENTS, EngineLost, PipelineSlept, StepState
from moebox.core.pipeline import Pipeline, PipelineStep, StepFigures, StepName
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import PlannedFor, Recipe
from moebox.core.verdict import Mark
from moebox.detect.stall import DEFAULT_LIMITS, STANDS_STILL, ServerStalled
from moebox.doctor.logs import is_transient
from moebox.errors import AnswerIsNo, ExternalError, MoeboxError, refuse_if
from moebox.flows import recipes
from moebox.flows.live_engine import LiveEngine
from moebox.flows.pipeline import BY_HAND, REPORT, DiskFull, raise_disk_full, save_pipeline
from moebox.phantom import ENDLESS_TEXT
from moebox.serve.faults import MEMORY_HINT, OUT_OF_MEMORY
from moebox.serve.state import hold_endpoint
from moebox.store import Run, calibrations
from moebox.stream.awake import AwakeClock
from moebox.units import format_count, format_gb, format_range, format_seconds, format_streams, format_tok_s
from moebox.verify.options import TIME_S, TRIALS, VerifyOptions

T = TypeVar("T")
RunListener = Callable[[str, Any], None]  # ("step", Step), ("news", str), ("check", Verdict), ("trial", Trial)
NOT_SIMULATED: dict[StepName, str] = {
    "rehearse": "a simulation",
    "climb": "a simulation has no settings that could break",
    "task": "a simulation does no work",
}
MAX_DEATHS = 2  # of the engine during one step
MAX_SLEEPS = 3  # of the machine during one step
TIMED_S, TIMED_TOKENS = 25.0, 512  # budget to time an embedded engine, and its longest request; the demo's have 160
TWIN_CHECKS = ("alive",)  # a simulation has no answers to check
CHECK_OPTIONS = (16_384, VerifyOptions(parallel=4))  # the longest text in tokens, and the effort
SHORT_CHECK_OPTIONS = (1_024, VerifyOptions(trials=6, parallel=4, depths=(0.1, 0.9)))
LOADS = (1, 2, 4, 8, 16, 32, 64)  # concurrent streams
MARKS: tuple[Mark, ...] = ("pass", "warn", "fail", "skip")


class Runner:
    """Runs one pipeline in one run folder; the step NAME is the method step_NAME."""

    def __init__(
        self, run: Run, pipeline: Pipeline, *, awake: AwakeClock, notify: RunListener, confirm: Callable[[str], bool]
    ) -> None:
        self.run, self.pipeline, self.awake, self.notify, self.confirm = run, pipeline, awake, notify, confirm
        self.report_news = partial(notify, "news")
        self.request = request = pipeline.request
        planned_for = PlannedFor(box=request.box, ram=request.ram, ram_bandwidth=request.ram_bandwidth)
        self.engine = LiveEngine(run, twin=request.twin, planned_for=planned_for, notify=self.report_news)
        self._figures: StepFigures = {}  # of the running step
        self._began = 0.0

    def run_steps(self) -> Pipeline:
        """Run every remaining step up to the requested one. The report is made even after a failure."""
        problem: MoeboxError | None = None
        try:
            for name in self.request.wanted_steps:
                if self.pipeline.step(name).is_over:
                    continue
                if problem is None or (name == "report" and not isinstance(problem, DiskFull)):
                    problem = self._run_step(name) or problem
        finally:
            self.engine.close(detach=self.request.keep and problem is None)
        if problem:
            raise problem
        return self.pipeline

    def _run_step(self, name: StepName) -> MoeboxError | None:
        """Run one step, recorded before and after, and return its failure."""
        self._figures, self._began, away = {}, self.awake.active_now(), self.awake.away_s
        try:
            with raise_disk_full(self.run):
                if reason := self._skip_reason(name):
                    self._record(name, "skipped", reason)
                    return None
                self._record(name, "running")
                getattr(self, f"step_{name}")()
                if self.awake.away_s > away:
                    self.run.add_event(PipelineSlept(step=name, seconds=self.awake.away_s - away))
                self._record(name, "done")
        except MoeboxError as problem:
            with contextlib.suppress(DiskFull), raise_disk_full(self.run):  # then the file still has it as running
                self._record(name, "failed", problem.message, problem.hint or "")
            return problem
        return None

    def _record(self, name: StepName, state: StepState, why: str = "", hint: str = "") -> None:
        step = PipelineStep(name=name, state=state, why=why, hint=hint)
        if state in ("done", "failed"):
            step = replace(step, figures=self._figures, seconds=self.awake.active_now() - self._began)
        self.pipeline = self.pipeline.with_step(step)
        self.run.add_event(STEP_EVENTS[step.state](step=step.name, why=step.why), sync=step.state == "done")
        if step.state == "failed":  # notify first: if the disk is full, the file cannot be written
            self.notify("step", step)
        save_pipeline(self.pipeline, self.run)
        if step.state != "failed":
            self.notify("step", step)

    def _skip_reason(self, name: StepName) -> str:
        request = self.request
        if name in request.skip:
            return BY_HAND
        if request.twin and name in NOT_SIMULATED:
            return NOT_SIMULATED[name]
        if name == "task" and request.quick and request.until != "task":
            return "left out by --effort quick; `--until task` does it"
        if name == "doctor" and request.box:
            return f"{request.box} is described, not this machine"
        return ""

    # The steps.

    def step_plan(self) -> None:
        request, box = self.request, self._box()
        self.run.write_file("box.toml", codec.to_toml(box))
        if request.recipe:
            recipe = recipes.load_recipe(request.recipe)
        else:
            from moebox.planner.choose import choose_plan
            from moebox.planner.constraints import Constraints

            if request.model:
                plan = choose_plan(box, *resolve_model(request.model), Constraints())
                memory = {"ram": request.ram, "ram_bandwidth": request.ram_bandwidth}
                plan = recipes.with_planned_box(plan, request.box, **memory)
            else:
                plan = recipes.plan_phantom(box)
            self.run.write_json("plan.json", plan)
            recipe, self._figures["kv_tokens"] = plan.recipe, plan.memory.kv_tokens
            for first in plan.forecast[:1]:
                rate = f"{format_tok_s(first.decode_tok_s)} ({format_range(first.low_tok_s, first.high_tok_s)})"
                load = f"with {format_streams(first.concurrency)} at {format_count(first.context)} tokens"
                self._figures["forecast"] = f"{rate} {load}"
            if fatal := next((warning for warning in plan.warnings if warning.severity == "fatal"), None):
                raise AnswerIsNo(f"the plan would not start: {fatal.text}", hint=fatal.remedy)
        if request.port is not None:
            recipe = recipe.with_port(request.port)
        checkpoint, context = Path(recipe.checkpoint).name, recipe.context or "the model's"
        self._figures |= {"engine": recipe.engine, "checkpoint": checkpoint, "context": context}
        for name in ("recipe.toml", "asked.toml"):
            self.run.write_file(name, codec.to_toml(recipe))
        if "up" in request.wanted_steps and "up" not in request.skip and not request.twin:
            from moebox.flows.weights import offer_weights

            if size := offer_weights(deploy(recipe, box), confirm=self.confirm, notify=self.report_news):
                self._figures["fetched"] = format_gb(size)

    def step_doctor(self) -> None:
        from moebox.doctor.box import check_this_machine
        from moebox.flows import kernels

        checks = check_this_machine(self._box())
        self.run.write_json("doctor.json", {"checks": checks})
        failed = [check for check in checks if check.verdict == "fail"]
        self._figures |= {"checked": len(checks), "failed": len(failed)}
        found = kernels.lookup_findings(deploy(self._recipe(), self._box()))
        if found is not None:  # the table knows which of the engine's kernels do not launch here
            kernels.save_findings(self.run, found)
            self._figures["kernels_failing"] = len(found.bad)
            for bad in found.bad:
                shared, limit = format_count(bad.shared_bytes), format_count(bad.limit_bytes)
                fix = f"`moebox doctor kernels --engine {found.engine} --kv {found.kv} --fix` fixes it"
                self.report_news(f"{bad.kernel} asks {shared} bytes of {limit}: {fix}")
        for check in failed:
            self.report_news(f"{check.name}: {check.found}. {check.fix}")
        if failed and not self.confirm(f"{len(failed)} checks of this machine failed; go on?"):
            raise AnswerIsNo(f"{failed[0].name}: {failed[0].found}", hint=failed[0].fix)

    def step_rehearse(self) -> None:
        """Rehearse the start; time an embedded engine instead, whose weights are here already."""
        if self._recipe().runtime.kind != "embedded":
            from moebox.flows.rehearse import rehearse

            self._figures |= {"rehearsed": rehearse(deploy(self._recipe()), self.run).summary}
            return
        from moebox.flows.calibrate import calibrate
        from moebox.planner.speed import Speed

        try:
            calibration = calibrate(self._recipe(), self.run, longest=TIMED_TOKENS, budget_s=TIMED_S)
        except (AnswerIsNo, ExternalError) as problem:
            self.report_news(f"the forecast stays as planned: {problem.message}")
            return
        box = calibrations.with_calibrations(self._box())
        self.run.write_file("box.toml", codec.to_toml(box))
        speed = Speed.for_deployment(deploy(self._recipe(), box))
        self._figures |= {"forecast": speed.measured.text if speed.measured else calibration.id}

    def step_up(self) -> None:
        endpoint, session = self.engine.start(self._recipe()), self.engine.session
        assert session
        self._figures |= {"url": endpoint.base_url, "startup": format_seconds(session.startup_s)}
        if session.ready and session.ready.load_text:
            self._figures["load"] = session.ready.load_text
        if session.facts.kv_tokens:
            self._figures["kv_tokens"] = int(session.facts.kv_tokens)

    def step_verify(self) -> None:
        from moebox.planner.speed import Speed
        from moebox.verify.runner import run_checks

        longest, options = SHORT_CHECK_OPTIONS if self.request.is_short else CHECK_OPTIONS
        if self.request.thorough:
            options = replace(options, trials=TRIALS["thorough"], time_s=TIME_S["thorough"])
        options = replace(options, context=(context := min(self._recipe().context, longest)))
        prompt_tok_s = 0.0
        with contextlib.suppress(MoeboxError):  # no forecast for this recipe
            speed = Speed.for_deployment(deploy(self._recipe(), self._box()))
            prompt_tok_s = speed.prompt_range(context)[0] * speed.prefill_tok_s(context)
        limits = DEFAULT_LIMITS.for_prompts(context, prompt_tok_s)

        def check_endpoint(endpoint: Endpoint) -> None:
            only, on_check = TWIN_CHECKS if self.request.twin else (), partial(self.notify, "check")
            checks = run_checks(endpoint, options, only=only, run=self.run, on_check=on_check, stall_limits=limits)
            self._figures = {mark: len(checks.checks_with(mark)) for mark in MARKS if checks.checks_with(mark)}
            if STANDS_STILL in checks.stopped:
                raise ServerStalled(checks.stopped, hint="".join(checks.notes[-1:]))
            if failure := first_unexpected_failure(checks):
                text = f"the endpoint did not pass the checks ({failure})"
                raise AnswerIsNo(text, hint=f"evidence in {self.run.path}")
            for check in checks.rungs:
                if check.quirks:
                    self.report_news(f"{check.name}: known quirk of {'; '.join(check.quirks)}")

        self._with_engine(check_endpoint)

    def step_climb(self) -> None:
        from moebox.flows.trials import climb
        from moebox.flows.walk import NORMAL_CLIMB, SHORT_CLIMB

        def pass_on(kind: str, news: Any) -> None:
            if kind in ("done", "news"):
                self.notify("trial" if kind == "done" else kind, news)

        self.engine.stop()
        effort = SHORT_CLIMB if self.request.is_short else NORMAL_CLIMB
        recipe = codec.read_toml(Recipe, self.run.path / "asked.toml")
        result = climb(recipe, self.run, effort=effort, notify=pass_on, box=self._box())
        self._figures |= {"steps": len(result.trials), "kept": sum(trial.kept for trial in result.trials)}
        if best := result.best:
            self.run.write_file("recipe.toml", codec.to_toml(best.recipe))
            speed, context = format_tok_s(best.output_tok_s), format_count(best.recipe.context)
            self._figures["best"] = f"{speed} of short prompts at context {context}"

    def step_bench(self) -> None:
        from moebox.flows.measure import LONG, SHORT, measure_loads

        recipe, work = self._recipe(), SHORT if self.request.is_short else LONG
        # Random prompts make the phantom write what llama.cpp's chat parser refuses: it is measured without the parser.
        if recipe.runtime.kind == "embedded" and recipe.model == recipes.PHANTOM:
            work = replace(work, api="completions", extra=dict(ENDLESS_TEXT))
        loads = self.request.concurrency or tuple(load for load in LOADS if load <= 2 * (recipe.max_seqs or 32))
        measure = partial(
            measure_loads, run=self.run, work=work, loads=loads, notify=self.report_news, is_dead=self.engine.is_dead
        )
        rows = self._with_engine(measure)
        not_limited = [row for row in rows if not row.client_limited]
        best = max(not_limited or rows, key=lambda row: row.output_throughput)
        self._figures |= {
            "output": f"{format_tok_s(best.output_throughput)} with {format_streams(best.max_concurrency)}",
            "ttft": format_seconds((best.ttft.mean or 0.0) / 1e3),
        }
        requests, failed = sum(row.num_prompts for row in rows), sum(row.bad_requests for row in rows)
        known = sum(times for row in rows for error, times in row.errors.items() if is_transient(error))
        counts = {"requests_failed": failed - known, "failed_by_a_known_quirk": known}
        self._figures |= {name: f"{count} of {requests}" for name, count in counts.items() if count > 0}

    def step_task(self) -> None:
        from moebox.flows.jobs import run_tasks

        work = partial(run_tasks, run=self.run, short=self.request.is_short, notify=self.report_news)
        tasks = self._with_engine(work)
        finished = tasks.finished_results
        self._figures |= {"solved": f"{sum(result.solved for result in finished)} of {len(finished)} jobs"}
        if tasks.unfinished_jobs:
            self._figures["left"] = len(tasks.unfinished_jobs)

    def step_report(self) -> None:
        from moebox.report.files import write_report

        paths = write_report([self.run], self.run.path / REPORT, markdown=True)
        self._figures |= {"report": paths[0].name}  # a name, not a path: the run folder may be copied

    # What the steps share.

    def _with_engine(self, work: Callable[[Endpoint], T]) -> T:
        """Do `work` with the live engine. Repeat it if the engine dies, or if it failed after the machine slept.

        Raise ExternalError if the engine ran out of memory or died twice.
        """
        deaths = sleeps = 0
        while True:
            endpoint, away = self.engine.start(self._recipe()), self.awake.away_s
            try:
                with hold_endpoint(endpoint.base_url, f"moebox run, {self.run.id}"):
                    return work(endpoint)
            except MoeboxError:
                if not self.engine.is_dead():
                    if self.awake.away_s == away or sleeps == MAX_SLEEPS:
                        raise
                    sleeps += 1  # deadlines passed while the machine slept
                    self.report_news("the machine slept or moebox was stopped; repeating the step")
                    continue
            deaths += 1
            self.run.add_event(EngineLost(attempt=deaths))
            if self.engine.stop():
                raise ExternalError(f"the engine {OUT_OF_MEMORY}", hint=MEMORY_HINT)
            if deaths == MAX_DEATHS:
                hint = f"`moebox doctor logs {self.run.path}/engine.log`"
                raise ExternalError("the engine died twice under the same step", hint=hint)
            self.report_news("the engine died; it is started again")

    def _recipe(self) -> Recipe:
        """The best recipe of a finished climb; before that the plan's."""
        path = self.run.path / "recipe.toml"
        if self.pipeline.step("climb").state == "done":
            from moebox.flows.trials import BEST_FILE

            best = self.run.path / BEST_FILE
            path = best if best.exists() else path
        refuse_if(not path.exists(), f"{self.run.path} has no recipe yet", hint="the plan is the first step")
        recipe = codec.read_toml(Recipe, path)
        return recipe.with_port(0) if self.request.is_rehearsal and self.request.port is None else recipe

    def _box(self) -> Box:
        saved = self.run.path / "box.toml"
        if saved.exists():
            return codec.read_toml(Box, saved)
        request = self.request
        memory = {"ram": request.ram, "ram_bandwidth": request.ram_bandwidth}
        if request.twin and request.recipe:  # the twin simulates the box that the recipe was planned for
            return recipes.planned_box(recipes.load_recipe(request.recipe).planned_for, request.box, **memory)
        if request.box:
            return recipes.calibrated_box(request.box, **memory)
        from moebox.detect.declared import with_ram
        from moebox.detect.machine import detect_machine

        machine = detect_machine(measure=not request.ram_bandwidth)
        return calibrations.with_calibrations(with_ram(machine, **memory))
