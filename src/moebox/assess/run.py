"""Assess a run: what was chosen, whether it is right, how fast it is against its forecasts, and what to do next.

A failed run shows what failed, why, and the command to go on with; a simulation is marked in every cell that would
otherwise look like a result.
"""

from collections.abc import Iterator
from dataclasses import replace

from moebox.assess.assessment import Assessment, AssessmentCell, Tone
from moebox.assess.figures import compare_load, count_ranges, find_forecast, planned_figures
from moebox.assess.format import capitalize, count_phrase, format_ms, format_number, group_by
from moebox.assess.naming import engine_title, parallelism_title, placement_title, quant_title
from moebox.assess.next_step import failure_cells, next_cell
from moebox.assess.recommend import loads_text, recommend
from moebox.loose import get_text, is_true
from moebox.runs.record import RunRecord
from moebox.units import format_count, format_gib, plural


def assess_run(record: RunRecord, *, serving: bool = False) -> Assessment:
    """Judge everything that is known about a run; `serving`: its engine is up."""
    if record.failure:
        cells = (chosen_cell(record), *failure_cells(record, record.failure))
    elif record.upgrade:
        cells = (chosen_cell(record), next_cell(record))
    else:
        answers = (correctness_cell(record), speed_cell(record), next_cell(record, serving=serving))
        cells = (chosen_cell(record), *answers)
    assessment = Assessment(
        cells=cells,
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
        return f"Upgrade: {get_text(record.upgrade, 'outcome')}{', applied' * is_true(record.upgrade, 'applied')}"
    checks = record.check_count_text if record.checks_run else "answers not checked"
    speed = count_ranges(record).text if record.loads else "speed not measured"
    failures = count_phrase(failed_requests(record), "request", "failed")
    state = "Works" if record.checks_run else "Measured" if record.loads else "Not checked"
    state += {"bad": " in part", "warn": ", with warnings"}.get(assessment.tone, "")
    return f"{state}: {', '.join(filter(None, (checks, speed, failures)))}"


def failed_requests(record: RunRecord) -> int:
    return sum(int(load.failed or 0) for load in record.loads)


def chosen_cell(record: RunRecord) -> AssessmentCell:
    """Engine, checkpoint, layout and context in one line."""
    recipe, upgrade = record.recipe, record.upgrade
    if upgrade:
        reasons = upgrade.get("reasons")
        detail = "; ".join(map(str, reasons)) if isinstance(reasons, list | tuple) else ""
        change = f"{get_text(upgrade, 'old')} → {get_text(upgrade, 'new')}"
        return AssessmentCell(name="chosen", text=change, tone="quiet", detail=detail)
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
    known = record.warned_names(known=True)
    parts = [record.check_count_text]
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    parts += [f"warnings: {', '.join(warned)}"] if warned else []
    parts += [f"known quirks of the engine: {', '.join(known)}"] if known else []
    quirks = [f"{check.name}: known quirk of {quirk}" for check in record.failed_checks for quirk in check.habits]
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
    doubtful = any(load.doubts for load in record.loads)
    if load is None or not load.headline_tok_s:
        tone: Tone = "warn" if doubtful else "quiet"
        text = "no load completed" if record.loads else "not measured yet"
        return AssessmentCell(name="fast", text=text, tone=tone)
    at = f" at {plural(load.concurrency, 'request')}" if load.concurrency else ""
    rate = f"{format_number(load.headline_tok_s)} tok/s{at}"
    ttft = f"TTFT {format_ms(load.ttft.mean_or_median)}" if load.ttft.mean_or_median else ""
    if record.simulation or load.simulation:
        return AssessmentCell(name="fast", text=f"simulated: {rate}", tone="quiet", detail=ttft, link="performance")
    figures = {figure.what: figure for figure in compare_load(0, load, find_forecast(load, record.forecast))}
    if ttft and (first := figures.get("Mean TTFT")):
        ttft += f" (forecast {format_ms(first.planned)}: {first.distance_text or 'in range'})"
    speed = next((figure for figure in figures.values() if figure.unit == "tok/s"), None)
    count = count_ranges(record)
    tone = "warn" if doubtful or count.loads_in_range < count.loads else "good" if count.loads else ""
    detail = ", ".join(filter(None, (speed.range_text if speed else "", ttft)))
    link = "plan" if count.loads else "performance"
    return AssessmentCell(name="fast", text=f"{rate}; {count.text}", tone=tone, detail=detail, link=link)


def run_warnings(record: RunRecord) -> Iterator[str]:
    """What a reader has to know before believing the figures; failed checks are in their cell."""
    memory = record.planned_memory
    if memory and not memory.fits:
        yield f"by the plan's arithmetic it does not fit: {format_gib(memory.shortfall)} are missing"
    doubts = group_by(((doubt, load) for load in record.loads for doubt in load.doubts), lambda pair: pair[0])
    for doubt, pairs in doubts.items():
        yield f"{doubt}, at {loads_text([load for _, load in pairs])}"
    outside = [figure for figure in planned_figures([record]) if figure.in_range is False]
    worst = max(outside, key=lambda figure: abs(figure.relative_error), default=None)
    if worst and not record.simulation:
        yield f"{worst.what} at {worst.load} is furthest off: {worst.distance_text}"
    for check in record.checks:
        if check.verdict == "warn":
            yield from (f"{check.name}: known quirk of {quirk}" for quirk in check.habits)
