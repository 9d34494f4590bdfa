"""What a tuning or an upgrade has found so far, for the page of its run."""

import time
from typing import TypeVar

from moebox import codec
from moebox.core.event import UpgradeStep
from moebox.core.upgrade_result import UPGRADE_FILE, UpgradeResult
from moebox.errors import BadInput
from moebox.flows.trials import TABLE_FILE
from moebox.flows.tune_state import FRONT, SCREENED, START, TUNE_FILE, WHOLE, TuneState, pareto_charts
from moebox.flows.walk import ClimbTrial
from moebox.loose import get_objects
from moebox.report.block import Block, Bullets, Charts, LegendKey, Prose, ReportChart, Section
from moebox.store import Run
from moebox.units import format_seconds

T = TypeVar("T")
TONES = {"keep": "good", "no difference": "good", "roll back": "bad"}
LEGEND = {"the start": START, "whole model": WHOLE, "screened": SCREENED, "best trade-offs": FRONT}


def read_state(run: Run, kind: type[T], name: str) -> T | None:
    """What a tuning or an upgrade wrote, or None if there is nothing that can be read."""
    try:
        found = run.read_json(name)
        return codec.decode(kind, found, where=name) if found else None
    except BadInput:
        return None


def trial_sections(run: Run) -> list[Section]:
    """The result so far, with its reasons and the picture of a tuning."""
    sections = []
    if tuning := read_state(run, TuneState, TUNE_FILE):
        rows = get_objects(run.read_json(TABLE_FILE), "steps")
        trials = [codec.decode(ClimbTrial, row, where=TABLE_FILE) for row in rows]
        keys = tuple(LegendKey(name=name, colour=colour, dashed=colour == SCREENED) for name, colour in LEGEND.items())
        drawn = pareto_charts(trials, tuning.screened) if trials and trials[0].output_tok_s else []
        charts = Charts(charts=tuple(ReportChart(title=title, svg=svg, legend=keys) for title, svg in drawn))
        blocks: tuple[Block, ...] = (Bullets(items=tuple(map(str.strip, tuning.findings))), *[charts] * bool(drawn))
        sections.append(Section(id="tuning", title=f"Tuning for {tuning.options.goal}", blocks=blocks))
    if result := read_state(run, UpgradeResult, UPGRADE_FILE):
        text = f"{result.outcome}{', applied' * result.applied}"
        outcome = Prose(paragraphs=(text,), tone=TONES.get(result.outcome, "warn"))  # type: ignore[arg-type]
        blocks = (outcome, Bullets(items=tuple(result.findings)))
        sections.append(Section(id="upgrade", title="Upgrade", lead=result.headline, blocks=blocks))
    return sections


def upgrade_steps(run: Run) -> list[tuple[float, UpgradeStep]]:
    """When each step of an upgrade began, and what it does."""
    entries = run.read_journal().entries
    return [(entry.time, entry.event) for entry in entries if isinstance(entry.event, UpgradeStep)]


def trial_time_left(run: Run) -> str:
    """How long a tuning takes at most, or an upgrade by the last one of its recipe; "" if the run is neither."""
    if tuning := read_state(run, TuneState, TUNE_FILE):
        since = time.time() - (run.path / TUNE_FILE).stat().st_mtime
        return f"at most {format_seconds(max(0.0, tuning.options.budget_s - tuning.spent_s - since))} left"
    if not (steps := upgrade_steps(run)):
        return ""
    past_s, kind = time.time() - steps[0][0], run.id.partition("-upgrade-")[2][:-5]  # without the random letters
    earlier = sorted(run.path.parent.glob(f"*-upgrade-{kind}-????"))
    results = [read_state(Run(path), UpgradeResult, UPGRADE_FILE) for path in earlier]
    lengths = [result.seconds for result in results if result and result.gains]
    left = f"about {format_seconds(max(0.0, lengths[-1] - past_s))} left, by the last one" if lengths else ""
    return left or f"{format_seconds(past_s)} so far; how long it takes is known after the first one"
