"""`moebox calibrations`: what rehearsals measured on this box, listed, shown, removed, exported and imported."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from moebox.cli.output import print_result, stderr_console, stdout_console
from moebox.cli.tables import make_table
from moebox.core.calibration import Boot, Calibration
from moebox.errors import refuse_if
from moebox.loose import Document
from moebox.report.calibration import StepTime, depths_text, error_text, full_depth, is_solved, step_times
from moebox.store import calibrations as store
from moebox.units import format_count, format_gib, format_seconds

Json = Annotated[bool, Parameter(negative=())]


def calibrations(*, json: Json = False) -> int:
    """List the calibrations that plan and forecast use.

    Args:
        json: Print JSON.
    """
    shelf = store.stored_calibrations()
    listed = {"calibrations": [*map(calibration_summary, shelf.calibrations)], "unreadable": shelf.unreadable}
    print_result(json, listed, lambda: _list(shelf))
    return 0


def _list(shelf: store.StoredCalibrations) -> None:
    for line in shelf.unreadable:
        stderr_console().print(f"warning: {line}", markup=False)
    if not shelf.calibrations:
        stdout_console().print("none yet: `moebox rehearse RECIPE --measure` makes one", markup=False)
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("id", "box", "layers from", "error"):
        table.add_column(title, overflow="fold")
    for found in shelf.calibrations:
        table.add_row(found.id, found.place.text, f"{found.layers} from {depths_text(found)}", error_text(found))
    stdout_console().print(table)


def show(name: str, *, json: Json = False) -> int:
    """Show what a calibration measured, and what that means for the whole model.

    Args:
        name: Its id, or the beginning of it.
        json: Print JSON.
    """
    found = store.find_calibration(name)
    print_result(json, found, lambda: _show(found))
    return 0


def _show(found: Calibration) -> None:
    out = stdout_console()
    out.print(f"{found.id}\n  {found.model}, {found.quant}, {found.engine} {found.version}", markup=False)
    out.print(f"  {found.place.text}; {found.layout.text}; measured {found.date}", markup=False)
    for boot in found.boots:
        out.print(f"  boot: {_booted(boot)}", markup=False)
    if is_solved(found):
        out.print(step_table(found))
        tokens = full_depth(found).cache_tokens
        if tokens:
            out.print(f"  cache of {found.layers} layers: {format_count(tokens)} tokens", markup=False)
    for line in (*found.notes, *(f"not seen: {line}" for line in found.unseen)):
        out.print(f"  {line}", markup=False, soft_wrap=True)


def _booted(boot: Boot) -> str:
    told = [f"{boot.layers} layers", f"started in {format_seconds(boot.startup_s)}"]
    told += [f"weights {format_gib(boot.weights_bytes)}"] if boot.weights_bytes else []
    told += [f"cache {format_count(boot.cache_tokens)} tokens"] if boot.cache_tokens else []
    return ", ".join(told)


def remove(name: str, *, json: Json = False) -> int:
    """Remove a calibration; forecasts go back to constants fitted to published measurements.

    Args:
        name: Its id, or the beginning of it.
        json: Print JSON.
    """
    found = store.remove_calibration(name)
    print_result(json, {"removed": found.id}, lambda: stderr_console().print(f"removed {found.id}", markup=False))
    return 0


def export(name: str, path: Path, *, json: Json = False) -> int:
    """Write a calibration to a file that others with the same box can import. It names no machine, path or person.

    Args:
        name: Its id, or the beginning of it.
        path: The file to write.
        json: Print JSON.
    """
    found = store.find_calibration(name)
    store.write_calibration(found, path)
    print_result(
        json, {"exported": found.id, "path": str(path)}, lambda: stderr_console().print(f"wrote {path}", markup=False)
    )
    return 0


def import_(path: Path, *, json: Json = False) -> int:
    """Read one from a file; it is used where box, engine, model shape and layout are the same.

    Args:
        path: A file that `moebox calibrations export` wrote.
        json: Print JSON.
    """
    found = store.read_calibration(path)
    alone = f"{path}: no two depths with a step in common"
    refuse_if(not is_solved(found), alone, hint="export it after a finished rehearsal")
    store.store_calibration(replace(found, imported=path.name))
    print_result(
        json,
        {"imported": found.id},
        lambda: stderr_console().print(f"imported {found.id}: {found.place.text}, {found.layout.text}", markup=False),
    )
    return 0


def calibration_summary(calibration: Calibration) -> Document:
    """One in a list, for scripts."""
    reading = full_depth(calibration)
    return {
        "id": calibration.id,
        "date": calibration.date,
        "box": calibration.place.text,
        "engine": calibration.engine,
        "version": calibration.version,
        "model": calibration.model,
        "quant": calibration.quant,
        "layout": calibration.layout.text,
        "layers": calibration.layers,
        "depths": calibration.depths,
        "error": round(reading.decode_error, 4) if reading.decode_times else None,
        "imported": calibration.imported,
    }


def step_table(calibration: Calibration) -> Table:
    """Steps of the whole model at what was measured."""
    table = make_table(
        ("", "streams", "context", "step", "tok/s"), map(_step, step_times(calibration)), left_columns=("",)
    )
    table.title, table.title_justify, table.padding = f"{calibration.layers} layers", "left", (0, 2, 0, 2)
    return table


def _step(step: StepTime) -> tuple[str, ...]:
    rate = f"{step.tok_s:,.1f}" if step.kind == "decode" else f"{step.tok_s:,.0f}"
    return step.kind, str(step.streams), format_count(step.tokens), format_seconds(step.seconds), rate
