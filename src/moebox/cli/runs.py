"""`moebox runs`: what there is, one of them, and away with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox import codec, files
from moebox.cli.output import confirm, print_json, stdout_console
from moebox.errors import ExternalError, refuse_if
from moebox.loose import Document
from moebox.runs.listing import RunBrief, RunSummary, is_run_folder, list_summaries, run_brief
from moebox.serve import state
from moebox.store import Run, runs_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from moebox.report.rules import Advice
    from moebox.runs.record import RunRecord

WIDE = 100  # columns
NARROW = 76  # columns: below, a name that can be copied leaves no room for the others beside it
LONGEST_ID = 44  # columns: names up to this are not broken, so that they can be copied


def runs(*, runs: Path | None = None, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the runs, newest first.

    Args:
        runs: The folder that holds them.
        json: Print JSON.
    """
    home = runs_dir(runs)
    found, engines = list_summaries(runs), state.live_run_folders()
    live = {row.id for row in found if state.is_run_active(Run(home / row.id), engines, unfinished_step=row.left_in)}
    if json:
        print_json({"runs": [_listed(row, run_brief(Run(home / row.id)), live) for row in found], "folder": home})
    elif found:
        _show_list(found, live, stdout_console().width)
    else:
        stdout_console().print(f"no runs in {home} yet", soft_wrap=True)
    return 0


def _show_list(found: "Sequence[RunSummary]", live: set[str], width: int) -> None:
    """A table, or two lines a run where there is no room for one."""
    if width >= NARROW:
        stdout_console().print(runs_table(found, live, wide=width >= WIDE))
        return
    for row in found:
        stdout_console().print(
            f"{row.id}\n  {_state(row, live)}, checks {row.checks_text}, {_speed(row)} tok/s", markup=False
        )


def _listed(row: "RunSummary", told: "RunBrief", live: set[str]) -> Document:
    """A row of the list under stable keys: what it says to people, and what lies in the folder."""
    shown = ("model", "engine", "box", "verdict", "output_tok_s", "ttft_ms", "failed", "simulation", "jobs", "solved")
    return {
        **codec.to_plain(told),
        **_values(row, *shown),
        "live": row.id in live,
        "state": row.state_text(live=row.id in live),
    }


def runs_table(found: "Sequence[RunSummary]", live: set[str], *, wide: bool) -> "Table":
    """A row a run; model and box only where there is room for them."""
    from rich.table import Table

    places = ("model", "box") if wide else ()
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold", width=min(max(len(row.id) for row in found), LONGEST_ID))
    for name in ("state", *places):
        table.add_column(name, overflow="fold")
    table.add_column("checks", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    for row in found:
        place = (getattr(row, name) or "–" for name in places)
        table.add_row(row.id, _state(row, live), *place, row.checks_text, _speed(row))
    return table


def _state(row: "RunSummary", live: set[str]) -> str:
    return row.state_text(live=row.id in live) + (", simulated" if row.simulation else "")


def _speed(row: "RunSummary") -> str:
    return f"{row.output_tok_s:,.0f}" if row.output_tok_s else "–"


def show(
    run: str = "latest",
    *,
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Show one run: what it is, how it went, what is missing.

    Args:
        run: The run by name, beginning of a name, or path.
        runs: The folder that holds the runs.
        json: Print JSON.
    """
    from moebox.report.naming import label_runs
    from moebox.runs.reader import read_run

    found = Run.open(run, runs=runs)
    record = label_runs([read_run(found)])[0]
    if json:
        print_json(run_document(found, record))
        return 0
    from moebox.cli import decision_view
    from moebox.report.decision import decide
    from moebox.report.expect import with_forecast
    from moebox.report.rules import make_advice
    from moebox.report.sections.summary import scaling_sentences

    stdout_console().print(f"[bold]{found.id}[/bold]  {found.path}", soft_wrap=True)
    serving = bool(state.engine_writing_to(state.live_run_folders(), found.path))
    decision_view.print_decision(decide(with_forecast(record), serving=serving))
    stdout_console().print()
    for line in scaling_sentences(record):
        stdout_console().print(line, markup=False)
    stdout_console().print(_details(record, make_advice([record])))
    return 0


def _details(record: "RunRecord", advice: "Sequence[Advice]") -> "Table":
    """What happened, a row each; texts wrap in their own column."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _happened(record, advice):
        table.add_row(Text(name), Text(text, style="dim" if name == "note" else ""))
    return table


def _happened(record: "RunRecord", advice: "Sequence[Advice]") -> "Iterator[tuple[str, str]]":
    """Starts, checks, problems, what to do about them, and what is missing."""
    yield from ((attempt.title, f"{attempt.outcome} {attempt.reason}".strip()) for attempt in record.attempts)
    yield from ((f"{check.verdict:<5} {check.name}", check.reason) for check in record.all_checks)
    yield from (("problem", f"{problem.title}. {problem.remedy}") for problem in record.problems)
    yield from (("advice", f"{found.title}. {found.text}") for found in advice)
    yield from (("note", gap) for gap in record.gaps)


def run_document(run: Run, record: "RunRecord") -> Document:
    """One run under stable keys."""
    return {
        **_values(run_brief(run), "id", "path", "started", "last", "last_kind", "bytes"),
        "live": state.is_run_active(run, state.live_run_folders(), unfinished_step=record.interrupted_step),
        "simulation": record.simulation,
        "recipe": record.recipe,
        "box": record.box.name if record.box else None,
        "kv_tokens": record.kv_tokens,
        "attempts": [
            {"number": attempt.number, "outcome": attempt.outcome, "why": attempt.reason} for attempt in record.attempts
        ],
        "rungs": [
            {"name": check.name, "verdict": check.verdict, "reason": check.reason} for check in record.all_checks
        ],
        "measurements": [level.raw for level in record.loads],
        "problems": record.problems,
        "missing": record.gaps,
    }


def _values(of: object, *names: str) -> Document:
    return {name: getattr(of, name) for name in names}


def rm(
    *run: str,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative=())] = False,
    runs: Path | None = None,
) -> int:
    """Delete runs for good.

    Args:
        run: Runs by full name or path.
        yes: Do not prompt.
        runs: The folder that holds the runs.
    """
    refuse_if(not run, "name the runs to delete", hint="`moebox runs` lists them")
    found = [_deletable(name, runs) for name in run]
    if not yes and not confirm(f"delete {', '.join(folder.id for folder in found)}?"):
        stdout_console().print("nothing deleted")
        return 1
    for folder in found:
        if not files.remove_tree(folder.path):
            raise ExternalError(f"{folder.path}: could not be removed completely", hint="is another user's file in it?")
        stdout_console().print(f"deleted {folder.id}", soft_wrap=True)
    return 0


def _deletable(name: str, runs: Path | None) -> Run:
    """The run of that whole name, if it may go."""
    folder = Run.open(name, runs=runs)
    hint = f"deleting asks for the whole of it: {folder.id}"
    refuse_if(folder.id != Path(name).name, f"{name!r} is not a full name", hint=hint)
    refuse_if(not is_run_folder(folder.path), f"{folder.path}: is not a run's folder, so it is left alone")
    if folder.is_locked:
        raise ExternalError(f"{folder.id} is being worked on", hint="stop that first")
    if engine := state.engine_writing_to(state.live_run_folders(), folder.path):
        raise ExternalError(f"{folder.id}: its engine is running", hint=f"stop that first: `moebox down {engine}`")
    return folder
