"""`moebox pack`: a run to hand on."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.output import print_json, stderr_console, stdout_console
from moebox.store import Run


def pack(
    *run: str,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    pdf: bool = True,
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Put runs into a folder or archive: README, findings, report, launch script, GPU facts, logs, figures, patches.

    Keys, host and user names, addresses and serial numbers are taken out of every file.

    Args:
        run: Runs by name, beginning of a name, or path; the latest without any.
        output: A folder, or a file ending in .tar.gz; RUN.tar.gz here without it.
        pdf: Make the PDF too, where that is possible.
        runs: The folder that holds the runs.
        json: Print the path and what was left out as JSON.
    """
    from moebox.report.pack import pack_runs as packed

    found = [Run.open(name, runs=runs) for name in run or ("latest",)]
    path, left_out = packed(found, output or Path(f"{found[0].id}.tar.gz"), pdf=pdf)
    if json:
        print_json({"path": path, "left_out": left_out})
        return 0
    for line in left_out:
        stderr_console().print(f"left out: {line}", soft_wrap=True)
    stdout_console().print(str(path), soft_wrap=True)
    return 0
