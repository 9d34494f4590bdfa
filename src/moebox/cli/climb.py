"""`moebox climb` and `moebox tune`: look for better settings of an engine, and keep what is verified and better."""

from dataclasses import replace
from typing import Any, Literal

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import flags
from moebox.cli.display import VERDICT_MARKS, make_table
from moebox.cli.flags import AsJson, OutputPath, Settings
from moebox.cli.output import Part, check_writable, print_lines, print_note, print_parts, print_result, write_file
from moebox.cli.signals import interrupt_message
from moebox.core.event import ClimbBegan
from moebox.core.recipe import Recipe
from moebox.core.setting import setting_names, split_settings
from moebox.detect.machine import detect_machine
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.flows import recipes, trials
from moebox.flows.tune import check_tuning
from moebox.flows.tune import tune as search
from moebox.flows.tune_state import STREAMS, TUNE_FILE, TuneOptions, TuneState
from moebox.flows.walk import ClimbMeasures, check_climb_settings, parse_effort
from moebox.serve.order import require_engine
from moebox.store import Run, calibrations
from moebox.units import format_count, format_seconds, format_tok_s, parse_seconds


def climb(
    recipe: str = "", /, *, resume: str = "", output: OutputPath = None, settings: Settings = (), json: AsJson = False
) -> int:
    """Try one setting at a time: context, then speculative decoding, then what the recipe's [climb] table lists.

    Every step restarts the engine, runs the checks that the change can break, asks the same questions again and
    measures; a change that fails, changes the answers or gains nothing is rolled back.

    Args:
        recipe: The recipe to begin with.
        resume: Resume the climb in this run folder.
        output: Write the best verified recipe to this file too.
        settings: Another value, repeatable: concurrency=4 requests at once in the measurement of each step, rounds=5
            measurements, questions=20 at temperature 0; with jobs=20 an agent also does as many jobs at each step, and
            a step that loses solved jobs is rolled back; with quality_limit=0.02 a step must keep within as many nats
            of the first one, or of reference=FILE (`moebox quality --save`) as the first one does.
    """
    parse_effort(settings)
    check_writable(output)
    start, earlier = find_start("climb", recipe, resume)
    effort = parse_effort(settings, earlier)
    run = earlier or Run.create(f"climb-{start.name}")
    print_note(f"run: {run.path}")
    notify = (lambda kind, news: None) if json else print_news
    with interrupt_message(f"resume with: moebox climb --resume {run.id}", [run]):
        result = trials.climb(start, run, effort=effort, notify=notify, box=detect_machine(measure=False))
    best = result.best
    assert best is not None  # AnswerIsNo was raised otherwise
    if output:
        write_file(output, codec.to_toml(best.recipe))

    document = {**run.read_json(trials.TABLE_FILE), "recipe": codec.to_plain(best.recipe), "run": str(run.path)}
    lines = [f"best verified recipe: {output or run.path / trials.BEST_FILE}"]
    return print_result(json, document, lambda: print_trials(result, lines))


def find_start(command: str, name: str, resume: str) -> tuple[Recipe, Run | None]:
    """Return the recipe that a climb or tuning begins with, and the run to resume, which is locked."""
    text = "name a recipe, or a run with --resume" + ", not both: a run has its recipe" * bool(name)
    refuse_if(bool(name) == bool(resume), text, hint=f"`moebox {command} recipe.toml`")
    if resume:
        run = Run.open(resume)
        begun = next((entry.command for entry in run.read_events() if isinstance(entry, ClimbBegan)), "")
        hint = f"`moebox {command} RECIPE` begins one"
        refuse_if(begun != command, f"{run.path} is not a run of `moebox {command}`", hint=hint)
        return codec.read_toml(Recipe, run.path / trials.START_FILE), Run.resume(resume)
    recipe = recipes.load_recipe(name)
    check_climb_settings(recipe)
    require_engine(deploy(recipe))
    return recipe, None


def print_news(kind: str, news: Any) -> None:
    line: Part = f"  {news}"
    if kind == "try":
        line = [(news.change, "bold"), " …"]
    elif kind == "check":
        took = (f" {format_seconds(news.seconds)}", "dim")
        line = ["  ", VERDICT_MARKS[news.verdict], f" {news.name}", took, f" {news.reason}".rstrip()]
    elif kind == "done":
        line = f"  {'kept' if news.kept else 'dropped'}: {news.why}"
    print_parts(line, stderr=True)


def print_trials(result: trials.TrialRunner, lines: list[str]) -> None:
    """Print what was tried, what was not, and where the result is."""
    rows: list[list[Part]] = []
    for trial in result.trials:
        speed, ttft = format_tok_s(trial.output_tok_s).removesuffix(" tok/s"), format_seconds(trial.ttft_ms / 1e3)
        figures = (speed, ttft) if trial.output_tok_s > 0 else ("", "")
        tokens = format_count(trial.kv_tokens) if trial.kv_tokens else ""
        kept: Part = ("kept", "green") if trial.kept else "dropped"
        rows.append(
            [trial.change, [VERDICT_MARKS[trial.verdict], f" {trial.verdict}"], *figures, tokens, kept, trial.why]
        )
    rows += [[change, ("not tried", "dim"), "", "", "", "", reason] for change, reason in result.passed_over.items()]
    heads = ("change", "verdict", "tok/s", "TTFT", "KV tokens", "", "why")
    print_parts(make_table(heads, rows, left_columns=("verdict", ""), wrapped=("change", "why")))
    print_lines(lines)


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
    options, others = split_settings(TuneOptions(goal=goal or "throughput"), settings, setting_names(ClimbMeasures))
    if budget:
        options = replace(options, budget_s=flags.parse_duration("--budget", budget))
    refuse_if(not 10 <= options.budget_s <= 30 * 86400, "--budget must be from 10s to 720h")
    refuse_out_of_range("--set layers", options.layers, 0, 1000)
    refuse_out_of_range("--set combinations", options.combinations, 1, 256)
    refuse_out_of_range("--set finalists", options.finalists, 1, 32)
    usual = ClimbMeasures(concurrency=STREAMS[options.goal])
    parse_effort(others, usual=usual)
    start, earlier = find_start("tune", recipe, resume)
    if earlier and (stored := earlier.read_json(TUNE_FILE)):
        kept = codec.decode(TuneState, stored, where=str(earlier.path / TUNE_FILE)).options
        refuse_if(goal not in (None, kept.goal), f"--goal {goal}: {earlier.id} was begun for {kept.goal}")
        options, _ = split_settings(kept, settings)
        options = replace(options, budget_s=parse_seconds(budget)) if budget else options
    effort = parse_effort(others, earlier, usual)
    box = calibrations.with_calibrations(detect_machine(measure=False))
    check_tuning(start, options, effort, box)
    run = earlier or Run.create(f"tune-{start.name}")
    print_note(f"run: {run.path}")
    notify = (lambda kind, news: None) if json else print_news
    with interrupt_message(f"resume with: moebox tune --resume {run.id}", [run]):
        result = search(start, run, options, effort, notify, box)
    assert result.best is not None  # AnswerIsNo was raised otherwise
    document = {**codec.to_plain(result.state), "recipe": codec.to_plain(result.best.recipe), "run": str(run.path)}
    places = [f"best recipe: {run.path / trials.BEST_FILE}", f"picture: {run.path / 'pareto.svg'}"]
    return print_result(json, document, lambda: print_trials(result, [*result.state.findings, *places]))
