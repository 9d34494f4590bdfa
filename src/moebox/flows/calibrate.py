"""`moebox rehearse --measure`: the recipe's own engine booted with few and with more layers, its steps timed.

Dummy weights answer nonsense, but they take as long as real ones where experts are used evenly and prompts are new.
What is measured is kept as it comes: interrupted, the run folder has it; the store gets only what can be solved.
"""

import re
import time
from dataclasses import dataclass, field, replace

from moebox import detect
from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.calibration import Boot, Calibration, ExpectedStep, calibrated_box, calibrated_layout, shape_id
from moebox.core.deployment import Deployment
from moebox.core.event import CalibrateFinished, CalibrateNote, CalibrateStarted
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.errors import AnswerIsNo, BadInput, ExternalError, Unsupported
from moebox.flows import calibrate_merge, calibrate_recipe, rehearse
from moebox.flows.calibrate_boot import BootMeasurement, measure_boot
from moebox.flows.calibrate_depths import BootDepth, choose_depths, is_out_of_memory, shallower_depth
from moebox.planner import depths as expecting
from moebox.planner.speed.measured import decode_series
from moebox.serve import preflight
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import PATIENCE_S, engine_session
from moebox.serve.watch import Notify
from moebox.sizing.kv import token_bytes
from moebox.store import Run, calibrations
from moebox.units import format_seconds

BUDGET_S = 600.0
FIRST_BOOT_S = 120.0  # until it is known: vLLM compiles and captures graphs for 90 to 190 s
FILE = "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSubject:
    """What is calibrated: a recipe with the facts around it."""

    recipe: Recipe
    model: Model
    checkpoint: Checkpoint
    box: Box


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """The time there is, and how it is divided over the boots that are left."""

    budget_s: float
    began: float = field(default_factory=time.monotonic)
    startup_s: float = FIRST_BOOT_S

    @property
    def left_s(self) -> float:
        """Until time is up."""
        return self.budget_s - (time.monotonic() - self.began)

    def deadline(self, boots_after: int) -> float:
        """When the boot that is up must be done, so that the others get as much; on the monotonic clock."""
        share = (self.left_s - boots_after * 1.3 * self.startup_s) / (boots_after + 1)
        return time.monotonic() + max(share, 10.0)


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
    """Boot twice (thrice where experts are on GPUs and in RAM), time steps, write the calibration.

    `longest`: tokens of one request at most, where the context allows more.
    """
    work = _Work(deploy_for_calibration(recipe), run, TimeBudget(budget_s=budget_s), notify)
    work.longest = longest
    try:
        work.boots(layers, patience_s)
    except KeyboardInterrupt:
        work.note("interrupted: what was measured until then")
        work.keep(final=False)
        raise
    except (LaunchFailed, AnswerIsNo, ExternalError) as problem:
        work.note(f"ended early: {problem.message}")
        work.keep(final=False)
        raise
    return work.keep(final=True)


def measure_depth(
    recipe: Recipe,
    run: Run,
    layers: int,
    *,
    known: Boot | None = None,
    budget_s: float = BUDGET_S,
    notify: Notify = lambda line: None,
) -> Boot:
    """One boot alone, timed at the points of `known`: to see how well a calibration from other depths foretold it."""
    work = _Work(deploy_for_calibration(recipe), run, TimeBudget(budget_s=budget_s), notify)
    work.measure(BootDepth(layers=layers), after=0, patience_s=PATIENCE_S, known=known)
    return work.done[0]


def deploy_for_calibration(recipe: Recipe) -> CalibrationSubject:
    """The recipe with its model, checkpoint and this box."""
    if recipe.parallel.nodes > 1:
        raise Unsupported("a launch over several nodes cannot be measured from one of them")
    deployment = deploy(replace(recipe, speculate=None), detect.load_box())
    try:
        return CalibrationSubject(
            recipe=deployment.recipe,
            model=deployment.model,
            checkpoint=deployment.checkpoint,
            box=deployment.required_box,
        )
    except BadInput as problem:
        raise Unsupported(f"cannot measure {recipe.name}: {problem.message}", hint=problem.hint) from None


class _Work:
    """One calibration in the making."""

    def __init__(self, subject: CalibrationSubject, run: Run, clock: TimeBudget, notify: Notify) -> None:
        self.subject, self.run, self.clock, self.notify = subject, run, clock, notify
        self.done: list[Boot] = []
        self.notes = list(calibrate_recipe.missing_parts(subject.recipe, subject.model, subject.checkpoint))
        self.current: BootMeasurement | None = None
        self.version = subject.recipe.engine_version
        self.longest = 0

    def note(self, text: str) -> None:
        """Something that a reader of the calibration must know, said once."""
        if text in self.notes:
            return
        self.notes.append(text)
        self.run.add_event(CalibrateNote(text=text))
        self.notify(f"note: {text}")

    def boots(self, layers: tuple[int, ...], patience_s: float) -> None:
        """Every depth, the shallowest first; one that runs out of memory is taken shallower."""
        depths = choose_depths(
            self.subject.recipe, self.subject.model, self.subject.checkpoint, self.subject.box, layers
        )
        self.run.add_event(
            CalibrateStarted(recipe=self.subject.recipe.name, depths=tuple(depth.layers for depth in depths))
        )
        words = ", ".join(depth.text for depth in depths)
        self.notify(f"booting with {words}; about {self.takes(depths)}, at most {format_seconds(self.clock.budget_s)}")
        for place, depth in enumerate(depths):
            self._boot(depth, after=len(depths) - place - 1, patience_s=patience_s)

    def takes(self, depths: tuple[BootDepth, ...]) -> str:
        """About how long it takes: starts, and half of the time there is for timing."""
        starting = len(depths) * self.clock.startup_s if len(depths) > 1 else 0.0
        return format_seconds(starting + 0.5 * max(self.clock.budget_s - starting, 0.0))

    def _boot(self, depth: BootDepth, *, after: int, patience_s: float) -> None:
        while True:
            try:
                self.measure(depth, after=after, patience_s=patience_s)
                return
            except LaunchFailed as problem:
                fewest = max((boot.layers for boot in self.done), default=0)
                less = shallower_depth(depth, above=fewest)
                if not is_out_of_memory(problem) or less is None:
                    raise
                self.note(f"{depth.text} ran out of memory; {less.text} taken instead")
                depth = less

    def measure(self, depth: BootDepth, *, after: int, patience_s: float, known: Boot | None = None) -> None:
        """One depth: boot, time, stop."""
        dummy = self.run.path / "rehearsal.gguf"
        try:
            facts = self.subject
            small = calibrate_recipe.recipe_at_depth(facts.recipe, facts.model, facts.checkpoint, depth, dummy)
            for text in calibrate_recipe.list_disturbances(small, facts.box):
                self.note(text)
            whole = Deployment.from_parts(facts.recipe, facts.model, facts.checkpoint, facts.box)
            launched = rehearse.with_weights(whole, small)
            with engine_session(launched, self.run, patience_s=patience_s, rehearsal=True) as session:
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
                there = calibrate_recipe.gpu_processes(small, facts.box)  # the engine's own, and those named already
                measure_boot(self.current, session, facts.model, deadline=deadline, notify=self.notify)
                self.current.notes += calibrate_recipe.new_gpu_processes(small, facts.box, there)
        finally:
            dummy.unlink(missing_ok=True)
            self._take()
        self.keep(final=False)

    def _take(self) -> None:
        """Whatever of the current boot was measured."""
        if self.current is None:
            return
        boot, notes = self.current.boot, self.current.notes
        self.current = None
        for text in notes:
            self.note(text)
        if boot.decode or boot.prefill:
            self.done.append(boot)

    def keep(self, *, final: bool) -> Calibration:
        """Write it to the run folder, and to the store once it can be solved."""
        found = self.calibration()
        self.run.write_json(FILE, found)
        if not final and not self.notes_of_ending:
            return found
        if decode_series(found.boots, found.layers):
            whole = calibrate_merge.merge_with_stored(found)
            calibrations.store_calibration(whole)
            self.run.add_event(CalibrateFinished(id=whole.id, depths=tuple(whole.depths)))
            return whole
        if final:
            raise AnswerIsNo("no step was timed at two depths, so nothing can be said of the whole model")
        return found

    @property
    def notes_of_ending(self) -> bool:
        return any(text.startswith(("interrupted", "ended early")) for text in self.notes)

    def calibration(self) -> Calibration:
        """What there is so far."""
        facts = self.subject
        layout = calibrated_layout(facts.recipe)
        words = [facts.model.name, facts.checkpoint.quant, facts.recipe.engine, self.version, layout.text]
        return Calibration(
            id=re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-"),
            date=time.strftime("%Y-%m-%d"),
            place=calibrated_box(facts.box),
            engine=facts.recipe.engine,
            version=self.version,
            model=facts.model.title,
            shape=shape_id(facts.model),
            layers=facts.model.layers,
            quant=facts.checkpoint.quant,
            layout=layout,
            layer_bytes=token_bytes(facts.model, facts.recipe) / facts.model.layers / facts.recipe.parallel.dcp,
            boots=tuple(self.done),
            expected=self.expected(),
            notes=tuple(self.notes),
        )

    def expected(self) -> tuple[ExpectedStep, ...]:
        """What the forecast from published rows says of the steps that were timed: GPUs hide the host's time."""
        facts = self.subject
        whole = Deployment.from_parts(facts.recipe, facts.model, facts.checkpoint, facts.box)
        if whole.engine.offloads_experts or not facts.box.gpus:
            return ()
        return expecting.expected_steps(
            whole, ((step.batch, step.context) for boot in self.done for step in boot.decode)
        )
