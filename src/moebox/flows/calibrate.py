"""`moebox rehearse --measure`: boot the recipe's engine with few and with more layers, and time its steps.

Dummy weights answer nonsense, but take as long as real ones if experts are used evenly and prompts are new.
The run folder has every measurement as soon as it is made; the store only gets a calibration that can be solved.
"""

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeVar

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core.calibration import (
    FIT_SPREAD,
    PROMPT_FIT_SPREAD,
    Boot,
    Calibration,
    ExpectedStep,
    StepT,
    calibrated_box,
    calibrated_layout,
    shape_id,
)
from moebox.core.deployment import Deployment
from moebox.core.event import CalibrateFinished, CalibrateNote, CalibrateStarted
from moebox.core.recipe import Recipe
from moebox.errors import AnswerIsNo, BadInput, ExternalError, UnknownName, Unsupported
from moebox.flows import calibrate_recipe, rehearse
from moebox.flows.calibrate_boot import BootMeasurement, time_boot
from moebox.flows.calibrate_recipe import BootDepth, choose_depths, is_out_of_memory, shallower_depth
from moebox.planner.depths import expected_steps
from moebox.planner.speed import Speed
from moebox.planner.speed.boots import decode_series
from moebox.serve import preflight
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import PATIENCE_S, engine_session
from moebox.serve.watch import Notify
from moebox.sizing.kv import token_bytes
from moebox.store import Run, calibrations
from moebox.units import format_seconds

BUDGET_S = 600.0
STOP_S = 5.0  # of the budget, to stop the last engine
LEAST_S = 10.0  # for the most important steps of a boot
FIRST_BOOT_S = 120.0  # estimate: vLLM compiles and captures graphs for 90 to 190 s
GGUF_BOOT_S = 20.0  # llama.cpp with a generated file of few layers
FILE = "calibration.json"
T = TypeVar("T")
DEPTH, POINT, PROMPT = attrgetter("layers", "gpu_experts"), attrgetter("batch", "context"), attrgetter("tokens")


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """The time budget, divided over the remaining boots."""

    budget_s: float
    began: float = field(default_factory=time.monotonic)
    startup_s: float = FIRST_BOOT_S

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def deadline(self, boots_after: int) -> float:
        """When the current boot must be done, so that the others get as much time; monotonic clock."""
        share = (self.left_s - boots_after * 1.3 * self.startup_s) / (boots_after + 1)
        return time.monotonic() + max(share, 0.0)

    @property
    def end(self) -> float:
        """When the last engine must be stopped; a little of the budget is kept for that."""
        return self.began + self.budget_s - min(0.05 * self.budget_s, STOP_S)


def calibrate(
    recipe: Recipe,
    run: Run,
    *,
    layers: tuple[int, ...] = (),
    longest: int = 0,
    budget_s: float = BUDGET_S,
    patience_s: float = PATIENCE_S,
    notify: Notify = lambda line: None,
) -> Calibration:
    """Boot twice (three times if experts are on GPUs and in RAM), time steps, write the calibration.

    `longest`: the most tokens of one request, if the context allows more.
    """
    work = Calibrator(deploy_for_calibration(recipe), run, TimeBudget(budget_s=budget_s), notify)
    work.longest = longest
    try:
        work.measure_depths(layers, patience_s)
    except (KeyboardInterrupt, AnswerIsNo, ExternalError) as problem:
        early = "" if isinstance(problem, KeyboardInterrupt) else problem.message
        work.add_note(f"ended early: {early}" if early else "interrupted: incomplete")
        work.save(final=False)
        raise
    return work.save(final=True)


def deploy_for_calibration(recipe: Recipe) -> Deployment:
    """Resolve a recipe on this box. Raise Unsupported if it cannot be measured."""
    if recipe.parallel.nodes > 1:
        raise Unsupported("a launch over several nodes cannot be measured from one of them")
    deployment = deploy(replace(recipe, speculate=None), detect.load_box())
    try:
        box = deployment.required_box
        return Deployment.from_parts(deployment.recipe, deployment.model, deployment.checkpoint, box)
    except BadInput as problem:
        raise Unsupported(f"cannot measure {recipe.name}: {problem.message}", hint=problem.hint) from None


class Calibrator:
    def __init__(self, subject: Deployment, run: Run, clock: TimeBudget, notify: Notify) -> None:
        self.subject, self.run, self.clock, self.notify = subject, run, clock, notify
        self.done: list[Boot] = []
        self.notes = list(calibrate_recipe.missing_parts(subject.recipe, subject.model, subject.checkpoint))
        self.current: BootMeasurement | None = None
        self.version = subject.recipe.engine_version
        self.longest = 0
        self.disturbed: list[str] = []
        self.doubt = 0.0

    def add_note(self, text: str) -> None:
        """Add a note for readers of the calibration, unless it is there already."""
        if text in self.notes:
            return
        self.notes.append(text)
        self.run.add_event(CalibrateNote(text=text))
        self.notify(f"note: {text}")

    def measure_depths(self, layers: tuple[int, ...], patience_s: float) -> None:
        """Measure every depth, the shallowest first. Retry with fewer layers if memory runs out."""
        facts = self.subject
        depths = choose_depths(facts.recipe, facts.model, facts.checkpoint, facts.required_box, layers)
        event = CalibrateStarted(recipe=self.subject.recipe.name, depths=tuple(depth.layers for depth in depths))
        self.run.add_event(event)
        budget_s = self.clock.budget_s
        if calibrate_recipe.reads_gguf(self.subject.recipe):
            self.clock.startup_s = GGUF_BOOT_S
        starting_s = len(depths) * self.clock.startup_s if len(depths) > 1 else 0.0
        estimate_s = starting_s + 0.5 * max(budget_s - starting_s, 0.0)  # half of the rest for timing
        names = ", ".join(depth.text for depth in depths)
        self.notify(f"booting with {names}; about {format_seconds(estimate_s)}, at most {format_seconds(budget_s)}")
        if budget_s < starting_s + len(depths) * LEAST_S:
            useful = format_seconds(starting_s + len(depths) * LEAST_S)
            self.notify(f"the budget may be too short to measure anything; about {useful} are useful")
        for place, depth in enumerate(depths):
            current = depth
            while True:
                try:
                    self.measure_boot(current, after=len(depths) - place - 1, patience_s=patience_s)
                    break
                except LaunchFailed as problem:
                    less = shallower_depth(current, above=max((boot.layers for boot in self.done), default=0))
                    if not is_out_of_memory(problem) or less is None:
                        raise
                    self.add_note(f"{current.text} ran out of memory; {less.text} taken instead")
                    current = less

    def measure_boot(self, depth: BootDepth, *, after: int, patience_s: float, known: Boot | None = None) -> None:
        dummy = self.run.path / "rehearsal.gguf"
        try:
            facts, box = self.subject, self.subject.required_box
            small = calibrate_recipe.recipe_at_depth(facts.recipe, facts.model, facts.checkpoint, depth, dummy)
            for text in calibrate_recipe.list_disturbances(small, box):
                self.add_note(text)
            launched = rehearse.with_weights(facts, small)
            with engine_session(
                launched, self.run, patience_s=patience_s, deadline=self.clock.end, rehearsal=True
            ) as session:
                self.clock.startup_s = session.startup_s
                self.version = self.version or preflight.engine_version(launched.engine, session.prepared.argv)
                self.current = BootMeasurement(
                    depth=depth,
                    known=self.done[0] if self.done else known,
                    chunk=rehearse.prefill_chunk(small),
                    longest=self.longest,
                    ggml=calibrate_recipe.reads_gguf(small),
                )
                deadline = self.clock.deadline(after)
                known_processes = calibrate_recipe.gpu_processes(small, box)  # the engine, and those in notes
                time_boot(self.current, session, facts.model, deadline=deadline, notify=self.notify)
                self.current.notes += calibrate_recipe.new_gpu_processes(small, box, known_processes)
        finally:
            dummy.unlink(missing_ok=True)
            if self.current is not None:  # keep what was measured, even after a failure
                boot, notes = self.current.boot, self.current.notes
                self.disturbed += [text for text in self.current.disturbed if text not in self.disturbed]
                self.doubt = max(self.doubt, self.current.doubt)
                self.current = None
                for text in notes:
                    self.add_note(text)
                if boot.decode or boot.prefill:
                    self.done.append(boot)
        self.save(final=False)

    def save(self, *, final: bool) -> Calibration:
        """Write the calibration to the run folder, and to the store once it can be solved."""
        found = self.calibration()
        self.run.write_json(FILE, found)
        ended = any(text.startswith(("interrupted", "ended early")) for text in self.notes)
        if not final and not ended:
            return found
        if decode_series(found.boots, found.layers):
            whole = merge_with_stored(found)
            calibrations.store_calibration(whole)
            self.run.add_event(CalibrateFinished(id=whole.id, depths=tuple(whole.depths)))
            return whole
        if final:
            raise AnswerIsNo("no step was timed at two depths, so nothing is known about the whole model")
        return found

    def calibration(self) -> Calibration:
        facts, box = self.subject, self.subject.required_box
        expected: tuple[ExpectedStep, ...] = ()
        fit_spread, prompt_fit_spread = FIT_SPREAD, PROMPT_FIT_SPREAD
        if box.gpus and not facts.engine.offloads_experts:  # what the forecast from published rows predicts
            timed = [(step.batch, step.context) for boot in self.done for step in boot.decode]
            prompts = [(0, prompt.tokens) for boot in self.done for prompt in boot.prefill]
            expected = expected_steps(facts, [*timed, *prompts])
            fit = Speed.from_published_rows(facts)
            unknown = math.hypot(fit.unified_spread, fit.unknown_spread)
            fit_spread = max(FIT_SPREAD, math.hypot(fit.decode_spread, unknown))
            prompt_fit_spread = max(PROMPT_FIT_SPREAD, math.hypot(fit.prefill_spread, unknown))
        layout = calibrated_layout(facts.recipe)
        words = [facts.model.name, facts.checkpoint.quant, facts.recipe.engine, self.version, layout.text]
        return Calibration(
            id=re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-"),
            date=time.strftime("%Y-%m-%d"),
            place=calibrated_box(box),
            engine=facts.recipe.engine,
            version=self.version,
            model=facts.model.title,
            shape=shape_id(facts.model),
            layers=facts.model.layers,
            quant=facts.checkpoint.quant,
            layout=layout,
            layer_bytes=token_bytes(facts.model, facts.recipe) / facts.model.layers / facts.recipe.parallel.dcp,
            boots=tuple(self.done),
            expected=expected,
            fit_spread=fit_spread,
            prompt_fit_spread=prompt_fit_spread,
            disturbed=tuple(self.disturbed),
            doubt=self.doubt,
            notes=tuple(self.notes),
        )


def merge_with_stored(found: Calibration) -> Calibration:
    """Merge a calibration with the stored one of its id, if that was measured on this box.

    Depths are added; points of the same depth are averaged. A measurement of a quiet machine replaces one of a
    disturbed machine, and is never replaced by it.
    """
    try:
        earlier = calibrations.find_calibration(found.id)
    except UnknownName:
        return found
    if earlier.id != found.id or earlier.imported or earlier.place != found.place:
        return found
    if bool(earlier.disturbed) != bool(found.disturbed):
        return found if earlier.disturbed else earlier
    return replace(
        found,
        boots=merge_boots(earlier.boots, found.boots),
        disturbed=tuple(dict.fromkeys((*earlier.disturbed, *found.disturbed))),
        doubt=max(earlier.doubt, found.doubt),
        expected=merge_by_key(earlier.expected, found.expected, POINT, lambda before, after: after),
    )


def merge_by_key(
    earlier: Iterable[T], later: Iterable[T], key: Callable[[T], Any], both: Callable[[T, T], T]
) -> tuple[T, ...]:
    """Merge by `key`; `both` merges items that are in both."""
    table = {key(each): each for each in earlier}
    for each in later:
        table[key(each)] = both(table[key(each)], each) if key(each) in table else each
    return tuple(table[place] for place in sorted(table))


def merge_boots(earlier: tuple[Boot, ...], later: tuple[Boot, ...]) -> tuple[Boot, ...]:
    def merge_pair(before: Boot, after: Boot) -> Boot:
        decode = merge_by_key(before.decode, after.decode, POINT, average_timing)
        prefill = merge_by_key(before.prefill, after.prefill, PROMPT, average_timing)
        return replace(after, decode=decode, prefill=prefill)

    return merge_by_key(earlier, later, DEPTH, merge_pair)


def average_timing(before: StepT, after: StepT) -> StepT:
    """The mean of two timings; its error is their combined error, or half of their difference."""
    seconds = (before.seconds + after.seconds) / 2
    apart = abs(before.seconds - after.seconds) / 2 / seconds
    return replace(after, seconds=seconds, spread=max(math.hypot(before.spread, after.spread) / 2, apart))
