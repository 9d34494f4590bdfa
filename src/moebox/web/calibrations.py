"""Calibrations of this machine: list, show and remove them."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.core.calibration import Calibration
from moebox.report.block import Block, bullet_list
from moebox.report.calibration import depths_text, error_text, is_solved, step_times
from moebox.report.table import figure_cell, table_blocks
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
    boots = []
    for boot in found.boots:
        weights = format_gib(boot.weights_bytes) if boot.weights_bytes else ""
        cache = format_count(boot.cache_tokens) if boot.cache_tokens else ""
        boots.append((boot.layers, format_seconds(boot.startup_s), weights, cache))
    heads: tuple[str, ...] = ("Layers", "Start", "Weights", "Cache tokens")
    blocks: list[Block] = [*table_blocks(heads, boots, text=(), caption="Boots")]
    if is_solved(found):
        steps = [
            (step.kind, step.streams, step.tokens, format_seconds(step.seconds), figure_cell(step.tok_s, digits=0))
            for step in step_times(found)
        ]
        heads = ("Step of", "Streams", "Tokens", "Takes", "tok/s")
        blocks += table_blocks(heads, steps, caption=f"The whole model, {found.layers} layers")
    blocks += bullet_list("Remarks", [*found.notes, *(f"not seen: {line}" for line in found.unseen)])
    context = {"calibration": found, "error": error_text(found), "blocks": blocks}
    return render_page("calibration.html", title=found.id, here="calibrations", **context)


def remove_calibration(request: Request, *, site: WebSite) -> Response:
    """Remove a calibration; forecasts then rest on published measurements again."""
    store.remove_calibration(find_calibration(request.path_params["name"]).id)
    return JSONResponse({"go": "/calibrations"})
