"""Running engines: list them, stop them, and watch one: its own figures as they change, and alerts.

No request of a watch reaches the model.
"""

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from moebox.errors import refuse_if
from moebox.flows.watch import SHOWN, EndpointWatcher
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines
from moebox.serve import state
from moebox.serve import stop as stopping
from moebox.units import format_seconds
from moebox.web.chat import find_endpoint
from moebox.web.gate import WebSite
from moebox.web.pages import NotFound, render_page, render_part


async def list_engines(request: Request, *, site: WebSite) -> Response:
    """List the engines that moebox started and that are alive."""
    found = await run_in_threadpool(state.list_instances)
    alive = [instance for instance in found if instance.is_alive]
    return render_page("engines.html", title="Engines", here="engines", engines=alive)


def find_engine(name: str) -> state.Instance:
    found = state.instances_by_id()
    if name not in found:
        raise NotFound(f"no engine called {name!r}", hint="the list of engines names those that run")
    return found[name]


async def stop_engine(request: Request, *, site: WebSite) -> Response:
    """Stop an engine as `moebox down` does."""
    instance = await run_in_threadpool(find_engine, request.path_params["name"])
    refuse_if(not instance.is_alive, f"{instance.id} is not running")
    await run_in_threadpool(stopping.stop_instance, instance)
    return JSONResponse({"stopped": instance.id})


EVERY_S = 2.0
TIME_AXIS = ChartAxis(title="seconds ago", log=False, zero=False, format=lambda value: f"{abs(value):.0f}")
MAX_LOOKS = 150  # that are drawn: five minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeView:
    title: str
    text: str
    drawing: Markup


async def show_watch(request: Request, *, site: WebSite) -> Response:
    """Show the page; its figures arrive as events."""
    engine = await run_in_threadpool(find_engine, request.path_params["name"])
    return render_page("watch.html", title=f"Watch {engine.model}", here="engines", engine=engine)


async def stream_figures(request: Request, *, site: WebSite) -> Response:
    """Send the figures every two seconds until the page is closed."""
    endpoint = await run_in_threadpool(find_endpoint, request.path_params["name"])
    watcher = EndpointWatcher(endpoint)

    async def stream_looks() -> AsyncIterator[str]:
        while not site.stopping.is_set():
            began = time.monotonic()
            await run_in_threadpool(watcher.look_once)
            yield f"data: {json.dumps(watch_fragment(watcher))}\n\n"
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    return StreamingResponse(stream_looks(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def watch_fragment(watcher: EndpointWatcher) -> Markup:
    """The figures and alerts so far as HTML."""
    alerts = [alert.text for alert in watcher.alerts[-10:]]
    answers = watcher.looks[-1].answered if watcher.looks else False
    holding = len(watcher.active_alerts)
    return render_part("watch_part.html", gauges=gauge_views(watcher), alerts=alerts, answers=answers, holding=holding)


def format_tick(in_words: Callable[[float], str], value: float) -> str:
    """A value of an axis: as the figure is written, counts with their fractions."""
    text = in_words(value)
    return f"{value:g}" if text.isdigit() else text


def gauge_views(watcher: EndpointWatcher) -> list[GaugeView]:
    """Every figure that the engine exposes."""
    looks = list(watcher.looks)[-MAX_LOOKS:]
    found = []
    for name, title, in_words in SHOWN:
        values = [look.figures[name] for look in looks if name in look.figures]
        if values:
            points = tuple((look.at - looks[-1].at, look.figures[name]) for look in looks if name in look.figures)
            series = [ChartSeries(name=title, colour=1, points=points, markers=False)]
            y = ChartAxis(title="", log=False, format=in_words, tick=functools.partial(format_tick, in_words))
            label = f"{title} over the last {format_seconds(-points[0][0])}"
            drawing = draw_lines(series, x=TIME_AXIS, y=y, label=label, height=190) if len(points) > 1 else None
            found.append(GaugeView(title=title, text=in_words(values[-1]), drawing=drawing or Markup("")))
    return found
