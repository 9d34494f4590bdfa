"""The first screen's four answers: what was chosen, is it right, how fast against the forecast, what next.

Terminal, report, page and package all show these same four cells. A run that failed says what failed, why, and the
command that goes on from there; a simulation says so in every cell that would otherwise read like a result.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moebox.report.block import Tone
from moebox.report.expect import with_forecast
from moebox.report.format import count_phrase, format_ms, format_number
from moebox.report.naming import engine_title, parallelism_title, placement_title, quant_title
from moebox.report.reading import read_record
from moebox.report.record import CheckRow, LoadResult, RunFailure, RunRecord
from moebox.report.sections.plan import PlannedFigure, compare_load, find_forecast
from moebox.store import Run
from moebox.units import format_count, plural

_OPTION = re.compile(r"(--[a-z-]+ [\w.]+)\b")  # what a hint would change, at its beginning
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
    """The four answers of one run."""

    answers: tuple[DecisionCell, ...]
    simulated: bool = False

    @property
    def tone(self) -> Tone:
        """The worst of the answers, for lists of runs."""
        tones = [answer.tone for answer in self.answers]
        for tone in ("bad", "warn", "quiet"):
            if tone in tones:
                return tone
        return "good" if "good" in tones else ""


def decide(record: RunRecord, *, serving: bool = False) -> Decision:
    """The answers of a run, as far as its folder tells; `serving`: its engine is up."""
    if record.failure:
        answers = (chosen_cell(record), *failure_cells(record, record.failure))
    else:
        answers = (
            chosen_cell(record),
            correctness_cell(record),
            speed_cell(record),
            next_cell(record, serving=serving),
        )
    return Decision(answers=answers, simulated=record.simulation)


def decide_run(run: Run) -> Decision:
    """The answers of a run folder, the forecast for its loads included."""
    return decide(with_forecast(read_record(run)))


def chosen_cell(record: RunRecord) -> DecisionCell:
    """Engine, checkpoint, layout and context in one line."""
    recipe = record.recipe
    if recipe is None:
        return DecisionCell(name="chosen", text="no recipe", tone="quiet")
    place = parallelism_title(record) or placement_title(record, single_gpu="1 GPU")
    context = f"{format_count(recipe.context)} tokens of context" if recipe.context else "the model's context"
    parts = [engine_title(record), quant_title(record), place, context]
    return DecisionCell(name="chosen", text=" · ".join(filter(None, parts)), link="models")


def correctness_cell(record: RunRecord) -> DecisionCell:
    """How many checks passed; what slipped."""
    if record.simulation:
        return DecisionCell(name="right", text="simulated: answers were not checked", tone="quiet")
    if not record.checks_run and not record.is_verification_unfinished:
        return DecisionCell(name="right", text=_unchecked(record), tone="quiet", detail=jobs_text(record))
    told = {"failed": record.check_names("fail"), "warnings": record.check_names("warn")}
    slips = [f"{what}: {', '.join(names)}" for what, names in told.items() if names]
    text = "; ".join([record.check_count_text, *slips])
    detail = "; ".join(filter(None, (quirks_text(record), jobs_text(record))))
    return DecisionCell(name="right", text=text, tone=_verdict_tone(record), detail=detail, link="ladder")


def _verdict_tone(record: RunRecord) -> Tone:
    """Bad where a check failed; good only where all were made and none warned."""
    if record.check_names("fail"):
        return "bad"
    return (
        "warn"
        if record.check_names("warn") or record.is_partly_checked or record.is_verification_unfinished
        else "good"
    )


def _unchecked(record: RunRecord) -> str:
    """Why nothing is said of the answers."""
    if record.interrupted_step:
        return f"not checked: interrupted in {record.interrupted_step}"
    return "published figures: answers were not checked" if record.imported else "not checked yet"


def jobs_text(record: RunRecord) -> str:
    """How many jobs an agent solved with it, where some were tried."""
    if record.tasks is None:
        return ""
    done = record.tasks.finished_results
    text = f"{sum(job.solved for job in done)} of {plural(len(done), 'job')} solved by an agent" if done else ""
    return "; ".join(filter(None, (text, count_phrase(len(record.tasks.unfinished_jobs), "job", "not done"))))


def quirks_text(record: RunRecord) -> str:
    """Which of the failed checks every server of this engine fails, and what clients do about it."""
    failing = [check for check in record.checks if check.has_failed]
    return "; ".join(f"{check.name}: known habit of {habit}" for check in failing for habit in check.quirks)


def speed_cell(record: RunRecord) -> DecisionCell:
    """The highest output rate against its forecast, then the time to first token at that load."""
    level = _headline(record)
    if level is None:
        return DecisionCell(name="fast", text="not measured yet", tone="quiet")
    text = f"{format_number(level.headline_tok_s)} tok/s{_load(level)}"
    ttft = f"TTFT {format_ms(level.ttft.mean_or_median)}" if level.ttft.mean_or_median else ""
    if record.simulation or level.simulation:
        return DecisionCell(name="fast", text=f"simulated: {text}", tone="quiet", detail=ttft, link="performance")
    return _against_forecast(record, level, text, ttft)


def _against_forecast(record: RunRecord, level: LoadResult, text: str, ttft: str) -> DecisionCell:
    pairs = {pair.what: pair for pair in compare_load(0, level, find_forecast(level, record.plan.rows))}
    speed = next((pair for pair in pairs.values() if pair.unit == "tok/s"), None)
    spoilt = _spoilt(record)
    detail = ", ".join(filter(None, (ttft + _against(pairs.get("Mean TTFT")), _limit(level), spoilt)))
    found = DecisionCell(name="fast", text=f"{text}; no forecast", detail=detail, link="performance")
    if speed:
        found = replace(found, text=f"{text}; {forecast_verdict(speed)}", tone=_tone(speed), link="plan")
    return replace(found, tone="warn") if spoilt else found


def _limit(level: LoadResult) -> str:
    return "the client was the limit" if level.client_limited else ""


def _spoilt(record: RunRecord) -> str:
    """Requests that did not end well, and loads that were not measured to their end."""
    bad = sum(int(level.failed or 0) for level in record.loads)
    cut = sum(level.partial for level in record.loads)
    return ", ".join(filter(None, (count_phrase(bad, "request", "failed"), count_phrase(cut, "load", "interrupted"))))


def _against(pair: PlannedFigure | None) -> str:
    return f" (forecast {format_ms(pair.planned)})" if pair else ""


def _headline(record: RunRecord) -> LoadResult | None:
    """The level with the highest rate: of serving where that was measured, else of one stream."""
    level = record.peak_load() or record.peak_load("tg_tok_s")
    return level if level and level.headline_tok_s else None


def _load(level: LoadResult) -> str:
    return f" at {plural(level.concurrency, 'request')}" if level.concurrency else ""


def forecast_verdict(pair: PlannedFigure) -> str:
    """The forecast beside it, and whether it lies in its band."""
    forecast = f"forecast {format_number(pair.planned)}"
    if pair.expected_range is None:
        return forecast
    low, high = pair.expected_range
    place = "in band" if pair.in_range else _outside(pair.measured, low, high)
    return f"{forecast} ({format_number(low)} to {format_number(high)}): {place}"


def _outside(measured: float, low: float, high: float) -> str:
    """How far from which end of the band."""
    edge, side = (low, "below") if measured < low else (high, "above")
    off = abs(measured / edge - 1) if edge else 1.0  # a run folder may say anything
    return f"{f'{off:.0%}' if off >= 0.01 else 'less than 1%'} {side} its band"


def _tone(pair: PlannedFigure) -> Tone:
    if pair.in_range is None:
        return ""
    return "good" if pair.in_range else "warn"


def _of_a_server(record: RunRecord) -> DecisionCell:
    """After a command for a server of whose launch nothing is known."""
    url = shlex.quote(record.url or "URL")
    failing = [check for check in record.checks if check.has_failed]
    if record.is_verification_unfinished:
        text, detail = f"moebox verify {url}", "its checks were interrupted"
    elif record.has_unfinished_jobs:
        text, detail = f"moebox task --resume {shlex.quote(record.id)}", "not all jobs are done"
    elif failing:
        text, detail = f"moebox verify {url}{_only(failing)}", "once that is mended"
    else:
        text, detail = _not_yet_asked(record, url)
    return DecisionCell(name="next", text=text, command=True, detail=detail)


def _only(failing: Sequence[CheckRow]) -> str:
    """The flag for these checks; none where they fail by what all of them add up to."""
    names = [check.name for check in failing if not check.is_sum]
    return f" --only {','.join(names)}" if names else ""


def _not_yet_asked(record: RunRecord, url: str) -> tuple[str, str]:
    """The command for what a server was not asked yet: its speed, its answers."""
    if record.checks_run and not record.loads:
        return f"moebox bench {url}", "its speed was not measured"
    unchecked = not record.checks_run and not record.simulation
    if unchecked and (record.loads or record.tasks):
        return f"moebox verify {url}", "its answers were not checked"
    return "moebox models", "what can be planned"


def next_cell(record: RunRecord, *, serving: bool = False) -> DecisionCell:
    """The one command to type now."""
    if record.imported:
        return DecisionCell(name="next", text="published figures: nothing to run", tone="quiet")
    if record.live:
        return DecisionCell(name="next", text="moebox ps", command=True, detail="the run is still going on")
    if record.interrupted_step:
        text = f"moebox {record.resume_command} --resume {shlex.quote(record.id)}"
        why = f"it was interrupted in {record.interrupted_step}"
        return DecisionCell(name="next", text=text, tone="warn", command=True, detail=why)
    if record.recipe is None:
        return _of_a_server(record)
    if record.simulation:
        model = shlex.quote(record.recipe.model)
        return DecisionCell(name="next", text=f"moebox run {model}", command=True, detail="on the real box")
    return _of_a_launch(record, shlex.quote(str(record.path / "recipe.toml")), serving=serving)


def _of_a_launch(record: RunRecord, recipe: str, *, serving: bool) -> DecisionCell:
    """After an engine was up: the rest of its checks, those that failed again, or the engine again unless it is up."""
    if record.is_verification_unfinished:
        text = f"moebox verify --run {shlex.quote(record.id)}"
        detail = "it was interrupted in its checks; with its engine up"
        return DecisionCell(name="next", text=text, command=True, detail=detail)
    failing = [check for check in record.checks if check.failed_unexpectedly]
    if failing:
        text = f"moebox verify {recipe}{_only(failing)}"
        return DecisionCell(name="next", text=text, command=True, detail="with the engine up", link="ladder")
    text, detail = f"moebox up {recipe}", "then `moebox connect claude-code`"
    if serving:
        text, detail = "moebox connect claude-code", "its engine is up"
    return DecisionCell(name="next", text=text, command=True, detail=detail)


def failure_cells(record: RunRecord, failure: RunFailure) -> tuple[DecisionCell, ...]:
    """What failed, why where that is known, and how to go on."""
    what = f"{failure.step} failed: {failure.message}" if failure.step else failure.message
    answers = [DecisionCell(name="failed", text=what, tone="bad", link="attempts")]
    if failure.cause or failure.log_line:
        text, detail = (failure.cause, failure.log_line) if failure.cause else (failure.log_line, "")
        answers.append(DecisionCell(name="why", text=text, tone="warn", detail=detail, link="problems"))
    return (*answers, _remedy(record, failure))


def _remedy(record: RunRecord, failure: RunFailure) -> DecisionCell:
    """The command that the remedy names, or to go on with the run once the remedy is done."""
    for text in (failure.remedy, failure.hint):
        command = _COMMAND.search(text)
        if command:
            return DecisionCell(name="next", text=command[1], command=True, detail=_unless(text, command[0]))
    return DecisionCell(name="next", text=_again(record, failure), command=True, detail=failure.remedy or failure.hint)


def _again(record: RunRecord, failure: RunFailure) -> str:
    """To go on with the run; the same plan would fail again, so one that failed is made as the hint says."""
    if failure.step != "plan" or not record.requested_model:
        return f"moebox run --resume {shlex.quote(record.id)}"
    option = _OPTION.match(failure.hint)
    return f"moebox plan {shlex.quote(record.requested_model)}{f' {option[1]}' if option else ''}"


def _unless(text: str, command: str) -> str:
    return "" if text.strip() == command else text
