"""`moebox report` and `moebox pack`: runs as one file to read, or as an archive to publish."""

from pathlib import Path

from moebox import api, codec
from moebox.cli.flags import AsJson, OutputPath, Switch
from moebox.cli.output import print_lines, print_result, write_file
from moebox.errors import refuse_if
from moebox.report.tidy import redact_text
from moebox.runs.reader import read_run
from moebox.store import Run


def report(
    *run: str, output: OutputPath = None, pdf: Switch = False, md: Switch = False, title: str = "", json: AsJson = False
) -> int:
    """Write the report of a run, or of several side by side, as one self-contained file.

    Args:
        run: Runs by name, beginning of a name, or path. Default: `latest`.
        output: The file: .html, .md or .pdf by its suffix. Default: report.html in the (first) run's folder.
        pdf: A PDF beside it, by Chromium or WeasyPrint.
        md: Markdown beside it.
        title: The heading. Default: made from models and boxes.
    """
    made = api.report(run or ("latest",), output, pdf=pdf, markdown=md, title=title)
    return print_result(json, {"files": made}, lambda: print_lines(made))


def pack(*run: str, output: OutputPath = None, pdf: bool = True, row: Switch = False, json: AsJson = False) -> int:
    """Put runs into a folder or archive: README, findings, report, launch script, GPU facts, logs, figures, patches.

    Keys, host and user names, addresses and serial numbers are removed from every file.

    Args:
        run: Runs by name, beginning of a name, or path. Default: the latest.
        output: A folder, or a file ending in .tar.gz. Default: RUN.tar.gz in this folder.
        pdf: Make the PDF too, if that is possible.
        row: Write one run's row of the public matrix instead (box, versions, recipe digest, checks, speed).
    """
    from moebox.report.pack import pack_runs, row_of_run

    found = list(map(Run.open, run or ("latest",)))
    if row:
        refuse_if(len(found) > 1, "--row takes one run")
        target = output or Path(f"{found[0].id}.row.toml")
        write_file(target, redact_text(codec.to_toml(row_of_run(read_run(found[0])))))
        return print_result(json, {"path": target}, lambda: print_lines([target]))
    path, left_out = pack_runs(found, output or Path(f"{found[0].id}.tar.gz"), pdf=pdf)
    if not json:
        print_lines((f"left out: {line}" for line in left_out), stderr=True)
    return print_result(json, {"path": path, "left_out": left_out}, lambda: print_lines([path]))
