"""The steps of a climb: settings and the checks they can break, which is next, whether it fits, whether it is kept."""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.core import registry, validation
from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.core.setting import apply_settings, setting_flags, with_settings
from moebox.core.verdict import Gain, Mark
from moebox.data import load_table
from moebox.detect.limits import memory_share
from moebox.errors import BadInput, MoeboxError, prefix_errors, refuse_if, refuse_out_of_range, suggest_names
from moebox.flows.pace import SpeedRounds, measure_speed
from moebox.planner import candidates
from moebox.planner.constraints import DRAFT_METHODS
from moebox.quality.judge import DEFAULT_LIMIT
from moebox.quality.reference import read_reference
from moebox.serve import session
from moebox.store import Run
from moebox.units import format_count, format_gib
from moebox.verify.options import CHECK_NAMES

SLOWER = -0.10  # margin of non-inferiority: a longer context or larger cache is kept if it costs no more speed
MORE_CACHE = 1.02  # a cache that grows by less is not a gain
ANSWERS_DIFFER = "answers differ"
MARGIN = 0.05  # of the device: the planner's own error; a step that misses by less is tried
EFFORT_FILE = "effort.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbMeasures:
    """Settings that must be the same at every step."""

    concurrency: int = 4
    rounds: int = 5
    tokens: int = 128
    questions: int = 20
    jobs: int = 0  # for an agent at each step; 0 if work is not judged
    trials: int = 10
    parallel: int = 8
    depths: tuple[float, ...] = (0.02, 0.5, 0.98)
    quality_limit: float = 0.0  # nats farther from the reference than the first step; 0 if quality is not judged
    reference: str = ""  # a file of `moebox quality --save`; "": the first step is the reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbEffort(ClimbMeasures):
    """The measures, and how they are taken this time."""

    first_checks: tuple[str, ...] = ()  # of the first step; all if empty
    patience_s: float = session.PATIENCE_S
    measure_speed: Callable[..., SpeedRounds] = measure_speed


# For `moebox run`, which has just verified the engine, so the first step needs few checks.
NORMAL_CLIMB = ClimbEffort(first_checks=("alive", "plain"))
SHORT_CLIMB = ClimbEffort(
    rounds=3, questions=8, tokens=48, trials=4, concurrency=2, depths=(0.5,), first_checks=("alive",)
)


def parse_effort(settings: Sequence[str], run: Run | None = None, usual: ClimbMeasures | None = None) -> ClimbEffort:
    """The effort of `--set` over `usual`. A resumed climb keeps its own: raise BadInput if a setting contradicts it."""
    path = run.path / EFFORT_FILE if run else None
    stored = codec.read_toml(ClimbMeasures, path) if path and path.exists() else None
    chosen = apply_settings(stored or usual or ClimbMeasures(), settings)
    for name, low, high in (("concurrency", 1, 256), ("rounds", 2, 100), ("questions", 0, 1000), ("jobs", 0, 1000)):
        refuse_out_of_range(f"--set {name}", getattr(chosen, name), low, high)
    chosen = replace(chosen, quality_limit=parse_limit(chosen.quality_limit, chosen.reference))
    if run and stored and chosen != stored:
        changed = setting_flags(chosen, stored)[1]
        begun = getattr(stored, changed.partition("=")[0])
        hint = "leave it out, because steps are compared with those before; without --resume another run begins"
        raise BadInput(f"--set {changed}: {run.id} was begun with {begun}", hint=hint)
    return ClimbEffort(**asdict(chosen))


def parse_limit(limit: float, reference: str) -> float:
    """The quality limit of `--set`, DEFAULT_LIMIT if only a reference is given. Raise BadInput for an invalid one."""
    good = 0 <= limit <= 10
    refuse_if(not good, f"--set quality_limit={limit:g}: must be from 0 to 10 nats", hint="such as quality_limit=0.02")
    if reference:
        read_reference(Path(reference))
    return limit or (DEFAULT_LIMIT if reference else 0.0)


def checks_for(path: str) -> tuple[str, ...]:
    """The checks that a change of a setting can break."""
    known = load_table("setting_checks")
    return tuple(known.get(path.split(".")[0], known["other"]))


def with_setting(recipe: Recipe, path: str, value: Any) -> Recipe:
    """Change one setting. Raise BadInput if there is no such setting or value."""
    if path == "speculate" and isinstance(value, str):
        value = candidates.recipe_draft(deploy(recipe), value)
    return with_settings(recipe, {path: value})


def current_value(recipe: Recipe, path: str) -> Any:
    if path == "speculate":
        return recipe.speculate.method if recipe.speculate else "none"
    return codec.to_plain(recipe.get(path))


def check_climb_settings(recipe: Recipe) -> None:
    """Raise BadInput if the climb names a setting or value that does not exist."""
    for length in recipe.climb.contexts:
        refuse_if(length < 1, f"climb.contexts: {length} is not a valid number of tokens")
    for before, length in pairwise(recipe.climb.contexts):
        hint = "write them in ascending order"
        refuse_if(length <= before, f"climb.contexts: {length} after {before} would not be tried", hint=hint)
    for method in recipe.climb.speculate:
        # Engines have more methods than moebox knows, but a near miss of a known one is a typing error.
        near = method not in DRAFT_METHODS and difflib.get_close_matches(method, DRAFT_METHODS, cutoff=0.75)
        wrong = near or not re.fullmatch(r"[A-Za-z][\w.-]*", method)
        hint = suggest_names(method, DRAFT_METHODS)
        refuse_if(wrong, f"climb.speculate: no draft method {method!r}", hint=hint)
    for path, values in recipe.climb.settings.items():
        refuse_if(not values, f"climb setting {path!r} has no values to try")
        for value in values:
            with prefix_errors(f"climb setting {path!r} = {value!r}"):
                changed = with_setting(recipe, path, value)
                validation.validate_recipe(changed)
                engines.check_recipe(deploy(changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStep:
    path: str = ""  # "" at the start, and of a tuning
    value: Any = None
    together: dict[str, Any] = field(default_factory=dict)  # settings that change at once, if tuned
    checks: tuple[str, ...] = CHECK_NAMES

    @property
    def change(self) -> str:
        changes = {self.path: self.value} if self.path else self.together
        return ", ".join(f"{path} {value}" for path, value in changes.items()) or "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbTrial:
    number: int
    change: str
    path: str
    value: Any
    recipe: Recipe
    verdict: Mark
    kept: bool = False
    why: str = ""
    output_tok_s: float = 0.0
    ttft_ms: float = 0.0
    kv_tokens: int = 0
    gain: Gain | None = None
    samples: tuple[float, ...] = ()
    again: tuple[float, ...] = ()  # of the last good step, measured again after this one
    right: int = 0  # of `asked` questions with known answers
    asked: int = 0
    same: int = 0  # answers identical to those of the last good step
    acceptance: float | None = None  # of draft tokens, if the engine counts them
    rungs: dict[str, Mark] = field(default_factory=dict)
    seconds: float = 0.0
    watts: float = 0.0  # mean of its GPUs during the measurement; 0 if the driver does not count energy
    folder: str = ""  # of this step's engine, relative to the run


def starting_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the first step: the shortest context, and no draft if the climb tries none first."""
    start = with_setting(recipe, "context", _contexts(recipe)[0])
    return with_setting(start, "speculate", "none") if "none" in recipe.climb.speculate else start


def list_steps(recipe: Recipe) -> list[SettingStep]:
    settings: list[tuple[str, Any]] = [("context", length) for length in _contexts(recipe)[1:]]
    settings += [("speculate", method) for method in recipe.climb.speculate if method != "none"]
    settings += [(path, value) for path, values in recipe.climb.settings.items() for value in values]
    steps = (SettingStep(path=path, value=value, checks=checks_for(path)) for path, value in settings)
    return [SettingStep(), *steps]


def unreachable_settings(recipe: Recipe) -> dict[str, str]:
    """The recipe's own settings that no step tries, and the reason."""
    method, listed = current_value(recipe, "speculate"), recipe.climb.speculate
    found = {}
    if recipe.context and recipe.context not in _contexts(recipe):
        found[f"context {recipe.context}"] = "the recipe's own, which climb.contexts leaves out"
    if "none" in listed and method not in listed:
        found[f"speculate {method}"] = "the recipe's own, which climb.speculate leaves out"
    return found


def _contexts(recipe: Recipe) -> list[int]:
    """Contexts to try, in order. The first is the recipe's own if that is shorter."""
    listed, own = recipe.climb.contexts, recipe.context
    if not listed:
        return [own]
    first = min(own, listed[0]) if own else listed[0]
    return [first, *(length for length in listed if length > first)]


def skip_reason(step: SettingStep, best: ClimbTrial | None, trials: list[ClimbTrial], recipe: Recipe) -> str:
    """Why a step need not be tried, or ""."""
    if not step.path:
        return ""
    if best is None:
        return "there is no good step to change"
    if current_value(best.recipe, step.path) == step.value:
        return "it is set already"
    if step.path == "context":
        failed = [trial for trial in trials if trial.path == "context" and trial.verdict == "fail"]
        return f"{failed[-1].change} failed already" if failed else ""
    if step.path != "speculate":
        return ""
    traits = registry.engine_traits(recipe.engine)
    if step.value in DRAFT_METHODS and step.value not in (*traits.draft_methods, "none"):
        return f"{traits.title} has no {step.value} drafts"
    try:
        candidates.recipe_draft(deploy(recipe), step.value)
    except BadInput as problem:
        return problem.message
    return ""


def memory_problem(deployment: Deployment) -> str:
    """Why the deployment does not fit its box now, or "" if it fits or the weights are unknown.

    Called before an engine is started: a machine that runs out of memory may take down more than the engine.
    """
    box = deployment.box
    if box is None or not deployment.is_known:
        return ""
    if deployment.recipe.runtime.kind == "embedded":  # the embedded engine uses no GPU
        box = replace(box, gpus=(), links=())
    try:
        memory = engines.memory_budget(deployment.on_box(box))
    except MoeboxError:
        return ""
    largest = max((device.total for device in memory.devices), default=0)
    if not memory.fits and memory.shortfall > MARGIN * largest:
        return f"out of memory by the plan: {format_gib(memory.shortfall)} are missing on the fullest device"
    free = memory_share().available
    # Weights are mapped from their file and may be read again; these cannot.
    needed = sum(device.kv + device.activations for device in memory.devices if device.device == "ram")
    if needed <= free:
        return ""
    return f"out of memory by the plan: cache and buffers take {format_gib(needed)}, {format_gib(free)} are free now"


def startup_problem(deployment: Deployment) -> str:
    """Why the deployment is known not to start on its box, or ""."""
    warnings = engines.find_refusals(deployment) if deployment.is_known else []
    return next((f"does not start: {warning.text}" for warning in warnings if warning.severity == "fatal"), "")


def decide_trial(trial: ClimbTrial, best: ClimbTrial | None, *, required_context: int = 0) -> tuple[bool, str]:
    """Decide whether a step is kept. Return the reason too.

    What is not meant to be faster is kept if the whole interval of its speed lies above the margin, or if it is a
    context that the recipe requires.
    """
    if trial.verdict == "fail":
        return False, trial.why
    if best is None:
        return True, "the first good step"
    if trial.asked and trial.right < best.right - max(1, best.asked // 20):
        return False, f"{ANSWERS_DIFFER}: {trial.right} of {trial.asked} answers right, {best.right} before"
    gain, margin, cost = trial.gain, f"{-SLOWER:.0%}", "speed not measured"
    speed = str(gain) if gain else "not measured"
    if trial.acceptance is not None:
        speed += f"; {trial.acceptance:.0%} of draft tokens accepted"
    if gain and gain.low >= SLOWER:
        cost = f"at most {margin} slower ({gain.interval})"
    elif gain and gain.high < 0:
        cost = f"slower: {speed}"
    elif gain:
        cost = f"not shown to be slower ({gain.interval}), but not shown to lose at most {margin} either"
    if trial.path == "context":  # it cannot make anything faster
        if gain is None or gain.low >= SLOWER:
            return True, f"verified at {format_count(trial.recipe.context)} tokens, {cost}"
        is_required = trial.recipe.context <= required_context
        return is_required, f"required by the recipe; {cost}" if is_required else f"longer, but {cost}"
    if gain and gain.is_significant:
        return gain.low > 0, f"{'faster' if gain.low > 0 else 'slower'}: {speed}"
    if best.kv_tokens and trial.kv_tokens > MORE_CACHE * best.kv_tokens:
        more = f"{format_count(trial.kv_tokens - best.kv_tokens)} more tokens of cache"
        return gain is None or gain.low >= SLOWER, f"{more}, {cost}"
    return False, speed
