"""The first screen: what was chosen, whether it is right, how fast it is against the forecast, and what to do next.

Terminal, report, page and package show the same four cells. A failed run shows what failed, why, and the command to go
on with; a simulation is marked in every cell that would otherwise look like a result.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from moebox.core.verdict import CheckVerdict
from moebox.report.block import Tone
from moebox.report.expect import with_forecast
from moebox.report.format import count_phrase, format_ms, format_number
from moebox.report.naming import engine_title, parallelism_title, placement_title, quant_title
from moebox.report.sections.plan import PlannedFigure, compare_load, find_forecast
from moebox.runs.reader import read_run
from moebox.runs.record import RunFailure, RunRecord
from moebox.store import Run
from moebox.units import format_count, plural

_OPTION = re.compile(r"(--[a-z-]+ [\w.]+)\b")  # the option at the beginning of a hint
_COMMAND = re.compile(r"`((?:moebox|pip|apt-get|export|sudo) [^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCell:
    """One cell: its name, one line, how it stands out, and the report's section with the evidence."""

    name: str
    text: str
    tone: Tone = ""
    detail: str = ""
    link: str = ""
    command: bool = False  # `text` can be pasted into a shell


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The four cells of one run."""

    answers: tuple[DecisionCell, ...]
    simulated: bool = False

    @property
    def tone(self) -> Tone:
        """The worst tone of the cells."""
        tones = {answer.tone for answer in self.answers}
        order: tuple[Tone, ...] = ("bad", "warn", "quiet", "good")
        return next((tone for tone in order if tone in tones), "")


def decide(record: RunRecord, *, serving: bool = False) -> Decision:
    """The cells of a run; `serving`: its engine is up."""
    if record.failure:
        answers = (chosen_cell(record), *failure_cells(record, record.failure))
    else:
        cells = (correctness_cell(record), speed_cell(record), next_cell(record, serving=serving))
        answers = (chosen_cell(record), *cells)
    return Decision(answers=answers, simulated=record.simulation)


def decide_run(run: Run) -> Decision:
    """The cells of a run folder, forecasts included."""
    return decide(with_forecast(read_run(run)))


def chosen_cell(record: RunRecord) -> DecisionCell:
    """Engine, checkpoint, layout and context in one line."""
    recipe = record.recipe
    if recipe is None:
        return DecisionCell(name="chosen", text="no recipe", tone="quiet")
    layout = parallelism_title(record) or placement_title(record, single_gpu="1 GPU")
    context = f"{format_count(recipe.context)} tokens of context" if recipe.context else "the model's context"
    parts = [engine_title(record), quant_title(record), layout, context]
    return DecisionCell(name="chosen", text=" · ".join(filter(None, parts)), link="models")


def correctness_cell(record: RunRecord) -> DecisionCell:
    """How many checks passed, and which did not; green only if all were made and none warned."""
    if record.simulation:
        return DecisionCell(name="right", text="simulated: answers were not checked", tone="quiet")
    jobs = jobs_text(record)
    unfinished = record.unfinished_checks is not None
    if not record.checks_run and not unfinished:
        text = "published figures: answers were not checked" if record.imported else "not checked yet"
        if record.interrupted_step:
            text = f"not checked: interrupted in {record.interrupted_step}"
        return DecisionCell(name="right", text=text, tone="quiet", detail=jobs)
    failed, warned = record.check_names("fail"), record.check_names("warn")
    parts = [record.check_count_text]
    parts += [f"failed: {', '.join(failed)}"] if failed else []
    parts += [f"warnings: {', '.join(warned)}"] if warned else []
    quirks = [f"{check.name}: known quirk of {quirk}" for check in record.failed_checks for quirk in check.habits]
    tone: Tone = "bad" if failed else "warn" if warned or record.verdict_is_partial or unfinished else "good"
    detail = "; ".join(filter(None, (*quirks, jobs)))
    return DecisionCell(name="right", text="; ".join(parts), tone=tone, detail=detail, link="checks")


def jobs_text(record: RunRecord) -> str:
    """How many jobs an agent solved; "" if it was given none."""
    if record.tasks is None:
        return ""
    results = record.tasks.finished_results
    solved = f"{sum(job.solved for job in results)} of {plural(len(results), 'job')} solved by an agent"
    unfinished = count_phrase(len(record.tasks.unfinished_jobs), "job", "not done")
    return "; ".join(filter(None, (solved if results else "", unfinished)))


def speed_cell(record: RunRecord) -> DecisionCell:
    """The highest output rate against its forecast, and the time to first token at that load."""
    load = record.peak_load() or record.peak_load("tg_tok_s")
    if load is None or not load.headline_tok_s:
        return DecisionCell(name="fast", text="not measured yet", tone="quiet")
    at = f" at {plural(load.concurrency, 'request')}" if load.concurrency else ""
    text = f"{format_number(load.headline_tok_s)} tok/s{at}"
    ttft = f"TTFT {format_ms(load.ttft.mean_or_median)}" if load.ttft.mean_or_median else ""
    if record.simulation or load.simulation:
        return DecisionCell(name="fast", text=f"simulated: {text}", tone="quiet", detail=ttft, link="performance")
    figures = {figure.what: figure for figure in compare_load(0, load, find_forecast(load, record.forecast))}
    if ttft and "Mean TTFT" in figures:
        ttft += f" (forecast {format_ms(figures['Mean TTFT'].planned)})"
    failed_requests = count_phrase(sum(int(each.failed or 0) for each in record.loads), "request", "failed")
    interrupted = count_phrase(sum(each.partial for each in record.loads), "load", "interrupted")
    client = "the client was the limit" if load.client_limited else ""
    detail = ", ".join(filter(None, (ttft, client, failed_requests, interrupted)))
    tone: Tone = "warn" if failed_requests or interrupted else ""
    speed = next((figure for figure in figures.values() if figure.unit == "tok/s"), None)
    if speed is None:
        return DecisionCell(name="fast", text=f"{text}; no forecast", tone=tone, detail=detail, link="performance")
    if not tone and speed.in_range is not None:
        tone = "good" if speed.in_range else "warn"
    return DecisionCell(name="fast", text=f"{text}; {forecast_verdict(speed)}", tone=tone, detail=detail, link="plan")


def forecast_verdict(figure: PlannedFigure) -> str:
    """The forecast with its range, and whether the measurement lies in it."""
    forecast = f"forecast {format_number(figure.planned)}"
    if figure.expected_range is None:
        return forecast
    low, high = figure.expected_range
    verdict = "in range"
    if not figure.in_range:
        edge, side = (low, "below") if figure.measured < low else (high, "above")
        distance = abs(figure.measured / edge - 1) if edge else 1.0
        verdict = f"{f'{distance:.0%}' if distance >= 0.01 else 'less than 1%'} {side} its range"
    return f"{forecast} ({format_number(low)} to {format_number(high)}): {verdict}"


def next_cell(record: RunRecord, *, serving: bool = False) -> DecisionCell:
    """The one command to type now."""
    run, recipe = shlex.quote(record.id), record.recipe
    if record.imported:
        return DecisionCell(name="next", text="published figures: nothing to run", tone="quiet")
    if record.live:
        return DecisionCell(name="next", text="moebox ps", command=True, detail="the run is still going on")
    if record.interrupted_step:
        text, detail = (
            f"moebox {record.resume_command} --resume {run}",
            f"it was interrupted in {record.interrupted_step}",
        )
        return DecisionCell(name="next", text=text, tone="warn", command=True, detail=detail)
    if recipe is None:
        text, detail = server_command(record)
        return DecisionCell(name="next", text=text, command=True, detail=detail)
    if record.simulation:
        text, detail, link = f"moebox run {shlex.quote(recipe.model)}", "on the real box", ""
    elif record.unfinished_checks is not None:
        text, detail, link = f"moebox verify --run {run}", "it was interrupted in its checks; with its engine up", ""
    elif failed := [check for check in record.failed_checks if not check.habits]:
        path = shlex.quote(str(record.path / "recipe.toml"))
        text, detail, link = f"moebox verify {path}{_only_flag(record, failed)}", "with the engine up", "checks"
    elif serving:
        text, detail, link = "moebox connect claude-code", "its engine is up", ""
    else:
        path = shlex.quote(str(record.path / "recipe.toml"))
        text, detail, link = f"moebox up {path}", "then `moebox connect claude-code`", ""
    return DecisionCell(name="next", text=text, command=True, detail=detail, link=link)


def server_command(record: RunRecord) -> tuple[str, str]:
    """The next command and its reason for a server that moebox did not start."""
    url = shlex.quote(record.url or "URL")
    if record.unfinished_checks is not None:
        return f"moebox verify {url}", "its checks were interrupted"
    if record.tasks and record.tasks.unfinished_jobs:
        return f"moebox task --resume {shlex.quote(record.id)}", "not all jobs are done"
    if record.failed_checks:
        return f"moebox verify {url}{_only_flag(record, record.failed_checks)}", "once that is fixed"
    if record.checks_run and not record.loads:
        return f"moebox bench {url}", "its speed was not measured"
    if not record.checks_run and not record.simulation and (record.loads or record.tasks):
        return f"moebox verify {url}", "its answers were not checked"
    return "moebox models", "what can be planned"


def _only_flag(record: RunRecord, failed: Sequence[CheckVerdict]) -> str:
    """The flag for these checks; "" if only the verdict over all of them failed."""
    names = [check.name for check in failed if check is not record.summed_check]
    return f" --only {','.join(names)}" if names else ""


def failure_cells(record: RunRecord, failure: RunFailure) -> tuple[DecisionCell, ...]:
    """What failed, why if that is known, and how to go on: a command of the remedy or hint, else the run again."""
    message = f"{failure.step} failed: {failure.message}" if failure.step else failure.message
    answers = [DecisionCell(name="failed", text=message, tone="bad", link="attempts")]
    if failure.cause or failure.log_line:
        text, detail = (failure.cause, failure.log_line) if failure.cause else (failure.log_line, "")
        answers.append(DecisionCell(name="why", text=text, tone="warn", detail=detail, link="problems"))
    for text in (failure.remedy, failure.hint):
        if command := _COMMAND.search(text):
            detail = "" if text.strip() == command[0] else text
            return (*answers, DecisionCell(name="next", text=command[1], command=True, detail=detail))
    again = f"moebox run --resume {shlex.quote(record.id)}"
    if failure.step == "plan" and record.requested_model:  # the same plan would fail again
        option = _OPTION.match(failure.hint)
        again = f"moebox plan {shlex.quote(record.requested_model)}{f' {option[1]}' if option else ''}"
    return (*answers, DecisionCell(name="next", text=again, command=True, detail=failure.remedy or failure.hint))
