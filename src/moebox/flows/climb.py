"""Climb: change one setting at a time and restart the engine; keep a change that is verified and better.

RUN/best.toml has the best verified recipe; flows/trials.py names the other files.
"""

from dataclasses import dataclass

from moebox import codec
from moebox.core.box import Box
from moebox.core.recipe import Recipe
from moebox.errors import AnswerIsNo
from moebox.flows import settings
from moebox.flows.effort import ClimbEffort
from moebox.flows.trials import BEST_FILE, ClimbListener, TrialRunner
from moebox.flows.walk import ClimbTrial, SettingStep, list_steps, unreachable_settings
from moebox.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbResult:
    trials: tuple[ClimbTrial, ...]
    best: ClimbTrial | None
    passed_over: dict[str, str]  # steps that were not tried, and the reason


def climb(
    recipe: Recipe,
    run: Run,
    *,
    effort: ClimbEffort,
    notify: ClimbListener = lambda kind, news: None,
    box: Box | None = None,
) -> ClimbResult:
    """Try the settings in the recipe's `climb` table. Resume if the run folder has a climb of the same recipe.

    A step that does not fit `box` is skipped. Raise AnswerIsNo if the first step fails.
    """
    settings.check_climb_settings(recipe)
    climber = TrialRunner(recipe, run, effort, notify, box)
    for change, reason in unreachable_settings(recipe).items():
        notify("news", f"{change} is not tried: {reason}")
        climber.skip(change, reason)
    for step in list_steps(recipe):
        if any(trial.change == step.change for trial in climber.trials):
            continue
        if reason := climber.reason_to_skip(step):
            climber.skip(step.change, reason)
            continue
        trial = climber.try_step(step)
        climber.add_trial(trial)
        notify("done", trial)
        if step.group == "start" and not trial.kept:
            break
    climber.save_table(ended=True)
    best = climber.best
    if best is None:
        reason = climber.trials[0].why if climber.trials else climber.skipped[SettingStep(group="start").change]
        raise AnswerIsNo(f"the recipe is not good at its first step: {reason}", hint=f"evidence in {run.path}")
    run.write_file(BEST_FILE, codec.to_toml(best.recipe))
    return ClimbResult(trials=tuple(climber.trials), best=best, passed_over=climber.skipped)
