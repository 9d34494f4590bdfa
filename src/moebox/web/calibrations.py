"""What rehearsals measured on this box: listed, shown step by step, removed."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moebox.core.calibration import Calibration
from moebox.errors import BadInput, UnknownName
from moebox.report.block import Block, Bullets, Table, cell, columns, words
from moebox.report.calibration import depths, error, solved, step_times
from moebox.store import calibrations as store
from moebox.units import format_count, format_gib, format_seconds
from moebox.web.gate import Site
from moebox.web.pages import NotThere, page


async def listing(request: Request, *, site: Site) -> Response:
    """Every calibration that plan and forecast use."""
    shelf = await run_in_threadpool(store.stored_calibrations)
    rows = [(calibration, depths(calibration), error(calibration)) for calibration in shelf.calibrations]
    return page(
        site,
        "calibrations.html",
        title="Calibrations",
        here="calibrations",
        rows=rows,
        unreadable=shelf.unreadable,
    )


def calibration_of(name: str) -> Calibration:
    """The calibration of that name, whole: a page deletes nothing by its beginning."""
    found = next((each for each in store.stored_calibrations().calibrations if each.id == name), None)
    if found is None:
        raise NotThere(f"no calibration called {name!r}", hint="the list names them all")
    return found


async def shown(request: Request, *, site: Site) -> Response:
    """One of them: boots, steps of the whole model, what was not seen."""
    found = await run_in_threadpool(calibration_of, request.path_params["name"])
    return page(
        site,
        "calibration.html",
        title=found.id,
        here="calibrations",
        calibration=found,
        error=error(found),
        blocks=blocks(found),
    )


def blocks(found: Calibration) -> list[Block]:
    """What it measured and what that says."""
    boots = tuple(
        (
            cell(float(boot.layers), digits=0),
            words(format_seconds(boot.startup_s)),
            words(format_gib(boot.weights_bytes) if boot.weights_bytes else ""),
            words(format_count(boot.cache_tokens) if boot.cache_tokens else ""),
        )
        for boot in found.boots
    )
    made: list[Block] = [
        Table(caption="Boots", columns=columns("Layers", "Start", "Weights", "Cache tokens", text=()), rows=boots)
    ]
    if solved(found):
        steps = tuple(
            (
                words(step.kind),
                cell(float(step.streams), digits=0),
                cell(float(step.tokens), digits=0),
                words(format_seconds(step.seconds)),
                cell(step.tok_s, digits=0),
            )
            for step in step_times(found)
        )
        heads = columns("Step of", "Streams", "Tokens", "Takes", "tok/s", text=(0,))
        made.append(Table(caption=f"The whole model, {found.layers} layers", columns=heads, rows=steps))
    remarks = (*found.notes, *(f"not seen: {line}" for line in found.unseen))
    return [*made, Bullets(title="Remarks", items=remarks)] if remarks else made


async def remove(request: Request, *, site: Site) -> Response:
    """Forget it; forecasts are fitted to published measurements again."""
    found = await run_in_threadpool(calibration_of, request.path_params["name"])
    try:
        await run_in_threadpool(store.remove_calibration, found.id)
    except UnknownName as problem:
        raise BadInput(problem.message) from None
    return JSONResponse({"go": "/calibrations"})
