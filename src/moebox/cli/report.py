"""`moebox report`: one file a person reads."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.output import print_lines, print_result
from moebox.store import Run


def report(
    *run: str,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    pdf: Annotated[bool, Parameter(negative=())] = False,
    md: Annotated[bool, Parameter(negative=())] = False,
    title: str = "",
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the report of a run, or of several side by side, as one file that needs nothing else.

    Args:
        run: Runs by name, beginning of a name, or path; `latest` without any.
        output: The file: .html, .md or .pdf by its suffix; report.html in the (first) run's folder without it.
        pdf: A PDF beside it, by Chromium or WeasyPrint.
        md: Markdown beside it.
        title: The heading, instead of one made from models and boxes.
        runs: The folder that holds the runs.
        json: Print the paths as JSON.
    """
    from moebox.report.files import write_report

    found = [Run.open(name, runs=runs) for name in run or ("latest",)]
    target = output or found[0].path / ("report.html" if len(found) == 1 else f"report-of-{len(found)}.html")
    made = write_report(found, target, pdf=pdf, markdown=md, title=title)
    print_result(json, {"files": made}, lambda: print_lines(made))
    return 0
