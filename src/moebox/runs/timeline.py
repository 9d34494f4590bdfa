"""What ran of one recipe: when, on which version, with which results; regressions against the last kept version."""

from dataclasses import dataclass, replace
from pathlib import Path

from moebox import codec
from moebox.core.engine_event import AttemptReady
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, suggest_names
from moebox.loose import get_objects, get_text
from moebox.runs.listing import list_summaries
from moebox.runs.reader import RECIPES
from moebox.store import Run, runs_dir

LOWER = 0.10  # two runs at other times differ by less without a cause; only upgrades measure in turn
BAR = 20  # columns of the chart


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    run: str
    when: float
    version: str
    checks: str = ""
    tok_s: float | None = None
    outcome: str = ""  # of an upgrade: keep, no difference, undecided or roll back; "" for a run
    applied: bool = False
    note: str = ""
    regression: str = ""  # what is worse than on the last kept version


def recipe_history(name: str, *, runs: Path | None = None) -> list[HistoryRow]:
    """Runs and upgrades of the recipe `name`, oldest first. Raise BadInput if there are none."""
    home, rows, names = runs_dir(runs), list[HistoryRow](), set[str]()
    for summary in reversed(list_summaries(runs)):
        folder = Run(home / summary.id)
        document = folder.read_json("upgrade.json") if (folder.path / "upgrade.json").exists() else None
        if isinstance(document, dict):
            names.add(get_text(document, "name"))
            if get_text(document, "name") == name:
                speeds = [row.get("b_tok_s") for row in get_objects(document, "gains")]
                numbers = [float(speed) for speed in speeds if isinstance(speed, int | float)]
                reasons = document.get("reasons")
                row = HistoryRow(
                    run=summary.id,
                    when=summary.started,
                    version=f"{get_text(document, 'old')} → {get_text(document, 'new')}",
                    tok_s=max(numbers, default=None),
                    outcome=get_text(document, "outcome"),
                    applied=bool(document.get("applied")),
                    note=str(reasons[0]) if isinstance(reasons, list) and reasons else "",
                )
                rows.append(row)
            continue
        names |= {summary.recipe} - {""}
        if summary.recipe != name or summary.simulation:
            continue
        path = next((folder.path / name for name in RECIPES if (folder.path / name).exists()), None)
        if path is None:
            continue
        recipe = codec.read_toml(Recipe, path)
        seen = [
            event.facts.version for event in folder.read_events() if isinstance(event, AttemptReady) and event.facts
        ]
        version = f"{recipe.engine} {recipe.engine_version or next(filter(None, seen), recipe.runtime.kind)}"
        new_row = HistoryRow(
            run=summary.id,
            when=summary.started,
            version=version,
            checks=summary.verdict,
            tok_s=summary.output_tok_s,
            note=summary.failed,
        )
        rows.append(new_row)
    if not rows:
        text = f"no run of a recipe called {name!r}"
        raise BadInput(text, hint=suggest_names(name, sorted(names)) if names else None)
    return mark_regressions(rows)


def mark_regressions(rows: list[HistoryRow]) -> list[HistoryRow]:
    """Mark rows that are worse than the last kept version: the first one, or the last upgrade that was applied."""
    marked: list[HistoryRow] = []
    kept = rows[0].version
    base: HistoryRow | None = None  # the newest good run of the kept version
    for row in rows:
        found = ""
        if row.outcome:
            found = row.note if row.outcome == "roll back" else ""
            if row.applied:
                kept, base = f"{row.version.split(' ')[0]} {row.version.rpartition(' ')[2]}", None
        else:
            if row.checks == "fail" and (base is None or base.checks != "fail"):
                found = "checks fail"
            elif base and base.tok_s and row.tok_s and row.tok_s < (1 - LOWER) * base.tok_s:
                found = f"{row.tok_s / base.tok_s - 1:+.0%} tok/s, not measured in turn"
            if not found and row.version == kept and row.tok_s:
                base = row
        marked.append(replace(row, regression=found))
    return marked


def speed_bar(row: HistoryRow, rows: list[HistoryRow]) -> str:
    """The row's speed as a bar, relative to the fastest."""
    most = max((each.tok_s or 0.0 for each in rows), default=0.0)
    return "█" * max(1, round(BAR * row.tok_s / most)) if row.tok_s and most else ""
