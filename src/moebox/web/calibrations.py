"""Calibrations of this machine: list, show and remove them."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.core.calibration import Calibration
from moebox.report.block import Block, ReportTable, bullet_list, figure_cell, table_columns, text_cell
from moebox.report.calibration import depths_text, error_text, is_solved, step_times
from moebox.store import calibrations as store
from moebox.units import format_count, format_gib, format_seconds
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, render_page


def list_calibrations(request: Request, *, site: WebSite) -> Response:
    """Every calibration that plan and forecast use."""
    shelf = store.stored_calibrations()
    rows = [(calibration, depths_text(calibration), error_text(calibration)) for calibration in shelf.calibrations]
    return render_page(
        "calibrations.html", title="Calibrations", here="calibrations", rows=rows, unreadable=shelf.unreadable
    )


def find_calibration(name: str) -> Calibration:
    """Find a calibration by its full name; the beginning of a name is not enough to delete it."""
    known = {each.id: each for each in store.stored_calibrations().calibrations}
    if name not in known:
        raise NotFound(f"no calibration called {name!r}", hint="the list names them all")
    return known[name]


def show_calibration(request: Request, *, site: WebSite) -> Response:
    """Show one calibration: boots, the steps of the whole model that follow from them, and what was not seen."""
    found = find_calibration(request.path_params["name"])
    boots = tuple(
        (
            figure_cell(float(boot.layers), digits=0),
            text_cell(format_seconds(boot.startup_s)),
            text_cell(format_gib(boot.weights_bytes) if boot.weights_bytes else ""),
            text_cell(format_count(boot.cache_tokens) if boot.cache_tokens else ""),
        )
        for boot in found.boots
    )
    heads = table_columns("Layers", "Start", "Weights", "Cache tokens", text=())
    blocks: list[Block] = [ReportTable(caption="Boots", columns=heads, rows=boots)]
    if is_solved(found):
        steps = tuple(
            (
                text_cell(step.kind),
                figure_cell(float(step.streams), digits=0),
                figure_cell(float(step.tokens), digits=0),
                text_cell(format_seconds(step.seconds)),
                figure_cell(step.tok_s, digits=0),
            )
            for step in step_times(found)
        )
        heads = table_columns("Step of", "Streams", "Tokens", "Takes", "tok/s", text=(0,))
        blocks.append(ReportTable(caption=f"The whole model, {found.layers} layers", columns=heads, rows=steps))
    blocks += bullet_list("Remarks", [*found.notes, *(f"not seen: {line}" for line in found.unseen)])
    context = {"calibration": found, "error": error_text(found), "blocks": blocks}
    return render_page("calibration.html", title=found.id, here="calibrations", **context)


def remove_calibration(request: Request, *, site: WebSite) -> Response:
    """Remove a calibration; forecasts then rest on published measurements again."""
    store.remove_calibration(find_calibration(request.path_params["name"]).id)
    return JSONResponse({"go": "/calibrations"})
