"""The steps of a climb: which setting next, and whether what came of it is kept."""

from dataclasses import dataclass, field
from typing import Any, Literal

from moebox.core.recipe import Recipe
from moebox.core.verdict import Gain, Mark
from moebox.flows.settings import checks_for, current_value, draft_problem, with_setting
from moebox.units import format_count
from moebox.verify.options import CHECK_NAMES

StepGroup = Literal["start", "context", "speculate", "settings"]
SLOWER = -0.10  # a longer context that costs more than this is not kept
MORE_CACHE = 1.02  # cache that grows by less is no gain


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStep:
    """One setting to try."""

    group: StepGroup
    path: str = ""
    value: Any = None
    checks: tuple[str, ...] = CHECK_NAMES

    @property
    def change(self) -> str:
        """In words."""
        return f"{self.path} {self.value}" if self.path else "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbTrial:
    """What came of a step."""

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
    again: tuple[float, ...] = ()  # of the last good step, measured once more after this one
    right: int = 0  # of `asked` questions with known answers
    asked: int = 0
    same: int = 0  # answers word for word as those of the last good step
    acceptance: float | None = None  # of draft tokens, where the engine counts them
    rungs: dict[str, Mark] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""  # of this step's engine, in the run


def starting_recipe(recipe: Recipe) -> Recipe:
    """Where the climb starts: the first context of the walk or the recipe's own, if shorter; no draft."""
    start = with_setting(recipe, "context", _lengths(recipe)[0])
    return with_setting(start, "speculate", "none") if "none" in recipe.climb.speculate else start


def list_steps(recipe: Recipe) -> list[SettingStep]:
    """All that may be tried, in order."""
    walk = [SettingStep(group="start")]
    walk += [_step("context", "context", length) for length in _lengths(recipe)[1:]]
    walk += [_step("speculate", "speculate", method) for method in recipe.climb.speculate if method != "none"]
    for path, values in recipe.climb.settings.items():
        walk += [_step("settings", path, value) for value in values]
    return walk


def unreachable_settings(recipe: Recipe) -> dict[str, str]:
    """What the recipe itself is set to and the walk never comes to, as a step would change it, and why."""
    method, listed = current_value(recipe, "speculate"), recipe.climb.speculate
    found = {}
    if recipe.context and recipe.context not in _lengths(recipe):
        found[_step("context", "context", recipe.context).change] = "the recipe's own, which climb.contexts leaves out"
    if "none" in listed and method not in listed:
        found[_step("speculate", "speculate", method).change] = "the recipe's own, which climb.speculate leaves out"
    return found


def _lengths(recipe: Recipe) -> list[int]:
    """Contexts of the walk. A recipe that starts with a shorter one was planned for that: it is the first."""
    listed, own = recipe.climb.contexts, recipe.context
    if not listed:
        return [own]
    first = min(own, listed[0]) if own else listed[0]
    return [first, *(length for length in listed if length > first)]


def _step(group: StepGroup, path: str, value: Any) -> SettingStep:
    return SettingStep(group=group, path=path, value=value, checks=checks_for(path))


def skip_reason(step: SettingStep, best: ClimbTrial | None, trials: list[ClimbTrial], recipe: Recipe) -> str:
    """Why a step need not be tried, or nothing."""
    if step.group == "start":
        return ""
    if best is None:
        return "there is no good step to change"
    if current_value(best.recipe, step.path) == step.value:
        return "it is set already"
    if step.group == "context":
        return _too_long(trials)
    return draft_problem(recipe, step.value) if step.path == "speculate" else ""


def _too_long(trials: list[ClimbTrial]) -> str:
    """Why no longer context is tried: a shorter one failed."""
    failed = [trial for trial in trials if trial.path == "context" and trial.verdict == "fail"]
    return f"{failed[-1].change} failed already" if failed else ""


def needs_sure_gain(step: SettingStep, trial: ClimbTrial) -> bool:
    """Whether the step is about to be judged by a difference in speed, so that the difference must be sure."""
    gain = trial.gain
    if trial.verdict == "fail" or gain is None:
        return False
    return gain.high < SLOWER if step.group == "context" else gain.is_significant


def decide_trial(step: SettingStep, trial: ClimbTrial, best: ClimbTrial | None) -> tuple[bool, str]:
    """Keep it or not, and why."""
    if trial.verdict == "fail":
        return False, trial.why
    if best is None:
        return True, "the first good step"
    if trial.asked and trial.right < best.right - max(1, best.asked // 20):
        return False, f"says other things: {trial.right} of {trial.asked} answers right, {best.right} before"
    return _longer(trial) if step.group == "context" else _better(trial, best)


def _longer(trial: ClimbTrial) -> tuple[bool, str]:
    """A longer context is kept unless it costs speed; it makes nothing faster: a gain is the machine's."""
    if trial.gain and trial.gain.high < SLOWER:
        return False, f"longer, but slower: {_speed(trial)}"
    return True, f"verified at {format_count(trial.recipe.context)} tokens, no slower"


def _better(trial: ClimbTrial, best: ClimbTrial) -> tuple[bool, str]:
    """Any other setting is kept where it is faster, or leaves more room for the cache."""
    speed = _speed(trial)
    if trial.gain and trial.gain.is_significant:
        faster = trial.gain.low > 0
        return faster, f"{'faster' if faster else 'slower'}: {speed}"
    if best.kv_tokens and trial.kv_tokens > MORE_CACHE * best.kv_tokens:
        return True, f"{format_count(trial.kv_tokens - best.kv_tokens)} more tokens of cache; speed: {speed}"
    return False, speed


def _speed(trial: ClimbTrial) -> str:
    """How much faster it is, and how many draft tokens were accepted."""
    gain = str(trial.gain) if trial.gain else "not measured"
    accepted = f"; {trial.acceptance:.0%} of draft tokens accepted" if trial.acceptance is not None else ""
    return gain + accepted
