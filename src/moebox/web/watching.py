"""`moebox watch` on a page: an engine's own figures as they change, and alerts. Looking sends the model nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moebox.flows.watch import SHOWN, EndpointWatcher
from moebox.report.svg import sparkline
from moebox.web.chat import endpoint_named
from moebox.web.engines import engine_of
from moebox.web.gate import Site
from moebox.web.pages import page, rendered

EVERY_S = 2.0
LOOKS = 150  # of the newest that are drawn: five minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One figure, and how it went."""

    title: str
    text: str
    drawing: Markup


async def shown(request: Request, *, site: Site) -> Response:
    """The page; its figures come by events."""
    engine = await run_in_threadpool(engine_of, request.path_params["name"])
    return page(site, "watch.html", title=f"Watch {engine.model}", here="engines", engine=engine)


async def events(request: Request, *, site: Site) -> Response:
    """The figures again every two seconds, until the page is closed."""
    endpoint = await run_in_threadpool(endpoint_named, request.path_params["name"])
    watcher = EndpointWatcher(endpoint)

    async def stream() -> AsyncIterator[str]:
        while not site.over.is_set():
            began = time.monotonic()
            await run_in_threadpool(watcher.look_once)
            yield f"data: {json.dumps(fragment(watcher))}\n\n"
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def fragment(watcher: EndpointWatcher) -> Markup:
    """What was seen so far."""
    alerts = [alert.text for alert in watcher.alerts[-10:]]
    answers = watcher.looks[-1].answered if watcher.looks else False
    holding = len(watcher.active_alerts)
    return rendered("watch_part.html", gauges=gauges(watcher), alerts=alerts, answers=answers, holding=holding)


def gauges(watcher: EndpointWatcher) -> list[Gauge]:
    """Every figure that the engine shows."""
    looks = list(watcher.looks)[-LOOKS:]
    found = []
    for name, title, in_words in SHOWN:
        values = [look.figures[name] for look in looks if name in look.figures]
        if values:
            label = f"{title}, the last {len(values)} looks"
            found.append(Gauge(title=title, text=in_words(values[-1]), drawing=sparkline(values, label=label)))
    return found
