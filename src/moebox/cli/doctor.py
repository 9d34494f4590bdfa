"""`moebox doctor`: is the machine fit, and why did the engine fail."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from moebox import codec
from moebox.cli import flags
from moebox.cli.output import exit_code, print_result, stdout_console
from moebox.core.recipe import EngineName
from moebox.errors import refuse_if
from moebox.loose import Document
from moebox.units import parse_size, plural

if TYPE_CHECKING:
    from rich.table import Table

    from moebox.core.symptom import Finding
    from moebox.doctor.box import HostCheck
    from moebox.doctor.logs import LogSearch

_MARKS = {"pass": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]", "unknown": "[dim]?[/]"}


def logs(
    file: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    engine: EngineName | None = None,
    every: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Search an engine's log for known failures; the first cause comes first, with its remedy.

    Exits 1 when a cause of failure is found, 0 when the log holds none.

    Args:
        file: A log file, "-" for standard input, or a run folder.
        engine: Look only for this engine's symptoms.
        every: Show notes and consequences too.
        json: Print JSON.
    """
    from moebox.doctor.logs import search_file

    found = search_run_log(file, engine or "") if file.is_dir() else search_file(file, engine=engine or "")
    print_result(json, search_document(found), lambda: print_search(found, every=every))
    return exit_code(not (found.cause or found.exception))


def search_run_log(folder: Path, engine: str) -> "LogSearch":
    """The log of a run, all the pieces that are kept of it."""
    from moebox.doctor.logs import LogSearch, feed_file
    from moebox.store import plain
    from moebox.store.log import log_pieces

    parts = log_pieces(folder / "engine.log")
    refuse_if(not parts, f"{folder}: has no engine.log")
    found = LogSearch(engine=engine)
    for part in parts:
        plain.refuse_unusual(part)
        feed_file(found, part)
    found.finish()
    return found


def search_document(found: "LogSearch") -> Document:
    """The search as JSON."""
    findings = found.findings.values()
    rows = [{**codec.to_document(finding), "count": found.counts[finding.symptom]} for finding in findings]
    reason = {"text": found.exception, "line": found.exception_line} if found.exception else None
    return {
        "lines": found.lines,
        "cause": codec.to_document(found.cause) if found.cause else None,
        "first_exception": reason,
        "findings": rows,
    }


def print_search(found: "LogSearch", *, every: bool) -> None:
    """The cause with its remedy, then the rest in the order of the log."""
    out, cause = stdout_console(), found.cause
    out.print(f"{plural(found.lines, 'line')} read", markup=False)
    if cause:
        _finding("cause", cause)
    elif found.exception:
        out.print(f"no known symptom; the first exception is on line {found.exception_line}:", markup=False)
        out.print(f"  {found.exception}", markup=False)
    else:
        out.print("no known failure in it", markup=False)
    for finding in found.findings.values():
        if finding is not cause and (every or finding.severity == "warning"):
            _finding(finding.severity, finding)


def _finding(title: str, finding: "Finding") -> None:
    out = stdout_console()
    out.print(f"\n{title}: {finding.cause}", markup=False)
    out.print(f"  line {finding.line}: {finding.text}", markup=False)
    out.print(f"  remedy: {finding.remedy}", markup=False)
    if finding.change:
        out.print(f"  in the recipe: {finding.change_text}", markup=False)
    out.print(f"  source: {finding.source}  [{finding.symptom}]", markup=False)


def box(
    *,
    box: str | None = None,
    need: str = "",
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check this machine before an engine is started on it, and say how to fix what is wrong.

    Exits 1 when something is bound to fail.

    Args:
        box: Check a described or captured box instead; its host is checked where the file describes one.
        need: Disk space that a checkpoint will take, like 595GB.
        json: Print JSON.
    """
    from moebox import detect
    from moebox.doctor import box as checks

    size = flags.parse_value("--need", need, parse_size) if need else 0
    here = detect.load_box(box)
    if here.host is None:
        flags.refuse_unused(f"{here.name} is described without a disk", need=need)
    found = checks.check_box(here, need=size) if box else checks.check_this_machine(here, need=size)
    counts = Counter(check.verdict for check in found)
    verdict = "fail" if counts["fail"] else "pass"
    summary = f"\n{len(found)} checks: {counts['fail']} failed, {counts['warn']} to look at"
    print_result(
        json,
        {"box": here.name, "checks": found, "verdict": verdict},
        lambda: stdout_console().print(check_table(found), summary, sep="\n"),
    )
    return exit_code(verdict != "fail")


def check_table(checks: "list[HostCheck]") -> "Table":
    """A row a check, and below it how to fix it; both wrap within their column."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, min_width=15)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(_MARKS[check.verdict], Text(check.name), Text(check.found))
        if check.fix:
            table.add_row("", "", Text(check.fix))
    return table
