"""Climb: one setting at a time, restarting the engine; keep what is verified and better, roll back the rest.

RUN/  climb.json      every step so far, and the best; written after each step, so that a climb can be resumed
      start.toml      the recipe it began with
      effort.toml     what is measured at each step, the same for all since they are compared
      climb/STEP/     each step's engine: recipe, log, verdicts
      best.toml       the best verified recipe
"""

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.endpoint import Endpoint
from moebox.core.event import (
    ClimbBegan,
    ClimbDropped,
    ClimbInconclusive,
    ClimbKept,
    ClimbResumed,
    ClimbRetried,
    ClimbSkipped,
    ClimbStep,
    ClimbTried,
    FailureEvent,
    StopEvent,
)
from moebox.core.quirks import first_unexpected_failure
from moebox.core.recipe import Recipe
from moebox.core.verdict import Mark
from moebox.errors import AnswerIsNo, BadInput, MoeboxError, NotInstalled
from moebox.flows import acceptance, answers, settings
from moebox.flows.effort import ClimbEffort, save_effort
from moebox.flows.fit import memory_problem, startup_problem
from moebox.flows.gain import bracketing_gain, welch_gain
from moebox.flows.walk import (
    ClimbTrial,
    SettingStep,
    decide_trial,
    list_steps,
    needs_sure_gain,
    skip_reason,
    starting_recipe,
    unreachable_settings,
)
from moebox.loose import Json
from moebox.serve import ports, state
from moebox.serve.faults import OUT_OF_MEMORY
from moebox.serve.wait import wait_for
from moebox.store import Run
from moebox.stream.awake import AwakeClock
from moebox.verify.ask import VerifyOptions
from moebox.verify.ladder import run_checks

FIRST = SettingStep(group="start").change
TABLE_FILE, START_FILE, BEST_FILE = "climb.json", "start.toml", "best.toml"
KILLED = {"killed": "its engine was killed", "": ""}  # by how it ended
CHANCES = 2  # of a step whose engine was killed
SETTLE_S = 120.0  # longer than a guard's whole way from a polite stop to a kill


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbResult:
    """Where the climb ended."""

    trials: tuple[ClimbTrial, ...]
    best: ClimbTrial | None
    passed_over: dict[str, str]  # steps that were not tried, and why


ClimbListener = Callable[[str, Any], None]  # ("try", Step), ("news", str), ("check", Verdict), ("done", Trial)


def _silent(kind: str, news: Any) -> None:
    """Nobody listens."""


def climb(
    recipe: Recipe, run: Run, *, effort: ClimbEffort, notify: ClimbListener = _silent, box: Box | None = None
) -> ClimbResult:
    """Walk through what the recipe's `climb` table lists; takes up an interrupted climb of the same recipe.

    The planner is asked before each step whether it fits `box`. AnswerIsNo when not even the first step is good.
    """
    settings.check_climb_settings(recipe)
    done = _Done(run, _taken_up(recipe, run, effort))
    for change, why in unreachable_settings(recipe).items():
        notify("news", f"{change} is not tried: {why}")
        done.pass_over(change, why)
    for step in list_steps(recipe):
        if done.tried(step):
            continue
        if why := skip_reason(step, done.best, done.trials, recipe) or _unwise(recipe, step, done.best, run, box):
            done.pass_over(step.change, why)
            continue
        trial = _try(recipe, step, done.best, len(done.trials), run, effort, notify)
        done.take(trial)
        notify("done", trial)
        if step.group == "start" and not trial.kept:
            break
    done.write_down(ended=True)
    return done.summit()


class _Done:
    """What a climb has done so far; its run folder has it after each step."""

    def __init__(self, run: Run, trials: list[ClimbTrial]) -> None:
        self.run, self.trials = run, trials
        self.best = next((trial for trial in reversed(trials) if trial.kept), None)
        self.passed_over: dict[str, str] = {}

    def tried(self, step: SettingStep) -> bool:
        return any(trial.change == step.change for trial in self.trials)

    def pass_over(self, change: str, why: str) -> None:
        self.passed_over[change] = why
        self.run.add_event(ClimbSkipped(change=change, why=why))

    def take(self, trial: ClimbTrial) -> None:
        self.trials.append(trial)
        self.best = trial if trial.kept else _newest(self.best, trial)
        self.write_down()
        self.run.add_event(_result(trial), sync=True)

    def write_down(self, *, ended: bool = False) -> None:
        document = {
            "ended": ended,
            "best": self.best.number if self.best else None,
            "steps": [codec.to_plain(trial) for trial in self.trials],
            "passed_over": self.passed_over,
        }
        self.run.write_json(TABLE_FILE, document)

    def summit(self) -> ClimbResult:
        if self.best is None:
            why = self.trials[0].why if self.trials else self.passed_over[FIRST]
            raise AnswerIsNo(f"the recipe is not good at its first step: {why}", hint=f"evidence in {self.run.path}")
        self.run.write_file(BEST_FILE, codec.to_toml(self.best.recipe))
        return ClimbResult(trials=tuple(self.trials), best=self.best, passed_over=self.passed_over)


def _try(
    recipe: Recipe,
    step: SettingStep,
    best: ClimbTrial | None,
    number: int,
    run: Run,
    effort: ClimbEffort,
    notify: ClimbListener,
) -> ClimbTrial:
    """One step: start, verify, ask, measure, judge. Whatever goes wrong is its result."""
    began = time.monotonic()
    notify("try", step)
    run.add_event(ClimbTried(change=step.change, boot=_boot()), sync=True)
    trial = ClimbTrial(
        number=number,
        change=step.change,
        path=step.path,
        value=step.value,
        recipe=_changed(recipe, step, best),
        verdict="fail",
        folder=f"climb/{run.id}-{number:02d}",
    )
    trial = _tried(trial, step, best, run, effort, notify)
    if best and needs_sure_gain(step, trial):
        trial = _bracketed(trial, best, run, effort, notify)
    kept, why = decide_trial(step, trial, best)
    return dataclasses.replace(trial, kept=kept, why=why, seconds=time.monotonic() - began)


def _tried(
    trial: ClimbTrial, step: SettingStep, best: ClimbTrial | None, run: Run, effort: ClimbEffort, notify: ClimbListener
) -> ClimbTrial:
    """The step's result; a failure gets a second chance where its engine was killed or the machine slept."""
    for left in reversed(range(CHANCES)):
        with AwakeClock() as awake:
            found = _result_of(trial, step, best, run, effort, notify)
        ended = _ending(run, trial)
        if ended == "oom":  # never again: what takes one engine's memory may take the machine's
            return _ran_out(found)
        spoilt = "the machine slept" if awake.away_s else KILLED[ended]
        again = found.verdict == "fail" and spoilt and left
        if not again:
            break
        run.add_event(ClimbRetried(change=step.change, why=spoilt))
    return found


def _result_of(
    trial: ClimbTrial, step: SettingStep, best: ClimbTrial | None, run: Run, effort: ClimbEffort, notify: ClimbListener
) -> ClimbTrial:
    """What was measured; an engine that will not start, or dies, is an answer here."""
    try:
        return _measured(trial, step, best, run, effort, notify)
    except NotInstalled:
        raise
    except MoeboxError as problem:
        return dataclasses.replace(trial, verdict="fail", why=problem.message)


def _ran_out(trial: ClimbTrial) -> ClimbTrial:
    why = trial.why if "out of memory" in trial.why else f"its engine {OUT_OF_MEMORY}"
    return dataclasses.replace(trial, verdict="fail", why=why)


def _bracketed(trial: ClimbTrial, best: ClimbTrial, run: Run, effort: ClimbEffort, notify: ClimbListener) -> ClimbTrial:
    """The step with its gain over the last good one as measured before and after it: A, B, A.

    Minutes lie between two steps, and a machine that warms up or has company would be taken for the setting.
    """
    notify("news", f"measuring {best.change} once more, to tell the setting from the machine")
    folder = run.path / f"{trial.folder}-again"
    folder.mkdir(parents=True, exist_ok=True)
    mine = Run(folder, strict=run.strict)
    try:
        started = ports.start_on_free_port(
            deploy(best.recipe), mine, notify=lambda text: notify("news", text), patience_s=effort.patience_s
        )
        with started as live:
            speed = effort.measure_speed(
                live.endpoint, concurrency=effort.concurrency, rounds=effort.rounds, tokens=effort.tokens
            )
    except MoeboxError as problem:
        run.add_event(ClimbInconclusive(change=trial.change, why=problem.message))
        return dataclasses.replace(trial, gain=None)
    mine.write_json("measurements/pace.json", speed)
    sure = bracketing_gain(best.samples, trial.samples, speed.tok_s)
    return dataclasses.replace(trial, again=speed.tok_s, gain=sure)


def _newest(best: ClimbTrial | None, dropped: ClimbTrial) -> ClimbTrial | None:
    """The last good step with its newest measurement."""
    return dataclasses.replace(best, samples=dropped.again) if best and dropped.again else best


def _ending(run: Run, trial: ClimbTrial) -> str:
    """How the step's engine ended: "oom" by the kernel for want of memory, "killed" by anybody's SIGKILL but ours."""
    ends = [
        event for event in Run(run.path / trial.folder).read_events() if isinstance(event, FailureEvent | StopEvent)
    ]
    return _how(ends[-1]) if ends else ""


def _how(end: FailureEvent | StopEvent) -> str:
    if _out_of_memory(end):
        return "oom"
    return "killed" if _killed(end) else ""


def _out_of_memory(end: FailureEvent | StopEvent) -> bool:
    return end.fault == "oom" if isinstance(end, FailureEvent) else bool(end.oom)


def _killed(end: FailureEvent | StopEvent) -> bool:
    """By somebody else's SIGKILL: a stop of ours names the signals it sent."""
    if isinstance(end, FailureEvent):
        return "was killed by SIGKILL" in end.message
    return end.code == -signal.SIGKILL and "SIGKILL" not in (end.signals or ())


def _changed(recipe: Recipe, step: SettingStep, best: ClimbTrial | None) -> Recipe:
    return starting_recipe(recipe) if best is None else settings.with_setting(best.recipe, step.path, step.value)


def _unwise(recipe: Recipe, step: SettingStep, best: ClimbTrial | None, run: Run, box: Box | None) -> str:
    """Why a step is not started: it does not fit, or it took the machine down the last time."""
    if _took_machine_down(step, run):
        return "the machine restarted while it was tried, so it is not tried again"
    deployment = deploy(_changed(recipe, step, best)).on_box(box)
    return memory_problem(deployment) or (startup_problem(deployment) if best else "")


def _took_machine_down(step: SettingStep, run: Run) -> bool:
    """Whether the step was begun before the machine last started, and never ended."""
    begun = ""
    for event in run.read_events():
        if not isinstance(event, ClimbTried | ClimbStep) or event.change != step.change:
            continue
        begun = event.boot if isinstance(event, ClimbTried) else ""
    return bool(begun) and begun != _boot()


def _boot() -> str:
    """Which start of the machine this is."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _measured(
    trial: ClimbTrial, step: SettingStep, best: ClimbTrial | None, run: Run, effort: ClimbEffort, notify: ClimbListener
) -> ClimbTrial:
    folder = run.path / trial.folder
    folder.mkdir(parents=True, exist_ok=True)
    mine = Run(folder, strict=run.strict)
    deployment = deploy(trial.recipe)
    started = ports.start_on_free_port(
        deployment, mine, notify=lambda text: notify("news", text), patience_s=effort.patience_s
    )
    with started as live:
        trial = dataclasses.replace(trial, kv_tokens=int(live.facts.kv_tokens or 0))
        trial = _verified(trial, step, live.endpoint, mine, effort, notify)
        if trial.verdict == "fail":
            return trial
        drafted = acceptance.read_draft_counts(live.endpoint)
        said = answers.collect_answers(live.endpoint, questions=effort.questions)
        mine.write_json("answers.json", said)
        speed = effort.measure_speed(
            live.endpoint, concurrency=effort.concurrency, rounds=effort.rounds, tokens=effort.tokens
        )
        mine.write_json("measurements/pace.json", speed)
        accepted = acceptance.acceptance_rate(drafted, acceptance.read_draft_counts(live.endpoint))
        if lost := _lost_jobs(live.endpoint, mine, run, best, effort):
            trial = dataclasses.replace(trial, verdict="fail", why=lost)
    before = _answers_of(run, best)
    return dataclasses.replace(
        trial,
        output_tok_s=speed.output_tok_s,
        ttft_ms=speed.mean_ttft_ms,
        samples=speed.tok_s,
        gain=welch_gain(best.samples, speed.tok_s) if best else None,
        asked=len(said),
        right=sum(answer.right for answer in said),
        same=_same(said, before),
        acceptance=accepted,
    )


def _same(said: Sequence[answers.ServerAnswer], before: Sequence[str]) -> int:
    """Answers that are word for word as before."""
    return sum(answer.text == text for answer, text in zip(said, before, strict=False))


def _verified(
    trial: ClimbTrial, step: SettingStep, endpoint: Endpoint, mine: Run, effort: ClimbEffort, notify: ClimbListener
) -> ClimbTrial:
    """The step with its checks; failed where nothing passed, too."""
    rungs = effort.first_checks if step.group == "start" and effort.first_checks else step.checks
    options = _options(trial.recipe, effort)
    ladder = run_checks(endpoint, options, only=rungs, run=mine, on_check=lambda verdict: notify("check", verdict))
    marks = {rung.name: rung.verdict for rung in ladder.rungs}
    why = first_unexpected_failure(ladder)  # a known habit of the engine is not this setting's fault
    verdict: Mark = "fail" if why else ladder.verdict if ladder.has_passed else "warn"
    return dataclasses.replace(trial, verdict=verdict, rungs=marks, why=why)


def _lost_jobs(endpoint: Endpoint, mine: Run, run: Run, best: ClimbTrial | None, effort: ClimbEffort) -> str:
    """What was lost of the last good step's work, where work is judged."""
    if not effort.jobs:
        return ""
    from moebox.flows.compare_tasks import find_lost_work

    earlier = Run(run.path / best.folder) if best else None
    seed = random.Random(run.id).randrange(10**6)  # the same jobs at every step of this climb
    return find_lost_work(endpoint, mine, earlier, jobs=effort.jobs, seed=seed)


def _options(recipe: Recipe, effort: ClimbEffort) -> VerifyOptions:
    must_think = bool(recipe.reasoning_parser) and recipe.thinking
    return VerifyOptions(
        context=recipe.context,
        trials=effort.trials,
        parallel=effort.parallel,
        depths=effort.depths,
        thinking="yes" if must_think else "auto",
    )


def _answers_of(run: Run, best: ClimbTrial | None) -> list[str]:
    said = Run(run.path / best.folder).read_json("answers.json") if best else None
    return [str(answer["text"]) for answer in said or ()]


def _taken_up(recipe: Recipe, run: Run, effort: ClimbEffort) -> list[ClimbTrial]:
    """The steps that an earlier, interrupted climb in this folder has done; BadInput when it climbed another recipe."""
    begun = run.path / START_FILE
    if not begun.exists():
        _begin(recipe, run, effort)
        return []
    if codec.read_toml(Recipe, begun) != recipe:
        raise BadInput(f"{run.path} is the climb of another recipe", hint=f"its recipe is {begun}")
    trials = [codec.decode(ClimbTrial, row, where=str(run.path / TABLE_FILE)) for row in _steps_of(run)]
    run.add_event(ClimbResumed(steps=len(trials)))
    _settle(run)
    settled = any(trial.kept or "out of memory" in trial.why for trial in trials)
    return trials if settled else []  # a start that failed is tried again, unless it might take the machine down


def _begin(recipe: Recipe, run: Run, effort: ClimbEffort) -> None:
    run.write_file(START_FILE, codec.to_toml(recipe))
    save_effort(effort, run)
    run.add_event(ClimbBegan(recipe=recipe.name))


def _steps_of(run: Run) -> list[Json]:
    """The rows of the table so far; BadInput where something else stands in its place."""
    table = run.read_json(TABLE_FILE) or {"steps": []}
    steps = table.get("steps") if isinstance(table, dict) else None
    if not isinstance(steps, list):
        raise BadInput(
            f"{run.path / TABLE_FILE}: no list of steps", hint="climb the recipe anew: `moebox climb RECIPE`"
        )
    return steps


def _settle(run: Run) -> None:
    """Let the engine of a climb that was killed a moment ago go down: its guard sees to it, but not at once."""
    wait_for(lambda: not state.engine_writing_to(state.live_run_folders(), run.path), SETTLE_S, every_s=0.1)


def _result(trial: ClimbTrial) -> ClimbStep:
    """A step for the journal: the table's columns."""
    kind = ClimbKept if trial.kept else ClimbDropped
    return kind(**{name: getattr(trial, name) for name in kind.__struct_fields__})


def climb_recipe(run: Run) -> Recipe:
    """The recipe that a climb began with."""
    path: Path = run.path / START_FILE
    if not path.exists():
        raise BadInput(f"{run.path} is not a climb", hint="`moebox climb RECIPE` begins one")
    return codec.read_toml(Recipe, path)
