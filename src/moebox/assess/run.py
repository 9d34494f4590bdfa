"""Assess a run: what was chosen, whether it is right, how fast it is against its forecasts, and what to do next."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from moebox.assess.assessment import Assessment, AssessmentCell, Tone
from moebox.assess.commands import bench_commands, server_words
from moebox.assess.figures import compare_load, count_ranges, find_forecast, planned_figures
from moebox.assess.format import capitalize, count_phrase, format_ms, format_number, group_by
from moebox.assess.naming import engine_title, parallelism_title, placement_title, quant_title
from moebox.assess.recommend import SUSPECTS, loads_text, recommend, repeat_conditions
from moebox.core.catalogue import get_model
from moebox.core.quirks import all_quirks
from moebox.core.recipe import Recipe
from moebox.core.verdict import CheckVerdict
from moebox.runs.record import RunFailure, RunRecord
from moebox.serve.connect import CLAUDE_MIN_CONTEXT
from moebox.units import format_count, format_gib, plural


def assess_run(record: RunRecord, *, serving: bool = False) -> Assessment:
    """Judge everything that is known about a run; `serving`: its engine is up."""
    if record.failure:
        answers = failure_cells(record, record.failure)
    elif record.upgrade:
        answers = (next_cell(record),)
    else:
        answers = (correctness_cell(record), speed_cell(record), next_cell(record, serving=serving))
    assessment = Assessment(
        cells=(chosen_cell(record), *answers),
        warnings=tuple(run_warnings(record)),
        recommendations=() if record.simulation else recommend([record]),
        simulated=record.simulation,
    )
    return replace(assessment, headline=headline(record, assessment))


def headline(record: RunRecord, assessment: Assessment) -> str:
    failed, right, fast = map(assessment.cell, ("failed", "right", "fast"))
    if failed or not ((right and fast) or record.upgrade):
        return capitalize(failed.text) if failed else ""
    if record.simulation:
        return "A simulation: no GPU produced these figures"
    if record.live:
        return "Still running"
    if record.unfinished_step:
        return f"Interrupted in {record.unfinished_step}"
    if record.imported:
        return ""
    if record.upgrade:
        return f"Upgrade: {record.upgrade.outcome}{', applied' * record.upgrade.applied}"
    checks = record.check_count_text if record.checks_run else "answers not checked"
    damaged = count_phrase(len(record.damaged_loads), "measurement", "damaged")
    speed = count_ranges(record).text if record.loads else "" if damaged else "speed not measured"
    failures = count_phrase(failed_requests(record), "request", "failed")
    state = "Works" if record.checks_run else "Measured" if record.loads else "Not checked"
    state += {"bad": " in part", "warn": ", with warnings"}.get(assessment.tone, "")
    return f"{state}: {', '.join(filter(None, (checks, speed, damaged, failures)))}"


def failed_requests(record: RunRecord) -> int:
    return sum(int(load.failed or 0) for load in record.loads)


def chosen_cell(record: RunRecord) -> AssessmentCell:
    """Engine, checkpoint, layout and context in one line."""
    recipe, upgrade = record.recipe, record.upgrade
    if upgrade:
        change, reasons = f"{upgrade.old} → {upgrade.new}", "; ".join(upgrade.reasons)
        return AssessmentCell(name="chosen", text=change, tone="quiet", detail=reasons)
    if recipe is None:
        return AssessmentCell(name="chosen", text="no recipe", tone="quiet")
    layout = parallelism_title(record) or placement_title(record, single_gpu="1 GPU")
    context = f"{format_count(recipe.context)} tokens of context" if recipe.context else "the model's context"
    parts = [engine_title(record), quant_title(record), layout, context]
    return AssessmentCell(name="chosen", text=" · ".join(filter(None, parts)), link="models")


def correctness_cell(record: RunRecord) -> AssessmentCell:
    """How many checks passed, and which did not; green only if all were made and none warned."""
    if record.simulation:
        return AssessmentCell(name="right", text="simulated: answers were not checked", tone="quiet")
    jobs = jobs_text(record)
    unfinished = record.unfinished_checks is not None
    if not record.checks_run and not unfinished:
        text = "published figures: answers were not checked" if record.imported else "not checked yet"
        if record.interrupted_step:
            text = f"not checked: interrupted in {record.interrupted_step}"
        return AssessmentCell(name="right", text=text, tone="quiet", detail=jobs)
    failed, warned = record.check_names("fail"), record.warned_names(known=False)
    named = {"failed": failed, "warnings": warned, "known quirks of the engine": record.warned_names(known=True)}
    parts = [record.check_count_text, *(f"{title}: {', '.join(names)}" for title, names in named.items() if names)]
    quirks = [f"{check.name}: known quirk of {quirk}" for check in record.failed_checks for quirk in check.quirks]
    is_partial = record.verdict_is_partial or unfinished or bool(record.tasks and record.tasks.unfinished_jobs)
    tone: Tone = "bad" if failed else "warn" if warned or is_partial or record.interrupted_step else "good"
    detail = "; ".join(filter(None, (*quirks, jobs)))
    return AssessmentCell(name="right", text="; ".join(parts), tone=tone, detail=detail, link="checks")


def jobs_text(record: RunRecord) -> str:
    """How many jobs an agent solved; "" if it was given none."""
    if record.tasks is None:
        return ""
    results = record.tasks.finished_results
    solved = f"{sum(job.solved for job in results)} of {plural(len(results), 'job')} solved by an agent"
    unfinished = count_phrase(len(record.tasks.unfinished_jobs), "job", "not done")
    return "; ".join(filter(None, (solved if results else "", unfinished)))


def speed_cell(record: RunRecord) -> AssessmentCell:
    """The highest output rate that can be believed, and how many of all loads lie in the range of their forecast."""
    load = record.peak_load() or record.peak_load("tg_tok_s")
    doubtful = bool(record.damaged_loads) or any(load.doubts for load in record.loads)
    if load is None or not load.headline_tok_s:
        tone: Tone = "warn" if doubtful else "quiet"
        missing = "not known: the result is damaged" if record.damaged_loads else "not measured yet"
        return AssessmentCell(name="fast", text="no load completed" if record.loads else missing, tone=tone)
    at = f" at {plural(load.concurrency, 'request') if load.concurrency else load.load_name}" if load.load_value else ""
    rate = f"{format_number(load.headline_tok_s)} tok/s{at}"
    rate += f", {load.slo_share:.0%} of requests met the SLO" if load.slo_share is not None else ""
    ttft = f"TTFT {format_ms(load.ttft.mean_or_median)}" if load.ttft.mean_or_median else ""
    if record.simulation or load.simulation:
        return AssessmentCell(name="fast", text=f"simulated: {rate}", tone="quiet", detail=ttft, link="performance")
    figures = {figure.what: figure for figure in compare_load(0, load, find_forecast(load, record.forecast))}
    if ttft and (first := figures.get("Mean TTFT")):
        ttft += f" (forecast {format_ms(first.planned)}: {first.distance_text or 'in range'})"
    speed = next((figure for figure in figures.values() if figure.unit == "tok/s"), None)
    count = count_ranges(record)
    doubtful = doubtful or load.missed_slo or count.loads_in_range < count.loads
    tone = "warn" if doubtful else "good" if count.loads else ""
    detail = ", ".join(filter(None, (speed.range_text if speed else "", ttft)))
    link = "plan" if count.loads else "performance"
    return AssessmentCell(name="fast", text=f"{rate}; {count.text}", tone=tone, detail=detail, link=link)


def run_warnings(record: RunRecord) -> Iterator[str]:
    """What a reader has to know before believing the figures; failed checks are in their cell."""
    memory = record.planned_memory
    if not memory.fits:
        yield f"by the plan's arithmetic it does not fit: {format_gib(memory.shortfall)} are missing"
    doubts = group_by(((doubt, load) for load in record.loads for doubt in load.doubts), lambda pair: pair[0])
    yield from record.damaged_loads
    for doubt, pairs in doubts.items():
        yield f"{doubt}, at {loads_text([load for _, load in pairs])}"
    outside = [figure for figure in planned_figures([record]) if figure.in_range is False]
    worst = max(outside, key=lambda figure: abs(figure.relative_error), default=None)
    if worst and not record.simulation:
        yield f"{worst.what} at {worst.load} is furthest off: {worst.distance_text}"
    for check in record.checks:
        if check.verdict == "warn":
            yield from (f"{check.name}: known quirk of {quirk}" for quirk in check.quirks)


FAR_BELOW = 0.75  # of the range's lower edge: a rate below it has a cause that has to be found before clients connect
CLAUDE_CHECKS = ("anthropic", "tools")  # without these abilities of the server, Claude Code does not work
_OPTION = re.compile(r"(--[a-z-]+ [\w.]+)\b")  # the option at the beginning of a hint
_COMMAND = re.compile(r"`((?:moebox|pip|apt-get|export|sudo) [^`]+)`")


def next_cell(record: RunRecord, *, serving: bool = False) -> AssessmentCell:
    """What to do now, mostly a command; `serving`: the run's engine is up."""
    run, recipe = shlex.quote(record.id), record.recipe
    if record.imported:
        return AssessmentCell(name="next", text="published figures: nothing to run", tone="quiet")
    if record.live:
        return command_cell("moebox ps", "the run is still going on")
    if record.interrupted_step and (recipe or record.interrupted_step != "bench"):  # of `moebox bench URL`: below
        text, detail = f"moebox {record.resume_command}", f"it was interrupted in {record.interrupted_step}"
        return AssessmentCell(name="next", text=text, tone="warn", command=True, detail=detail)
    if upgrade := record.upgrade:
        if upgrade.outcome in ("keep", "no difference") and not upgrade.applied:
            return command_cell(record.resume_command.replace("upgrade", "moebox upgrade apply", 1), "switches to it")
        return command_cell(f"moebox runs history {shlex.quote(upgrade.name)}", "what ran of this recipe, and how well")
    if recipe is None:
        return command_cell(*server_command(record))
    if record.simulation:
        return command_cell(f"moebox run {shlex.quote(recipe.model)}", "on the real box")
    if record.unfinished_checks is not None:
        return command_cell(f"moebox verify --run {run}", "it was interrupted in its checks; with its engine up")
    path = shlex.quote(str(record.path / "recipe.toml"))
    if failed := [check for check in record.failed_checks if not check.quirks]:
        return command_cell(f"moebox verify {path}{_only_flag(record, failed)}", "with the engine up", link="checks")
    if failures := failed_requests_text(record):
        return command_cell(f"moebox doctor logs {shlex.quote(str(record.path))}", failures, link="performance")
    if quirks := [text for check in record.failed_checks for text in check.quirks]:
        text = {quirk.text: quirk.client for quirk in all_quirks()}.get(quirks[0]) or quirks[0]
        return AssessmentCell(name="next", text=text, detail="the workaround for a known quirk", link="checks")
    if repeat := repeat_command(record, shlex.split(path)):
        return command_cell(repeat[0] if serving else f"moebox run --recipe {path}", repeat[1], link="performance")
    slow_figures = [
        figure
        for figure in planned_figures([record])
        if figure.unit == "tok/s" and figure.expected_range and figure.measured < FAR_BELOW * figure.expected_range[0]
    ]
    if slow := min(slow_figures, key=lambda figure: figure.relative_error, default=None):
        detail = f"{slow.what} at {slow.load} is {slow.distance_text}: look at {SUSPECTS[record.has_no_gpu]}"
        return command_cell("moebox doctor box", detail, link="plan")
    client, reason = usable_client(record, recipe)
    if serving:
        return command_cell(f"moebox connect {client}", reason or "its engine is up")
    place = "" if record.attempts or not recipe.planned_for.box else f"on {recipe.planned_for.box}"
    detail = "; ".join(filter(None, (place, f"then `moebox connect {client}`", reason)))
    return command_cell(f"moebox up {path}", detail)


def command_cell(text: str, detail: str, *, link: str = "") -> AssessmentCell:
    """The cell of a command that can be pasted into a shell."""
    return AssessmentCell(name="next", text=text, command=True, detail=detail, link=link)


def failed_requests_text(record: RunRecord) -> str:
    """How many requests failed, with the most frequent error; "" if none did."""
    errors: Counter[str] = Counter()
    for load in record.loads:
        errors.update(load.measurement.errors if load.measurement else {})
    text = count_phrase(failed_requests(record), "request", "failed")
    return f"{text}: {errors.most_common(1)[0][0]}" if text and errors else text


def repeat_command(record: RunRecord, target: Sequence[str]) -> tuple[str, str] | None:
    """The command that measures missing, interrupted or flagged loads, and why; None if there are none."""
    if record.server.left:
        commands = (shlex.join(["moebox", "bench", *words]) for words in record.server.left)
        return " && ".join(commands), "it was interrupted in bench"
    doubtful = [load for load in record.loads if load.flags or load.partial]
    reason = next((flag for load in doubtful for flag in load.flags), "a load was interrupted")
    text = " ".join(("measure again", *repeat_conditions(doubtful)[:1])) + f": {reason}"
    return (" && ".join(bench_commands(doubtful, target)), text) if doubtful else None


def usable_client(record: RunRecord, recipe: Recipe) -> tuple[str, str]:
    """A client that works on the endpoint of the run's recipe, and why it is not Claude Code."""
    model = get_model(recipe.model)
    longest = model.context if model else 0
    context = recipe.context or longest
    missing = [name for name in CLAUDE_CHECKS if name in record.check_names("skip")]
    if context >= CLAUDE_MIN_CONTEXT and not missing:
        return "claude-code", ""
    if missing:
        return "curl", f"Claude Code needs what these checks could not see: {', '.join(missing)}"
    if not context:
        return "curl", "the context is not known"
    reason = f"Claude Code needs {format_count(CLAUDE_MIN_CONTEXT)} tokens of context, this has {format_count(context)}"
    if longest >= CLAUDE_MIN_CONTEXT:
        reason += f": `moebox plan {shlex.quote(recipe.model)} --context {CLAUDE_MIN_CONTEXT}`"
    return "curl", reason


def server_command(record: RunRecord) -> tuple[str, str]:
    """The next command and its reason for a server that moebox did not start."""
    target = [*server_words(record), *record.server.connection]
    verify, bench = shlex.join(["moebox", "verify", *server_words(record)]), shlex.join(["moebox", "bench", *target])
    if record.unfinished_checks is not None:
        return verify, "its checks were interrupted"
    if record.tasks and record.tasks.unfinished_jobs:
        return f"moebox task --resume {shlex.quote(record.id)}", "not all jobs are done"
    if record.failed_checks:
        return f"{verify}{_only_flag(record, record.failed_checks)}", "once that is fixed"
    if failures := failed_requests_text(record):
        return verify, failures
    if repeat := repeat_command(record, target):
        return repeat
    if (record.checks_run or record.damaged_loads) and not record.loads:
        return bench, next(iter(record.damaged_loads), "its speed was not measured")
    if not record.checks_run and not record.simulation and (record.loads or record.tasks):
        return verify, "its answers were not checked"
    return "moebox models", "what can be planned"


def _only_flag(record: RunRecord, failed: Sequence[CheckVerdict]) -> str:
    """The flag for these checks; "" if only the verdict over all of them failed."""
    names = [check.name for check in failed if check is not record.summed_check]
    return f" --only {','.join(names)}" if names else ""


def failure_cells(record: RunRecord, failure: RunFailure) -> tuple[AssessmentCell, ...]:
    """What failed, why if that is known, and how to go on: a command of the remedy or hint, else the run again."""
    message = f"{failure.step} failed: {failure.message}" if failure.step else failure.message
    answers = [AssessmentCell(name="failed", text=message, tone="bad", link="attempts")]
    if failure.cause or failure.log_line:
        text, detail = (failure.cause, failure.log_line) if failure.cause else (failure.log_line, "")
        answers.append(AssessmentCell(name="why", text=text, tone="warn", detail=detail, link="problems"))
    if failure.step == "bench" and not record.pipeline.steps:
        return (*answers, *([correctness_cell(record)] if record.checks_run else []), next_cell(record))
    for text in (failure.remedy, failure.hint):
        if command := _COMMAND.search(text):
            detail = "" if text.strip() == command[0] else text
            return (*answers, AssessmentCell(name="next", text=command[1], command=True, detail=detail))
    again = f"moebox {record.resume_command}"
    if failure.step == "plan" and record.requested_model:  # the same plan would fail again
        option = _OPTION.match(failure.hint)
        again = f"moebox plan {shlex.quote(record.requested_model)}{f' {option[1]}' if option else ''}"
    return (*answers, AssessmentCell(name="next", text=again, command=True, detail=failure.remedy or failure.hint))
