"""Chat with an endpoint: the page's messages go to it, its events come back, each on one line."""

import json
import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moebox import http
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import BadInput, ExternalError
from moebox.loose import Json
from moebox.serve import state
from moebox.serve.keys import find_key
from moebox.stream.sse import EventParser
from moebox.web.gate import WebSite
from moebox.web.pages import read_form, render_page

ROLES = ("system", "user", "assistant")
MOST_MESSAGES = 200
LONGEST_S = 900.0


async def show_chat(request: Request, *, site: WebSite) -> Response:
    """The engines that run, and the conversation."""
    engines = await run_in_threadpool(running_engines)
    return render_page(site, "chat.html", title="Chat", here="chat", engines=engines)


def running_engines() -> list[state.Instance]:
    """Engines that answer, the newest first."""
    return [instance for instance in reversed(state.list_instances()) if instance.status == "ready"]


def find_endpoint(name: str) -> Endpoint:
    """The endpoint of a running engine; only ours, so that the page is no way to anywhere else."""
    instance = next((each for each in running_engines() if each.id == name), None)
    if instance is None:
        raise ExternalError(f"no running engine called {name!r}", hint="`moebox up RECIPE` or `moebox run --keep`")
    key = find_key(instance.key_env, instance.base_url)
    return endpoint_from_url(instance.base_url, instance.model, key=key, engine=instance.engine)


def parse_messages(text: str) -> list[Json]:
    """The conversation so far: roles and texts, nothing else."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput("the conversation is not JSON") from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_MESSAGES:
        raise BadInput(f"a conversation has 1 to {MOST_MESSAGES} messages")
    return [_message(row) for row in rows]


def _message(row: object) -> Json:
    """One message, checked."""
    role, content = (row.get("role"), row.get("content")) if isinstance(row, dict) else (None, None)
    if role not in ROLES or not isinstance(content, str):
        raise BadInput("a message has a role and a text")
    return {"role": role, "content": content}


async def send_message(request: Request, *, site: WebSite) -> Response:
    """One turn: the engine's own events, then one of ours with tokens and seconds."""
    fields = await read_form(request)
    endpoint = await run_in_threadpool(find_endpoint, fields.get("engine", ""))
    body = {
        "model": endpoint.model,
        "messages": parse_messages(fields.get("messages", "")),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return StreamingResponse(stream_reply(endpoint, body), media_type="text/event-stream")


async def stream_reply(endpoint: Endpoint, body: Json) -> AsyncIterator[bytes]:
    """Events of the engine's stream as they come; a failure is one too, so that the page can say it."""
    began = time.monotonic()
    parser = EventParser()
    url = f"{endpoint.base_url}/chat/completions"
    try:
        async for chunk in http.post_stream(url, body, headers=endpoint.headers, timeout_s=LONGEST_S):
            for _, data in parser.feed(chunk):
                yield _line(data)
            if parser.problem:
                raise http.HttpError(parser.problem)
        for _, data in parser.close():
            yield _line(data)
    except http.HttpError as problem:
        yield _line(json.dumps({"error": problem.message}).encode())
    yield _line(json.dumps({"moebox": {"seconds": time.monotonic() - began}}).encode())


def _line(data: bytes) -> bytes:
    """An event of JSON, to which a line break is a space."""
    return b"data: " + data.strip().replace(b"\n", b" ") + b"\n\n"
