"""`moebox runs`, `report` and `pack`: list, show and delete runs; write them as one file to read, or as an archive."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from moebox import api, codec, files
from moebox.cli.display import make_grid, make_table, print_assessment
from moebox.cli.flags import All, AsJson, OutputPath, Switch
from moebox.cli.output import confirm, print_json, print_lines, print_parts, print_result, stdout_console, write_file
from moebox.errors import ExternalError, refuse_if
from moebox.escape import clip_text
from moebox.loose import Document
from moebox.redact import redact_text
from moebox.runs.listing import is_run_folder, list_summaries, recipe_history, run_brief, speed_bar
from moebox.runs.reader import read_run
from moebox.runs.record import RunRecord
from moebox.serve import state
from moebox.store import Run, runs_dir

WIDE = 100  # columns
NARROW = 76  # columns: below, a run's name leaves no room for other columns
SCREEN_ROWS = 20  # rows of the list on a terminal of 24 lines, beside the heading and the prompt
USAGE_HEADS = {"user": "user", "requests": "requests", "refused": "refused", "prompt_tokens": "prompt tokens"}
USAGE_HEADS |= {"cached_tokens": "cached", "output_tokens": "output tokens", "kwh": "kWh", "money": "cost"}
MOST_WRONG = 4  # failed checks and problems of a run that are shown below its assessment
LONGEST_ID = 44  # columns: names up to this are not broken, so that they can be copied
LISTED = ("model", "engine", "box", "verdict", "output_tok_s", "ttft_ms", "failed", "simulation", "jobs", "solved")


def runs(*, everything: All = False, json: AsJson = False) -> int:
    """List the runs, newest first.

    Args:
        everything: List all of them, not only as many as a screen shows; JSON always has all.
    """
    home = runs_dir()
    found, engines = list_summaries(), state.live_run_folders()
    live = {row.id for row in found if state.is_run_active(Run(home / row.id), engines, unfinished_step=row.left_in)}
    if json:
        briefs = []
        for row in found:
            brief, active = run_brief(Run(home / row.id)), row.id in live
            brief |= codec.pick_fields(row, LISTED)
            briefs.append(brief | {"live": active, "state": row.state_text(live=active)})
        print_json({"runs": briefs, "folder": home})
        return 0
    if not found:
        print_lines([f"no runs in {home} yet"])
        return 0
    width = stdout_console().width
    shown = found if everything else found[: SCREEN_ROWS if width >= NARROW else SCREEN_ROWS // 2]
    columns = ("model", "box") if width >= WIDE else ()
    rows = []
    for row in shown:  # two lines for each if a table is too narrow
        status = row.state_text(live=row.id in live) + (", simulated" if row.simulation else "")
        speed = f"{row.output_tok_s:,.0f}" if row.output_tok_s else "–"
        rows.append((row.id, status, *(getattr(row, name) or "–" for name in columns), row.checks_text, speed))
        if width < NARROW:
            print_parts(f"{row.id}\n  {status}, checks {row.checks_text}, {speed} tok/s")
    if width >= NARROW:
        texts = ("run", "state", *columns)
        wrapped = texts if max(len(row.id) for row in shown) > LONGEST_ID else texts[1:]
        print_parts(make_table((*texts, "checks", "tok/s"), rows, left_columns=("run", "checks"), wrapped=wrapped))
    if len(shown) < len(found):
        print_lines([f"{len(found) - len(shown)} older: --all"])
    return 0


def history(name: str, *, json: AsJson = False) -> int:
    """Show what ran of a recipe, oldest first: versions, results, and regressions against the last kept version.

    Args:
        name: The name of the recipe.
    """
    rows = recipe_history(name)

    def show() -> None:
        lines = []
        for row in rows:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.when))
            result = f"{row.outcome}{', applied' * row.applied}" or row.note
            result = f"! {row.regression}" if row.regression else result
            speed = f"{row.tok_s:,.0f}" if row.tok_s else "–"
            lines.append((when, row.version, row.checks or "–", speed, speed_bar(row, rows), result))
        heads = ("when", "version", "checks", "tok/s", "", "result")
        print_parts(make_table(heads, lines, left_columns=("checks", ""), wrapped=("when", "version", "result")))

    return print_result(json, {"name": name, "history": rows}, show)


def show(run: str = "latest", *, everything: All = False, json: AsJson = False) -> int:
    """Show one run: what it is, how it went, what is missing.

    Args:
        run: The run by name, beginning of a name, or path.
        everything: Show passed checks, advice and notes too, and every reason in full.
    """
    from moebox.assess.naming import label_runs

    found = Run.open(run)
    record = label_runs([read_run(found)])[0]
    brief = run_brief(found)
    document = {
        **{name: brief[name] for name in ("id", "path", "started", "last", "last_kind", "bytes")},
        "live": state.is_run_active(found, state.live_run_folders(), unfinished_step=record.interrupted_step),
        "simulation": record.simulation,
        "recipe": record.recipe,
        "box": record.box.name if record.box else None,
        "kv_tokens": record.kv_tokens,
        "attempts": [{"number": each.number, "outcome": each.outcome, "why": each.reason} for each in record.attempts],
        "rungs": [codec.pick_fields(check, ("name", "verdict", "reason")) for check in record.all_checks],
        "measurements": [load.raw for load in record.loads],
        "problems": record.problems,
        "missing": record.gaps,
        "users": read_usage_file(found.path),
    }
    return print_result(json, document, lambda: _print_run(found, record, everything=everything))


def _print_run(run: Run, record: RunRecord, *, everything: bool) -> None:
    """Print the assessment, then what went wrong, one line each; attempts, checks, advice and notes with --all."""
    from moebox.assess.run import assess_run
    from moebox.report.expect import with_forecast
    from moebox.report.sections.summary import scaling_sentences

    print_lines([[(run.id, "bold"), f"  {run.path}"]])
    serving = bool(state.engine_writing_to(state.live_run_folders(), run.path))
    assessment = assess_run(with_forecast(record), serving=serving)
    print_assessment(assessment)
    print_parts("", *scaling_sentences(record))
    if users := read_usage_file(run.path):
        heads = [name for name in USAGE_HEADS if any(name in row for row in users)]
        cells = [tuple(str(row.get(name, "")) for name in heads) for row in users]
        print_parts(make_table([USAGE_HEADS[name] for name in heads], cells))
    rows = [(attempt.title, f"{attempt.outcome} {attempt.reason}".strip()) for attempt in record.attempts]
    rows += [(f"{check.verdict:<5} {check.name}", check.reason) for check in record.all_checks]
    rows += [("problem", f"{problem.title}. {problem.remedy}") for problem in record.problems]
    rows += [("advice", f"{advice.title}. {advice.text}") for advice in assessment.recommendations]
    rows += [("note", gap) for gap in record.gaps]
    shown = rows
    if not everything:
        shown = [row for row in rows if row[0].startswith(("fail", "problem"))][:MOST_WRONG]
        room = stdout_console().width - max((len(name) for name, _ in shown), default=0) - 2
        shown = [(name, clip_text(text, room)) for name, text in shown]
    if shown:
        print_parts(make_grid(((name, (text, "dim" * (name == "note"))) for name, text in shown), gap=2, whole=1))
    if len(shown) < len(rows):
        print_lines([f"{len(rows) - len(shown)} more: --all"])


def read_usage_file(folder: Path) -> list[Document]:
    """Return what each user of `moebox switch` asked for, with energy and money as far as they are known."""
    path = folder / "usage.json"
    return codec.decode(list[Document], codec.load_json(path), where=str(path)) if path.is_file() else []


def rm(*run: str, yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative=())] = False) -> int:
    """Delete runs.

    Args:
        run: Runs by full name or path.
        yes: Do not prompt.
    """
    refuse_if(not run, "name the runs to delete", hint="`moebox runs` lists them")
    found = [*map(_find_deletable, run)]
    if not yes and not confirm(f"delete {', '.join(folder.id for folder in found)}?"):
        print_lines(["nothing deleted"])
        return 1
    for folder in found:
        if not files.remove_tree(folder.path):
            hint = "does it hold files of another user?"
            raise ExternalError(f"{folder.path}: could not be removed completely", hint=hint)
        print_lines([f"deleted {folder.id}"])
    return 0


def _find_deletable(name: str) -> Run:
    """Return the run of that full name; an error if it is in use or not a run."""
    folder = Run.open(name)
    full = f"deleting needs the full name: {folder.id}"
    refuse_if(folder.id != Path(name).name, f"{name!r} is not a full name", hint=full)
    refuse_if(not is_run_folder(folder.path), f"{folder.path}: not a run folder, so it is not deleted")
    if folder.is_locked:
        raise ExternalError(f"{folder.id} is in use", hint="stop that command first")
    if engine := state.engine_writing_to(state.live_run_folders(), folder.path):
        raise ExternalError(f"{folder.id}: its engine is running", hint=f"stop it first: `moebox down {engine}`")
    return folder


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
