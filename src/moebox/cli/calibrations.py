"""`moebox calibrations`: list, show, remove, export and import what rehearsals measured."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moebox.cli.display import make_table
from moebox.cli.flags import AsJson
from moebox.cli.output import print_lines, print_result, stdout_console
from moebox.core.calibration import Calibration
from moebox.errors import refuse_if
from moebox.loose import Document
from moebox.report.calibration import depths_text, error_text, full_depth, is_solved, step_times
from moebox.store import calibrations as store
from moebox.units import format_count, format_gib, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


def calibrations(*, json: AsJson = False) -> int:
    """List the calibrations that plan and forecast use."""
    stored = store.stored_calibrations()

    def show() -> None:
        from rich.table import Table

        print_lines((f"warning: {line}" for line in stored.unreadable), stderr=True)
        if not stored.calibrations:
            print_lines(["none yet: `moebox rehearse RECIPE --measure` makes one"])
            return
        table = Table("id", "box", "layers from", "error", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for found in stored.calibrations:
            table.add_row(found.id, found.place.text, f"{found.layers} from {depths_text(found)}", error_text(found))
        stdout_console().print(table)

    document = {"calibrations": [*map(calibration_summary, stored.calibrations)], "unreadable": stored.unreadable}
    return print_result(json, document, show)


def show(name: str, *, json: AsJson = False) -> int:
    """Show what a calibration measured, and what that means for the whole model.

    Args:
        name: Its id, or the beginning of it.
    """
    found = store.find_calibration(name)
    return print_result(json, found, lambda: _print_calibration(found))


def _print_calibration(found: Calibration) -> None:
    lines = [found.id, f"  {found.model}, {found.quant}, {found.engine} {found.version}"]
    lines.append(f"  {found.place.text}; {found.layout.text}; measured {found.date}")
    for boot in found.boots:
        parts = [f"{boot.layers} layers", f"started in {format_seconds(boot.startup_s)}"]
        parts += [f"weights {format_gib(boot.weights_bytes)}"] if boot.weights_bytes else []
        parts += [f"cache {format_count(boot.cache_tokens)} tokens"] if boot.cache_tokens else []
        lines.append(f"  boot: {', '.join(parts)}")
    print_lines(lines)
    if is_solved(found):
        stdout_console().print(step_table(found))
        if tokens := full_depth(found).cache_tokens:
            print_lines([f"  cache of {found.layers} layers: {format_count(tokens)} tokens"])
    print_lines(f"  {line}" for line in (*found.notes, *(f"not measured: {line}" for line in found.unseen)))


def remove(name: str, *, json: AsJson = False) -> int:
    """Remove a calibration; forecasts use constants fitted to published measurements again.

    Args:
        name: Its id, or the beginning of it.
    """
    found = store.remove_calibration(name)
    return print_result(json, {"removed": found.id}, lambda: print_lines([f"removed {found.id}"], stderr=True))


def export(name: str, path: Path, *, json: AsJson = False) -> int:
    """Write a calibration to a file for other users of the same box. It names no machine, path or user.

    Args:
        name: Its id, or the beginning of it.
        path: The file to write.
    """
    found = store.find_calibration(name)
    store.write_calibration(found, path)
    document = {"exported": found.id, "path": str(path)}
    return print_result(json, document, lambda: print_lines([f"wrote {path}"], stderr=True))


def import_(path: Path, *, json: AsJson = False) -> int:
    """Read a calibration from a file; it is used if box, engine, model shape and layout are the same.

    Args:
        path: A file that `moebox calibrations export` wrote.
    """
    found = store.read_calibration(path)
    unsolved = f"{path}: no two depths with a step in common"
    refuse_if(not is_solved(found), unsolved, hint="export it after a finished rehearsal")
    store.store_calibration(replace(found, imported=path.name))
    line = f"imported {found.id}: {found.place.text}, {found.layout.text}"
    return print_result(json, {"imported": found.id}, lambda: print_lines([line], stderr=True))


def calibration_summary(calibration: Calibration) -> Document:
    """Return a calibration under the keys that scripts rely on."""
    reading = full_depth(calibration)
    names = ("id", "date", "engine", "version", "model", "quant", "layers", "depths", "imported")
    return {name: getattr(calibration, name) for name in names} | {
        "box": calibration.place.text,
        "layout": calibration.layout.text,
        "error": round(reading.decode_error, 4) if reading.decode_times else None,
    }


def step_table(calibration: Calibration) -> "Table":
    """Return the steps of the whole model at the measured loads."""
    rows = []
    for step in step_times(calibration):
        rate = f"{step.tok_s:,.1f}" if step.kind == "decode" else f"{step.tok_s:,.0f}"
        rows.append((step.kind, str(step.streams), format_count(step.tokens), format_seconds(step.seconds), rate))
    table = make_table(("", "streams", "context", "step", "tok/s"), rows, left_columns=("",))
    table.title, table.title_justify, table.padding = f"{calibration.layers} layers", "left", (0, 2, 0, 2)
    return table
