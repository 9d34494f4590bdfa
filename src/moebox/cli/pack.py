"""`moebox pack`: a run to hand on."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox.cli.output import emit, people, talk
from moebox.store import Run


def pack(
    run: str = "latest",
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    pdf: bool = True,
    runs: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Put a run into a tidy folder or archive: README, findings, report, configs, logs, figures, patches.

    Keys, host and user names, addresses and serial numbers are taken out of every file.

    Args:
        run: The run by name, beginning of a name, or path.
        output: A folder, or a file ending in .tar.gz; RUN.tar.gz here without it.
        pdf: Make the PDF too, where that is possible.
        runs: The folder that holds the runs.
        json: Print the path and what was left out as JSON.
    """
    from moebox.report.pack import pack as packed

    found = Run.open(run, runs=runs)
    path, left_out = packed(found, output or Path(f"{found.id}.tar.gz"), pdf=pdf)
    if json:
        emit({"path": path, "left_out": left_out})
        return 0
    for line in left_out:
        talk().print(f"left out: {line}", soft_wrap=True)
    people().print(str(path), soft_wrap=True)
    return 0
