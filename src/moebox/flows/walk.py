"""The steps of a climb: which setting is next, whether it fits, and whether it is kept."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.core.verdict import Gain, Mark
from moebox.detect.limits import memory_share
from moebox.errors import MoeboxError
from moebox.flows.settings import checks_for, current_value, draft_problem, with_setting
from moebox.units import format_count, format_gib
from moebox.verify.options import CHECK_NAMES

StepGroup = Literal["start", "context", "speculate", "settings", "tune"]
SLOWER = -0.10  # margin of non-inferiority: a longer context or larger cache is kept if it costs no more speed
MORE_CACHE = 1.02  # a cache that grows by less is not a gain
ANSWERS_DIFFER = "answers differ"
MARGIN = 0.05  # of the device: the planner's own error; a step that misses by less is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStep:
    group: StepGroup
    path: str = ""
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
    settings: list[tuple[StepGroup, str, Any]] = []
    settings += [("context", "context", length) for length in _contexts(recipe)[1:]]
    settings += [("speculate", "speculate", method) for method in recipe.climb.speculate if method != "none"]
    for path, values in recipe.climb.settings.items():
        settings += [("settings", path, value) for value in values]
    return [
        SettingStep(group="start"),
        *(SettingStep(group=group, path=path, value=value, checks=checks_for(path)) for group, path, value in settings),
    ]


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
    if step.group in ("start", "tune"):
        return ""
    if best is None:
        return "there is no good step to change"
    if current_value(best.recipe, step.path) == step.value:
        return "it is set already"
    if step.group == "context":
        failed = [trial for trial in trials if trial.path == "context" and trial.verdict == "fail"]
        return f"{failed[-1].change} failed already" if failed else ""
    return draft_problem(recipe, step.value) if step.path == "speculate" else ""


def memory_problem(deployment: Deployment) -> str:
    """Why the deployment does not fit its box now, or "" if it fits or the weights are unknown.

    Called before an engine is started: a machine that runs out of memory may take down more than the engine.
    """
    box = deployment.box
    if box is None or not deployment.is_known:
        return ""
    if deployment.recipe.runtime.kind == "embedded":  # the embedded engine uses no GPU
        box = dataclasses.replace(box, gpus=(), links=())
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


def needs_sure_gain(step: SettingStep, trial: ClimbTrial) -> bool:
    """Whether the decision on a step depends on a difference in speed."""
    gain = trial.gain
    if trial.verdict == "fail" or gain is None:
        return False
    return gain.high < SLOWER if step.group == "context" else gain.is_significant


def decide_trial(
    step: SettingStep, trial: ClimbTrial, best: ClimbTrial | None, *, required_context: int = 0
) -> tuple[bool, str]:
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
    speed = str(trial.gain) if trial.gain else "not measured"
    if trial.acceptance is not None:
        speed += f"; {trial.acceptance:.0%} of draft tokens accepted"
    gain, margin = trial.gain, f"{-SLOWER:.0%}"
    cost = "speed not measured"
    if gain and gain.low >= SLOWER:
        cost = f"at most {margin} slower ({gain.interval})"
    elif gain and gain.high < 0:
        cost = f"slower: {speed}"
    elif gain:
        cost = f"not shown to be slower ({gain.interval}), but not shown to lose at most {margin} either"
    if step.group == "context":  # it cannot make anything faster
        if gain is None or gain.low >= SLOWER:
            return True, f"verified at {format_count(trial.recipe.context)} tokens, {cost}"
        is_required = trial.recipe.context <= required_context
        return is_required, f"required by the recipe; {cost}" if is_required else f"longer, but {cost}"
    if trial.gain and trial.gain.is_significant:
        faster = trial.gain.low > 0
        return faster, f"{'faster' if faster else 'slower'}: {speed}"
    if best.kv_tokens and trial.kv_tokens > MORE_CACHE * best.kv_tokens:
        more = f"{format_count(trial.kv_tokens - best.kv_tokens)} more tokens of cache"
        return gain is None or gain.low >= SLOWER, f"{more}, {cost}"
    return False, speed
