"""`moebox tune`: search an engine's settings for those that serve a goal best."""

from dataclasses import replace
from typing import Literal

from moebox.cli import flags
from moebox.cli.climb import begin_trials, print_news, print_steps
from moebox.cli.flags import AsJson, Settings
from moebox.cli.output import print_lines, print_result, stderr_console
from moebox.cli.signals import interrupt_message
from moebox.core.setting import split_settings
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.units import parse_seconds


def tune(
    recipe: str = "",
    /,
    *,
    goal: Literal["throughput", "latency", "efficiency"] | None = None,
    budget: str = "",
    resume: str = "",
    settings: Settings = (),
    json: AsJson = False,
) -> int:
    """Search the settings that the engine declares for the fastest ones that still answer correctly.

    Settings are screened with few layers, those that the forecast prefers first; the best combinations run with the
    whole model, pass the checks, and must beat the recipe as it is, measured in turn (A B B A). The result is a recipe
    with the reason and gain of each setting. docs/tune.md lists the settings.

    Args:
        recipe: The recipe to improve. Values in its [climb] settings table replace those that the engine declares.
        goal: throughput (16 concurrent requests), latency (one), or efficiency (tokens per joule). Default: throughput.
        budget: The most time that it may take, such as 2h. Default: 2h.
        resume: Resume the tuning in this run folder; --budget gives it more time.
        settings: Another value, repeatable: only=max_seqs,kv tunes these; layers=4 of the screening, 0 for all;
            combinations=8 and finalists=2; quality_limit=0.02, which cache types need; power=true sweeps the power
            cap; quality_limit, reference, concurrency, rounds and questions as in `moebox climb`.
    """
    from moebox import codec
    from moebox.detect.machine import detect_machine
    from moebox.flows.effort import ClimbMeasures, parse_effort
    from moebox.flows.trials import BEST_FILE
    from moebox.flows.tune import tune as search
    from moebox.flows.tune_state import STREAMS, TUNE_FILE, TuneOptions, TuneState
    from moebox.store import calibrations

    refuse_if(bool(recipe) == bool(resume), "name a recipe, or a run with --resume", hint="`moebox tune recipe.toml`")
    options, others = split_settings(TuneOptions(goal=goal or "throughput"), settings)
    if budget:
        options = replace(options, budget_s=flags.parse_duration("--budget", budget))
    refuse_if(not 10 <= options.budget_s <= 30 * 86400, "--budget must be from 10s to 720h")
    refuse_out_of_range("--set layers", options.layers, 0, 1000)
    refuse_out_of_range("--set combinations", options.combinations, 1, 256)
    refuse_out_of_range("--set finalists", options.finalists, 1, 32)
    usual = ClimbMeasures(concurrency=STREAMS[options.goal])
    parse_effort(others, usual=usual)
    start, run = begin_trials("tune", recipe, resume)
    if resume and (stored := run.read_json(TUNE_FILE)):
        kept = codec.decode(TuneState, stored, where=str(run.path / TUNE_FILE)).options
        refuse_if(goal not in (None, kept.goal), f"--goal {goal}: {run.id} was begun for {kept.goal}")
        options, _ = split_settings(kept, settings)
        options = replace(options, budget_s=parse_seconds(budget)) if budget else options
    effort = parse_effort(others, run, usual)
    stderr_console().print(f"run: {run.path}", soft_wrap=True)
    notify = (lambda kind, news: None) if json else print_news
    box = calibrations.with_calibrations(detect_machine(measure=False))
    with interrupt_message(f"resume with: moebox tune --resume {run.id}"):
        result, found = search(start, run, options=options, effort=effort, notify=notify, box=box)
    assert result.best is not None  # AnswerIsNo was raised otherwise

    def print_table() -> None:
        print_steps(result.trials, result.passed_over)
        print_lines(found.findings)
        print_lines([f"best recipe: {run.path / BEST_FILE}", f"picture: {run.path / 'pareto.svg'}"])

    document = {**codec.to_plain(found), "recipe": codec.to_plain(result.best.recipe), "run": str(run.path)}
    return print_result(json, document, print_table)
