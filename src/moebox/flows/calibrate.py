"""`moebox rehearse --measure`: boot the recipe's engine with few and with more layers, and time its steps.

Dummy weights answer nonsense, but take as long as real ones if experts are used evenly and prompts are new.
The run folder has every measurement as soon as it is made; the store only gets a calibration that can be solved.
"""

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from moebox import detect
from moebox.checkpoint import deploy, gguf
from moebox.core import calibration
from moebox.core.calibration import Boot, Calibration, ExpectedStep, StepT
from moebox.core.deployment import Deployment
from moebox.core.event import CalibrateFinished, CalibrateNote, CalibrateStarted
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Recipe
from moebox.detect import host
from moebox.engines.engine import load_engine
from moebox.errors import AnswerIsNo, BadInput, ExternalError, UnknownName, Unsupported, prefix_errors, refuse_if
from moebox.flows import calibrate_boot, rehearse
from moebox.flows.calibrate_boot import BootMeasurement
from moebox.planner.depths import expected_steps
from moebox.planner.speed import Speed
from moebox.planner.speed.boots import decode_series
from moebox.serve import preflight
from moebox.serve.dummy import ggml_type
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
FEW = 3  # repeated layers of the shallow boot
MOST = 24  # layers of the deep boot: more only load longer
SHARE = 0.5  # of memory for weights; the rest is for the cache, the graphs and the host
SMALL = 4 * 2**30  # bytes of weights that are read within seconds, so that all layers are booted
OUTSIDE_LAYERS = ("embed", "lm_head", "vision", "mtp", "ngram")
FALLBACK = "q4_0"
BUSY = 0.25  # of the cores, used by other programs before the engine starts
NARROW = 12  # bits of a weight, between the 8.5 of Q8_0 and the 16 of F16
FILE = "calibration.json"
T = TypeVar("T")
DEPTH, POINT, PROMPT = attrgetter("layers", "gpu_experts"), attrgetter("batch", "context"), attrgetter("tokens")


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
    work = Calibrator(deploy_for_calibration(recipe), run, budget_s, notify, longest)
    try:
        work.measure_depths(layers, patience_s)
    except (KeyboardInterrupt, AnswerIsNo, ExternalError) as problem:
        early = "" if isinstance(problem, KeyboardInterrupt) else problem.message
        work.add_note(f"ended early: {early}" if early else "interrupted: incomplete")
        work.store()
        raise
    if (found := work.store()) is None:
        raise AnswerIsNo("no step was timed at two depths, so nothing is known about the whole model")
    return found


def deploy_for_calibration(recipe: Recipe) -> Deployment:
    """Resolve a recipe on this box. Raise Unsupported if it cannot be measured."""
    if recipe.parallel.nodes > 1:
        raise Unsupported("a launch over several nodes cannot be measured from one of them")
    deployment = deploy(replace(recipe, speculate=None), detect.load_box())
    with prefix_errors(f"cannot measure {recipe.name}", Unsupported):
        _ = deployment.facts
    return deployment


class Calibrator:
    def __init__(self, subject: Deployment, run: Run, budget_s: float, notify: Notify, longest: int = 0) -> None:
        self.subject, self.run, self.budget_s, self.notify, self.longest = subject, run, budget_s, notify, longest
        self.end = time.monotonic() + budget_s - min(0.05 * budget_s, STOP_S)  # when the last engine must be stopped
        self.startup_s = GGUF_BOOT_S if rehearse.reads_gguf(subject.recipe) else FIRST_BOOT_S
        self.done: list[Boot] = []
        self.notes: list[str] = []
        model, quant = subject.model, subject.checkpoint.quant
        if rehearse.reads_gguf(subject.recipe) and ggml_type(quant) is None:
            self.notes.append(f"experts were {FALLBACK}: {quant} is a mix that cannot be generated")
        if rehearse.reads_gguf(subject.recipe) and not model.mla and model.moe and model.moe.shared:
            text = "shared experts were left out: the generated GGUF has none beside grouped-query attention"
            self.notes.append(text)
        self.version = subject.recipe.engine_version
        self.disturbed: list[str] = []
        self.doubt = 0.0

    def add_note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.run.add_event(CalibrateNote(text=text))
            self.notify(f"note: {text}")

    def measure_depths(self, layers: tuple[int, ...], patience_s: float) -> None:
        """Measure every depth, the shallowest first. Retry with fewer layers if memory runs out."""
        name, budget_s, depths = self.subject.recipe.name, self.budget_s, choose_depths(self.subject, layers)
        self.run.add_event(CalibrateStarted(recipe=name, depths=tuple(depth.layers for depth in depths)))
        starting_s = len(depths) * self.startup_s if len(depths) > 1 else 0.0
        estimate_s = starting_s + 0.5 * max(budget_s - starting_s, 0.0)  # half of the rest for timing
        names = ", ".join(depth.text for depth in depths)
        self.notify(f"booting with {names}; about {format_seconds(estimate_s)}, at most {format_seconds(budget_s)}")
        if budget_s < (least_s := starting_s + len(depths) * LEAST_S):
            self.notify(f"the budget may be too short to measure anything; about {format_seconds(least_s)} are useful")
        left = list(depths)
        while left:
            depth = left.pop(0)
            try:
                self.measure_boot(depth, after=len(left), patience_s=patience_s)
            except LaunchFailed as problem:
                less = shallower_depth(depth, above=max((boot.layers for boot in self.done), default=0))
                oom = problem.finding is not None and problem.finding.symptom.startswith("oom")
                oom = oom or "SIGKILL" in problem.message  # the kernel's OOM killer leaves nothing in the engine's log
                if less is None or not oom:
                    raise
                self.add_note(f"{depth.text} ran out of memory; {less.text} taken instead")
                left.insert(0, less)

    def measure_boot(self, depth: Boot, *, after: int, patience_s: float, known: Boot | None = None) -> None:
        dummy, work = self.run.path / "rehearsal.gguf", None
        try:
            facts, box, end = self.subject, self.subject.required_box, self.end
            small = recipe_at_depth(facts, depth, dummy)
            if rehearse.reads_gguf(small) and (used := host.cpu_busy_share()) > BUSY:
                self.add_note(f"the machine was busy: other programs used {used:.0%} of its cores")
            for text in calibrate_boot.gpu_processes(small, box).values():
                self.add_note(text)
            launched = rehearse.with_weights(facts, small)
            with engine_session(launched, self.run, patience_s=patience_s, deadline=end, rehearsal=True) as session:
                self.startup_s = session.startup_s
                self.version = self.version or preflight.engine_version(launched.engine, session.prepared.argv)
                known, chunk = self.done[0] if self.done else known, rehearse.prefill_chunk(small)
                experts = depth.layers - facts.model.dense_layers if facts.model.moe else 0
                routing_s = 1e-6 * load_engine(small.engine).even_routing_us * experts
                work = BootMeasurement(
                    planned=depth, known=known, chunk=chunk, longest=self.longest, routing_s=routing_s
                )
                now, others_s = time.monotonic(), after * 1.3 * self.startup_s  # the others get as much time for timing
                deadline = now + max((end - now - others_s) / (after + 1), 0.0)
                known_processes = calibrate_boot.gpu_processes(small, box)  # the engine, and those in notes
                calibrate_boot.time_boot(work, session, facts.model, deadline=deadline, notify=self.notify)
                seen = calibrate_boot.gpu_processes(small, box).items()
                work.notes += [text for process, text in seen if process not in known_processes]
        finally:
            dummy.unlink(missing_ok=True)
            if work is not None:  # keep what was measured, even after a failure
                self.disturbed += [text for text in work.disturbed if text not in self.disturbed]
                self.doubt = max(self.doubt, work.doubt)
                for text in work.notes:
                    self.add_note(text)
                if work.looks:
                    self.done.append(work.boot)
        self.run.write_json(FILE, self.calibration())

    def store(self) -> Calibration | None:
        """Write the calibration to the run folder, and to the store if it can be solved; None if it cannot."""
        found = self.calibration()
        self.run.write_json(FILE, found)
        if not decode_series(found.boots, found.layers):
            return None
        whole = merge_with_stored(found)
        calibrations.store_calibration(whole)
        self.run.add_event(CalibrateFinished(id=whole.id, depths=tuple(whole.depths)))
        return whole

    def calibration(self) -> Calibration:
        facts, box = self.subject, self.subject.required_box
        expected: tuple[ExpectedStep, ...] = ()
        fit_spread, prompt_fit_spread = calibration.FIT_SPREAD, calibration.PROMPT_FIT_SPREAD
        if box.gpus and not facts.engine.offloads_experts:  # what the forecast from published rows predicts
            timed = [(step.batch, step.context) for boot in self.done for step in boot.decode]
            prompts = [(0, prompt.tokens) for boot in self.done for prompt in boot.prefill]
            expected = expected_steps(facts, [*timed, *prompts])
            fit = Speed.from_published_rows(facts)
            unknown = math.hypot(fit.unified_spread, fit.unknown_spread)
            fit_spread = max(calibration.FIT_SPREAD, math.hypot(fit.decode_spread, unknown))
            prompt_fit_spread = max(calibration.PROMPT_FIT_SPREAD, math.hypot(fit.prefill_spread, unknown))
        layout = calibration.calibrated_layout(facts.recipe)
        words = [facts.model.name, facts.checkpoint.quant, facts.recipe.engine, self.version, layout.text]
        return Calibration(
            id=re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-"),
            date=time.strftime("%Y-%m-%d"),
            place=calibration.calibrated_box(box),
            engine=facts.recipe.engine,
            version=self.version,
            model=facts.model.title,
            shape=calibration.shape_id(facts.model),
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


def choose_depths(deployment: Deployment, layers: tuple[int, ...] = ()) -> tuple[Boot, ...]:
    """Few and more layers, each with all kinds of layers; a third boot if experts are on GPUs and in RAM.

    A small model is booted once, with all its layers.
    """
    box, model, checkpoint, recipe = deployment.facts
    split = calibration.gpu_expert_layers(recipe) if box.gpus else 0
    if not layers and not split and checkpoint.total_bytes <= SMALL:
        return (Boot(layers=model.layers),)
    least, dense = model.dense_layers + max(1, recipe.parallel.pp), model.dense_layers
    if layers:
        if len(layers) != 2 or not least <= layers[0] < layers[1] <= model.layers:
            wrong = f"--layers {','.join(map(str, layers))}: --measure takes two depths"
            hint = f"{model.title} has {model.layers} layers; {least} are the fewest that have every kind"
            raise BadInput(f"{wrong}, such as --layers {least + 2},{least + 6}", hint=hint)
        few, more = layers
    else:
        outside = sum(checkpoint.bytes_by_component.get(name, 0) for name in OUTSIDE_LAYERS)  # type: ignore[call-overload]
        layer = (checkpoint.total_bytes - outside) / model.layers
        free = float(box.ram_free or box.ram)
        if recipe.hybrid is None and box.gpus:
            smallest = min(gpu.memory_free or gpu.memory for gpu in box.gpus)
            free = smallest * recipe.parallel.gpu_count * (recipe.memory_utilization or 0.9)
        few, fitting = max(dense + FEW, least), int((SHARE * free - outside) // max(layer, 1))
        more = min(max(fitting, few + 1), MOST, model.layers)
        few = min(few, more - 1)
    refuse_if(few < least, f"{model.title} has {model.layers} layers: too few to measure with two depths")
    if not split:
        return Boot(layers=few), Boot(layers=more)
    if split >= model.moe_layers:
        return Boot(layers=few, gpu_experts=few - dense), Boot(layers=more, gpu_experts=more - dense)
    return Boot(layers=few), Boot(layers=more), Boot(layers=more, gpu_experts=max(1, (more - least) // 2))


def shallower_depth(depth: Boot, *, above: int) -> Boot | None:
    """Half way down to the depth measured before, or None if nothing lies between."""
    layers = (depth.layers + above) // 2
    less = replace(depth, layers=layers, gpu_experts=min(depth.gpu_experts, layers - 1))
    return less if layers > above else None


def recipe_at_depth(deployment: Deployment, depth: Boot, dummy: Path) -> Recipe:
    """The recipe to start; `dummy` is the generated file for GGUF engines."""
    recipe, model, form = deployment.recipe, deployment.model, deployment.checkpoint
    if not rehearse.reads_gguf(recipe):
        small = rehearse.with_dummy_weights(deployment, dummy, depth.layers, None)
        return replace(small, env={**recipe.env, **load_engine(recipe.engine).even_routing})
    hybrid = recipe.hybrid
    if hybrid is not None:  # the same GPUs with as many expert layers as this depth puts there
        count = max(len(hybrid.experts), 1)
        layers = range(model.dense_layers, model.dense_layers + depth.gpu_experts)
        hybrid = replace(hybrid, experts=tuple(tuple(layers[gpu::count]) for gpu in range(count)))
    how = {"quant": form.quant if ggml_type(form.quant) is not None else FALLBACK, "dense": dense_type(form, model)}
    types = tensor_types(form)
    return rehearse.with_dummy_weights(deployment, dummy, depth.layers, hybrid, types=types, even_routing=True, **how)


def tensor_types(form: Checkpoint) -> dict[str, str]:
    """The type of every weight of a local GGUF; {} for other checkpoints."""
    if form.format != "gguf" or not form.path:
        return {}
    headers = map(gguf.read_header, gguf.split_files(Path(form.path)))
    return {tensor.name: tensor.type for header in headers for tensor in header.tensors}


def dense_type(form: Checkpoint, model: Model) -> str:
    """The type of the generated attention and shared weights, by the bits of the checkpoint's own."""
    parameters = model.parameters_by_component.get("attention", 0)
    bits = 8 * form.bytes_by_component.get("attention", 0) / max(parameters, 1)
    return "q8_0" if 0 < bits < NARROW else "f16"


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
    boots = merge_by_key(earlier.boots, found.boots, DEPTH, merge_boots)
    expected = merge_by_key(earlier.expected, found.expected, POINT, lambda before, after: after)
    disturbed = tuple(dict.fromkeys((*earlier.disturbed, *found.disturbed)))
    return replace(found, boots=boots, expected=expected, disturbed=disturbed, doubt=max(earlier.doubt, found.doubt))


def merge_by_key(
    earlier: Iterable[T], later: Iterable[T], key: Callable[[T], Any], both: Callable[[T, T], T]
) -> tuple[T, ...]:
    """Merge by `key`; `both` merges items that are in both."""
    table = {key(each): each for each in earlier}
    for each in later:
        table[key(each)] = both(table[key(each)], each) if key(each) in table else each
    return tuple(table[place] for place in sorted(table))


def merge_boots(before: Boot, after: Boot) -> Boot:
    decode = merge_by_key(before.decode, after.decode, POINT, average_timing)
    prefill = merge_by_key(before.prefill, after.prefill, PROMPT, average_timing)
    return replace(after, decode=decode, prefill=prefill)


def average_timing(before: StepT, after: StepT) -> StepT:
    """The mean of two timings; its error is their combined error, or half of their difference."""
    seconds = (before.seconds + after.seconds) / 2
    apart = abs(before.seconds - after.seconds) / 2 / seconds
    return replace(after, seconds=seconds, spread=max(math.hypot(before.spread, after.spread) / 2, apart))
