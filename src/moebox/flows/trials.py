"""Trials: start an engine with a changed recipe, check it, measure it, and judge it against the best so far.

RUN/  climb.json      every trial so far, and the best; written after each, so that a climb or a tuning can be resumed
      start.toml      the recipe at the start
      effort.toml     what is measured in each trial; the same for all, because they are compared
      climb/TRIAL/    the engine of each trial: recipe, log, verdicts
      best.toml       the best verified recipe
"""

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core import event
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.engine_event import FailureEvent, StopEvent
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import Recipe
from moebox.core.verdict import Mark
from moebox.errors import AnswerIsNo, MoeboxError, NotInstalled, refuse_if
from moebox.flows import answers, pace, walk
from moebox.flows.pace import SpeedRounds, bracketing_gain, welch_gain
from moebox.flows.walk import ClimbEffort, ClimbMeasures, ClimbTrial, SettingStep, with_setting
from moebox.quality.measure import QualityGate
from moebox.runs.reader import FolderReader
from moebox.serve import ports, power, state
from moebox.serve.faults import OUT_OF_MEMORY
from moebox.serve.session import EngineSession
from moebox.serve.state import wait_for
from moebox.store import Run
from moebox.stream.awake import AwakeClock
from moebox.units import plural
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks

TABLE_FILE, START_FILE, BEST_FILE = "climb.json", "start.toml", "best.toml"
TRIAL_FILE = "trial.toml"  # the recipe that the checks in a trial's folder are of
ATTEMPTS = 2  # at a step whose engine was killed by another process
GUARD_STOP_S = 120.0  # longer than a guard takes from SIGINT to SIGKILL

ClimbListener = Callable[[str, Any], None]  # ("try", SettingStep), ("news", str), ("check", Verdict), ("done", Trial)


class TrialRunner:
    """Tries recipes one after another and keeps the best; the run folder has its state after each trial."""

    command = "climb"

    def __init__(self, recipe: Recipe, run: Run, effort: ClimbEffort, notify: ClimbListener, box: Box | None) -> None:
        self.recipe, self.run, self.effort, self.notify, self.box = recipe, run, effort, notify, box
        self.trials = load_trials(recipe, run, effort, self.command)
        self.best = next((trial for trial in reversed(self.trials) if trial.kept), None)
        self.passed_over: dict[str, str] = {}  # steps that were not tried, and the reason
        self.boot = ""  # the kernel's id of this start of the machine
        with contextlib.suppress(OSError):
            self.boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def skip(self, change: str, reason: str) -> None:
        self.passed_over[change] = reason
        self.run.add_event(event.ClimbSkipped(change=change, why=reason))

    def add_trial(self, trial: ClimbTrial) -> None:
        self.trials.append(trial)
        if trial.kept:
            self.best = trial
        elif self.best and trial.again:  # the newest measurement of the best step
            self.best = replace(self.best, samples=trial.again)
        self.save_table()
        kind: type[event.ClimbStep] = event.ClimbKept if trial.kept else event.ClimbDropped
        self.run.add_event(kind(**codec.pick_fields(trial, kind.__struct_fields__)), sync=True)

    def save_table(self, *, ended: bool = False) -> None:
        table = {"ended": ended, "best": self.best.number if self.best else None, "steps": self.trials}
        self.run.write_json(TABLE_FILE, {**table, "passed_over": self.passed_over})

    def reason_to_skip(self, step: SettingStep) -> str:
        """Why a step is not started, or "": it is pointless, does not fit, or restarted the machine the last time."""
        if reason := walk.skip_reason(step, self.best, self.trials, self.recipe):
            return reason
        begun_at = ""  # the boot id of the last attempt that has no result
        for entry in self.run.read_events():
            if isinstance(entry, event.ClimbTried | event.ClimbStep) and entry.change == step.change:
                begun_at = getattr(entry, "boot", "")
        if begun_at and begun_at != self.boot:
            return "the machine restarted while it was tried, so it is not tried again"
        deployment = deploy(self.recipe_for(step)).on_box(self.box)
        return walk.memory_problem(deployment) or (walk.startup_problem(deployment) if self.best else "")

    def recipe_for(self, step: SettingStep) -> Recipe:
        if self.best is None:
            return walk.starting_recipe(self.recipe)
        return with_setting(self.best.recipe, step.path, step.value)

    def try_or_skip(self, step: SettingStep, number: int, keep: Callable[[ClimbTrial], None]) -> ClimbTrial | None:
        """Start, verify, measure and judge a step, and `keep` its result, which may be a failure.

        Return None if there is a reason not to try it.
        """
        if reason := self.reason_to_skip(step):
            self.skip(step.change, reason)
            return None
        began = time.monotonic()
        self.notify("try", step)
        self.run.add_event(event.ClimbTried(change=step.change, boot=self.boot), sync=True)
        folder, recipe = f"climb/{self.run.id}-{number:02d}", self.recipe_for(step)
        shared = codec.shared_fields(step, ClimbTrial)
        trial = ClimbTrial(number=number, change=step.change, recipe=recipe, verdict="fail", folder=folder, **shared)
        trial = self._measure_with_retry(trial, step)
        gain = trial.gain if step.path and trial.verdict != "fail" else None
        if self.best and gain and (gain.high < walk.SLOWER if step.path == "context" else gain.is_significant):
            trial = self._measure_best_again(trial, self.best)  # the decision depends on a difference in speed
        kept, reason = walk.decide_trial(trial, self.best, required_context=self.recipe.context)
        trial = replace(trial, kept=kept, why=reason, seconds=time.monotonic() - began)
        keep(trial)
        self.notify("done", trial)
        return trial

    def _measure_with_retry(self, trial: ClimbTrial, step: SettingStep) -> ClimbTrial:
        """Measure a step; retry once if it failed because its engine was killed or the machine slept."""
        for left in reversed(range(ATTEMPTS)):
            with AwakeClock() as awake:
                try:
                    result = self._measure(trial, step)
                except NotInstalled:
                    raise
                except MoeboxError as problem:  # an engine that does not start, or dies, is a result
                    result = replace(trial, verdict="fail", why=problem.message)
            oom = killed = False  # by a SIGKILL that moebox did not send
            for end in Run(self.run.path / trial.folder).read_events():
                if isinstance(end, FailureEvent):
                    oom, killed = end.fault == "oom", "was killed by SIGKILL" in end.message
                elif isinstance(end, StopEvent):
                    oom, killed = bool(end.oom), end.code == -signal.SIGKILL and "SIGKILL" not in (end.signals or ())
            if oom:  # not retried: the next attempt may take down the whole machine
                reason = result.why if "out of memory" in result.why else f"its engine {OUT_OF_MEMORY}"
                return replace(result, verdict="fail", why=reason)
            disturbance = "the machine slept" if awake.away_s else "its engine was killed" if killed else ""
            if not (result.verdict == "fail" and disturbance and left):
                break
            self.run.add_event(event.ClimbRetried(change=step.change, why=disturbance))
        return result

    def _measure(self, trial: ClimbTrial, step: SettingStep) -> ClimbTrial:
        effort, best = self.effort, self.best
        before = Run(self.run.path / best.folder) if best else None
        folder, text = self.run.make_folder(trial.folder), codec.to_toml(trial.recipe)
        (path := folder.path / TRIAL_FILE).touch()
        if path.read_text(encoding="utf-8") != text:
            (folder.path / "verify.json").unlink(missing_ok=True)
            folder.write_file(TRIAL_FILE, text)
        with self.live_engine(trial.recipe, trial.folder) as (live, folder):
            trial = replace(trial, kv_tokens=int(live.facts.kv_tokens or 0))
            trial = self._check(trial, step, live.endpoint, folder)
            if trial.verdict == "fail":
                return trial
            counted = pace.read_metrics(live.endpoint)
            (replies,) = answers.collect_answers(live.endpoint, questions=effort.questions)
            folder.write_json("answers.json", replies)
            speed, watts = self.measure_speed(live, folder)
            trial = replace(trial, output_tok_s=speed.output_tok_s, ttft_ms=speed.mean_ttft_ms, watts=watts)
            share = pace.acceptance_rate(counted, pace.read_metrics(live.endpoint))
            if effort.jobs:
                from moebox.flows.jobs import find_lost_work

                seed = random.Random(self.run.id).randrange(10**6)  # the same jobs at every step of this climb
                if lost := find_lost_work(live.endpoint, folder, before, jobs=effort.jobs, seed=seed):
                    trial = replace(trial, verdict="fail", why=lost)
            if worse := self.find_quality_loss(live.endpoint, folder):
                trial = replace(trial, verdict="fail", why=worse)
        pairs = zip(replies, (before and before.read_json("answers.json")) or (), strict=False)
        same = sum(reply.text == str(earlier["text"]) for reply, earlier in pairs)
        right, samples = sum(reply.right for reply in replies), self.scores(speed, watts)
        gain = welch_gain(best.samples, samples) if best else None
        return replace(trial, samples=samples, gain=gain, acceptance=share, asked=len(replies), right=right, same=same)

    def scores(self, speed: SpeedRounds, watts: float) -> tuple[float, ...]:
        """What is compared, of each round; more is better."""
        return speed.tok_s

    def find_quality_loss(self, endpoint: Endpoint, folder: Run) -> str:
        """Why the log-probabilities are not shown to keep the quality limit, or "". The first step is scored only."""
        effort = self.effort
        if not effort.quality_limit:
            return ""
        first = next((trial for trial in self.trials if trial.kept), None)
        before = self.run.path / first.folder if first else None
        judged = QualityGate(effort.quality_limit, reference=effort.reference, before=before).judge(endpoint, folder)
        return f"quality: {judged.verdict}" if judged and not judged.keeps_limit else ""

    def measure_speed(self, live: EngineSession, folder: Run, *, rounds: int = 0) -> tuple[SpeedRounds, float]:
        """Measure an engine. Return its rounds and the mean power of its GPUs, 0 if that is unknown."""
        effort, gpus = self.effort, live.prepared.gpus
        joules, began = power.read_joules(gpus), time.monotonic()
        speed = effort.measure_speed(
            live.endpoint, concurrency=effort.concurrency, rounds=rounds or effort.rounds, tokens=effort.tokens
        )
        used, seconds = power.read_joules(gpus), time.monotonic() - began
        folder.write_json("measurements/pace.json", speed)
        return speed, 0.0 if joules is None or used is None else (used - joules) / seconds

    @contextlib.contextmanager
    def live_engine(self, recipe: Recipe, name: str) -> Iterator[tuple[EngineSession, Run]]:
        """Run an engine for the length of the block; no other command may measure it meanwhile."""
        folder, news = self.run.make_folder(name), partial(self.notify, "news")
        with (
            ports.start_on_free_port(deploy(recipe), folder, notify=news, patience_s=self.effort.patience_s) as live,
            state.hold_endpoint(live.endpoint.base_url, f"moebox {self.command}, {self.run.id}"),
        ):
            yield live, folder

    def _check(self, trial: ClimbTrial, step: SettingStep, endpoint: Endpoint, folder: Run) -> ClimbTrial:
        """Run the checks of a step. The verdict is "warn" if no check passed."""
        effort, recipe = self.effort, trial.recipe
        thinking: Literal["yes", "auto"] = "yes" if recipe.reasoning_parser and recipe.thinking else "auto"
        options = VerifyOptions(**codec.shared_fields(effort, VerifyOptions), context=recipe.context, thinking=thinking)
        only = step.checks if self.best else effort.first_checks or step.checks
        checks = FolderReader(folder).read_results()  # of the same recipe, before an interruption
        if checks and set(checks.marks) == set(only) and not first_unexpected_failure(checks):
            self.notify("news", f"{plural(len(only), 'check')} passed before the interruption")
        else:
            checks = run_checks(endpoint, options, only=only, run=folder, on_check=partial(self.notify, "check"))
        failure = first_unexpected_failure(checks)  # the engine's known quirks do not count against the setting
        verdict: Mark = "fail" if failure else checks.verdict if checks.has_passed else "warn"
        return replace(trial, verdict=verdict, rungs=checks.marks, why=failure)

    def _measure_best_again(self, trial: ClimbTrial, best: ClimbTrial) -> ClimbTrial:
        """Compare a step with the best one measured before and after it: A, B, A.

        Minutes pass between two steps; otherwise a machine that warms up or is shared looks like an effect.
        """
        self.notify("news", f"measuring {best.change} again, to separate the setting from the machine")
        try:
            with self.live_engine(best.recipe, f"{trial.folder}-again") as (live, folder):
                speed, _ = self.measure_speed(live, folder)
        except MoeboxError as problem:
            self.run.add_event(event.ClimbInconclusive(change=trial.change, why=problem.message))
            return replace(trial, gain=None)
        return replace(trial, again=speed.tok_s, gain=bracketing_gain(best.samples, trial.samples, speed.tok_s))


def load_trials(recipe: Recipe, run: Run, effort: ClimbEffort, command: str) -> list[ClimbTrial]:
    """Begin a climb or a tuning, or load the steps of an interrupted one. Raise BadInput if its recipe is another."""
    start = run.path / START_FILE
    if not start.exists():
        run.write_file(START_FILE, codec.to_toml(recipe))
        measures = {field.name: getattr(effort, field.name) for field in fields(ClimbMeasures)}
        run.write_file(walk.EFFORT_FILE, codec.to_toml(measures))
        run.add_event(event.ClimbBegan(recipe=recipe.name, command=command))
        return []
    hint = f"its recipe is {start}"
    refuse_if(codec.read_toml(Recipe, start) != recipe, f"{run.path} began with another recipe", hint=hint)
    table = run.read_json(TABLE_FILE) or {"steps": []}
    rows = table.get("steps") if isinstance(table, dict) else table
    trials = codec.decode(list[ClimbTrial], rows, where=str(run.path / TABLE_FILE))
    run.add_event(event.ClimbResumed(steps=len(trials)))
    # The guard of a climb that was killed a moment ago still stops its engine.
    wait_for(lambda: not state.engine_writing_to(state.live_run_folders(), run.path), GUARD_STOP_S, every_s=0.1)
    # A failed start is tried again, unless it might take down the machine.
    return trials if any(trial.kept or "out of memory" in trial.why for trial in trials) else []


def climb(
    recipe: Recipe, run: Run, *, effort: ClimbEffort, notify: ClimbListener = lambda *_: None, box: Box | None = None
) -> TrialRunner:
    """Try the settings in the recipe's `climb` table, or go on with that. Raise AnswerIsNo if the first step fails."""
    walk.check_climb_settings(recipe)
    climber = TrialRunner(recipe, run, effort, notify, box)
    for change, reason in walk.unreachable_settings(recipe).items():
        notify("news", f"{change} is not tried: {reason}")
        climber.skip(change, reason)
    for step in walk.list_steps(recipe):
        if any(trial.change == step.change for trial in climber.trials):
            continue
        trial = climber.try_or_skip(step, len(climber.trials), climber.add_trial)
        if trial and climber.best is None:
            break
    climber.save_table(ended=True)
    if climber.best is None:
        reason = climber.trials[0].why if climber.trials else climber.passed_over["start"]
        raise AnswerIsNo(f"the recipe is not good at its first step: {reason}", hint=f"evidence in {run.path}")
    run.write_file(BEST_FILE, codec.to_toml(climber.best.recipe))
    return climber
