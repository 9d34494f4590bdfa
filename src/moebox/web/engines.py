"""Running engines: list them, stop them, chat with one, and watch one: its own figures as they change, and alerts.

A chat sends the page's messages to the engine and streams its events back. No request of a watch reaches the model.
"""

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from moebox import codec, http
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.flows.watch import SHOWN, EndpointWatcher
from moebox.loose import Json
from moebox.report.charts import ChartAxis, ChartSeries, draw_lines
from moebox.serve import state
from moebox.serve import stop as stopping
from moebox.serve.state import find_key
from moebox.stream.sse import EventParser
from moebox.units import format_seconds
from moebox.web.gate import WebSite
from moebox.web.pages import NO_STORE, NotFound, render_page, render_part

EVERY_S = 2.0
TIME_AXIS = ChartAxis(title="seconds ago", log=False, zero=False, format=lambda value: f"{abs(value):.0f}")
MAX_LOOKS = 150  # that are drawn: five minutes
ROLES = ("system", "user", "assistant", "tool")
MAX_TOKENS = 1 << 20
MAX_MESSAGES = 200
TIMEOUT_S = 900.0


def list_engines(request: Request, *, site: WebSite) -> Response:
    alive = [instance for instance in state.list_instances() if instance.is_alive]
    return render_page("engines.html", title="Engines", here="engines", engines=alive)


def find_engine(request: Request) -> state.Instance:
    name, found = request.path_params["name"], state.instances_by_id()
    if name not in found:
        raise NotFound(f"no engine called {name!r}", hint="the list of engines names those that run")
    return found[name]


def stop_engine(request: Request, *, site: WebSite) -> Response:
    """Stop an engine as `moebox down` does."""
    instance = find_engine(request)
    refuse_if(not instance.is_alive, f"{instance.id} is not running")
    stopping.stop_instance(instance)
    return JSONResponse({"stopped": instance.id})


def show_watch(request: Request, *, site: WebSite) -> Response:
    """Show the page; its figures arrive as events."""
    engine = find_engine(request)
    return render_page("watch.html", title=f"Watch {engine.model}", here="engines", engine=engine)


def stream_figures(request: Request, *, site: WebSite) -> Response:
    """Send the figures every two seconds until the page is closed."""
    watcher = EndpointWatcher(find_endpoint(request.path_params["name"]))

    async def stream_looks() -> AsyncIterator[str]:
        while not site.stopping.is_set():
            began = time.monotonic()
            await run_in_threadpool(watcher.look_once)
            yield f"data: {json.dumps(watch_fragment(watcher))}\n\n"
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    return StreamingResponse(stream_looks(), media_type="text/event-stream", headers=NO_STORE)


def format_tick(in_words: Callable[[float], str], value: float) -> str:
    """A value of an axis: as the figure is written, counts with their fractions."""
    text = in_words(value)
    return f"{value:g}" if text.isdigit() else text


def watch_fragment(watcher: EndpointWatcher) -> Markup:
    """The figures that the engine exposes, each with its text and drawing, and the alerts, as HTML."""
    looks, gauges = list(watcher.looks)[-MAX_LOOKS:], []
    for name, title, in_words in SHOWN:
        points = tuple((look.at - looks[-1].at, look.figures[name]) for look in looks if name in look.figures)
        if points:
            series = [ChartSeries(name=title, colour=1, points=points, markers=False)]
            y = ChartAxis(title="", log=False, format=in_words, tick=functools.partial(format_tick, in_words))
            label = f"{title} over the last {format_seconds(-points[0][0])}"
            drawing = draw_lines(series, x=TIME_AXIS, y=y, label=label, height=190) if len(points) > 1 else None
            gauges.append((title, in_words(points[-1][1]), drawing or ""))
    return render_part(
        "watch_part.html",
        gauges=gauges,
        alerts=[alert.text for alert in watcher.alerts[-10:]],
        answers=looks[-1].answered if looks else False,
        holding=len(watcher.active_alerts),
    )


def show_chat(request: Request, *, site: WebSite) -> Response:
    return render_page("chat.html", title="Chat", here="chat", engines=running_engines())


def running_engines() -> list[state.Instance]:
    """Engines that answer, the newest first."""
    return [instance for instance in reversed(state.list_instances()) if instance.status == "ready"]


def find_endpoint(name: str) -> Endpoint:
    """Find the endpoint of an engine that moebox started; no other address can be reached through the page."""
    instance = next((each for each in running_engines() if each.id == name), None)
    if instance is None:
        raise ExternalError(f"no running engine called {name!r}", hint="start one from Plan or Recipes")
    key = find_key(instance.key_env, instance.base_url)
    return endpoint_from_url(instance.base_url, instance.model, key=key, engine=instance.engine)


def parse_messages(text: str) -> list[Json]:
    """Parse the conversation: roles and texts, nothing else."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput("the conversation is not JSON") from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_MESSAGES:
        raise BadInput(f"a conversation has 1 to {MAX_MESSAGES} messages")
    messages: list[Json] = []
    for row in rows:
        role, content = (row.get("role"), row.get("content")) if isinstance(row, dict) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise BadInput("a message has a role and a text")
        calls = {name: row[name] for name in ("tool_calls", "tool_call_id") if row.get(name)}
        messages.append({"role": role, "content": content, **calls})
    return messages


def parse_options(fields: dict[str, str]) -> dict[str, Any]:
    """Parse temperature, token limit and tools of a request; what is empty is left to the server."""
    options: dict[str, Any] = {}
    for name, kind, least, most in (("temperature", float, 0, 2), ("max_tokens", int, 1, MAX_TOKENS)):
        text, title = fields.get(name, "").strip(), name.replace("_", " ")
        if not text:
            continue
        try:
            value = kind(text)
        except ValueError:
            raise BadInput(f"{title}: {text!r} is not a number") from None
        refuse_if(not least <= value <= most, f"{title}: {text} is out of range", hint=f"from {least} to {most:,}")
        options[name] = value
    if text := fields.get("tools", "").strip():
        tools = codec.parse_json(text, where="tools")
        valid = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
        example = '[{"type": "function", "function": {"name": "now"}}]'
        refuse_if(not valid, "tools: not a list of functions", hint=f"such as {example}")
        options["tools"] = tools
    return options


def send_message(fields: dict[str, str], *, site: WebSite) -> Response:
    """Send one turn; reply with the engine's own events, then one of ours with the seconds."""
    endpoint = find_endpoint(fields.get("engine", ""))
    body = {
        "model": endpoint.model,
        "messages": parse_messages(fields.get("messages", "")),
        "stream": True,
        "stream_options": {"include_usage": True},
        **parse_options(fields),
    }
    return StreamingResponse(stream_reply(endpoint, body), media_type="text/event-stream")


async def stream_reply(endpoint: Endpoint, body: Json) -> AsyncIterator[bytes]:
    """Yield the engine's events as they arrive; an error is an event too, so that the page can show it."""
    began = time.monotonic()
    parser = EventParser()
    url = f"{endpoint.base_url}/chat/completions"
    try:
        async for chunk in http.post_stream(url, body, headers=endpoint.headers, timeout_s=TIMEOUT_S):
            for _, data in parser.feed(chunk):
                yield event_line(data)
            if parser.problem:
                raise http.HttpError(parser.problem)
        for _, data in parser.close():
            yield event_line(data)
    except http.HttpError as problem:
        yield event_line(json.dumps({"error": problem.message}).encode())
    yield event_line(json.dumps({"moebox": {"seconds": time.monotonic() - began}}).encode())


def event_line(data: bytes) -> bytes:
    """A JSON event on one line; line breaks in JSON equal spaces."""
    return b"data: " + data.strip().replace(b"\n", b" ") + b"\n\n"
