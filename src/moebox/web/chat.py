"""Chat with a running engine: send the page's messages to it and stream its events back."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from moebox import codec, http
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.errors import BadInput, ExternalError, refuse_if
from moebox.loose import Json
from moebox.serve import state
from moebox.serve.keys import find_key
from moebox.stream.sse import EventParser
from moebox.web.gate import WebSite
from moebox.web.pages import read_form, render_page

ROLES = ("system", "user", "assistant", "tool")
MAX_TOKENS = 1 << 20
MAX_MESSAGES = 200
TIMEOUT_S = 900.0


async def show_chat(request: Request, *, site: WebSite) -> Response:
    """Show the running engines and the conversation."""
    engines = await run_in_threadpool(running_engines)
    return render_page("chat.html", title="Chat", here="chat", engines=engines)


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


async def send_message(request: Request, *, site: WebSite) -> Response:
    """Send one turn; reply with the engine's own events, then one of ours with the seconds."""
    fields = await read_form(request)
    endpoint = await run_in_threadpool(find_endpoint, fields.get("engine", ""))
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
