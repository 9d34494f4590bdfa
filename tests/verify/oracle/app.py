"""The HTTP side: /FAULT/v1/… and the engine's own endpoints beside it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from moebox.stream.sse import parse_events

from . import chat, several, wire
from .faults import Fault
from .rates import drawn, named
from .wire import JSONResponse, Request, Response, StreamingResponse

MODEL = "oracle-k2"
KEY = "the-right-key"
PLAIN = "text/plain; charset=utf-8"


def name_of(request: Request) -> str:
    """What comes first in the URL."""
    return request.path.split("/")[1]


def fault_of(request: Request) -> Fault:
    """The fault that the URL names."""
    return named(name_of(request))


def error(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as OpenAI's API words it."""
    return JSONResponse({"error": {"message": message, "type": "error", "code": status}}, status, headers)


async def models(request: Request) -> Response:
    """/v1/models."""
    fault = fault_of(request)
    if fault.gate and (refused := fault.gate(request, {})):
        return refused
    listed = {"id": MODEL, "object": "model", "owned_by": "oracle", "max_model_len": fault.limit or chat.CONTEXT}
    body = {"object": "list", "data": [listed]}
    return JSONResponse(fault.listed(body) if fault.listed else body)


async def health(request: Request) -> Response:
    """/health."""
    fault = fault_of(request)
    return error(fault.health, "not for you") if fault.bare else JSONResponse({"status": "ok"})


async def tokenize(request: Request) -> Response:
    """vLLM's /tokenize."""
    body = request.json()
    if fault_of(request).bare:
        return error(404, "Not Found")
    return JSONResponse({"count": chat.prompt_tokens(body), "max_model_len": chat.CONTEXT})


async def completions(request: Request) -> Response:
    """/v1/chat/completions."""
    fault = fault_of(request)
    try:
        body = request.json()
    except ValueError:
        return error(400, "not JSON")
    fault = drawn(name_of(request), body)
    refused_by = fault.refusal or error
    if fault.gate and (refused := fault.gate(request, body)):
        return refused
    if body["model"] != MODEL:
        return refused_by(404, f"The model `{body['model']}` does not exist.")
    if (body.get("n") or 1) > 1:
        return await choices(body, fault)
    try:
        made = chat.answer(fault.request(body) if fault.request else body, fault.reply, fault.context)
    except chat.Refused as problem:
        return refused_by(problem.status, str(problem))
    if fault.among:
        try:
            made = await fault.among(made)
        except chat.Refused as problem:
            return error(problem.status, str(problem))
    if body.get("stream"):
        sent = fault.stream(made) if fault.stream else events(chat.chunks(made))
        return StreamingResponse(sent, headers={"content-type": fault.media, **dict(fault.headers)})
    whole = chat.whole(made)
    if fault.whole:
        whole = fault.whole(whole, made)
    written = fault.body(whole) if fault.body else json.dumps(whole).encode()
    if fault.body_in_pieces:
        return StreamingResponse(_pieces(written), media_type=fault.whole_media, headers=dict(fault.headers))
    return Response(written, media_type=fault.whole_media, headers=dict(fault.headers))


async def _pieces(written: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(written), 100):
        yield written[at : at + 100]
        await asyncio.sleep(0)


async def events(chunks: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    """A stream as it should be."""
    for chunk in chunks:
        yield f"data: {json.dumps(chunk)}\n\n".encode()
        await asyncio.sleep(0)
    yield b"data: [DONE]\n\n"


async def choices(body: dict[str, Any], fault: Fault) -> Response:
    """Several choices of one request; those of a fixed seed have a seed each. As in vLLM, never at temperature 0."""
    if not body.get("temperature", 1):
        return (fault.refusal or error)(400, f"n must be 1 when using greedy sampling, got {body['n']}.")
    seeds = [{"seed": body["seed"] + number} if body.get("seed") is not None else {} for number in range(body["n"])]
    asked = fault.request(body) if fault.request else body
    try:
        made = [chat.answer({**asked, **seed}, fault.reply, fault.context) for seed in seeds]
    except chat.Refused as problem:
        return (fault.refusal or error)(problem.status, str(problem))
    if not body.get("stream"):
        wholes = [fault.whole(chat.whole(each), each) if fault.whole else chat.whole(each) for each in made]
        whole = several.joined(wholes)
        return JSONResponse(fault.several(whole) if fault.several else whole)
    streams = []
    for each in made:
        raw = [piece async for piece in (fault.stream(each) if fault.stream else events(chat.chunks(each)))]
        found = [data for _, data in parse_events(b"".join(raw).decode(errors="replace"))]
        streams.append([json.loads(data) for data in found if data.startswith("{")])
    sent = several.interleaved(streams)
    sent = fault.several_chunks(sent) if fault.several_chunks else sent
    return StreamingResponse(events(sent), headers={"content-type": fault.media})


async def responses(request: Request) -> Response:
    """/v1/responses."""
    fault = fault_of(request)
    if fault.no_anthropic:
        return error(404, "Not Found")
    body = request.json()
    fault = drawn(name_of(request), body)
    try:
        body = fault.response_request(body) if fault.response_request else body
        asked = several.from_response(body)
        made = chat.answer(fault.request(asked) if fault.request else asked, fault.reply)
    except chat.Refused as problem:
        return error(problem.status, str(problem))
    whole = several.response(made)
    whole = fault.response(whole) if fault.response else whole
    if not body.get("stream"):
        return JSONResponse(whole)
    sent = several.response_events(whole)

    async def stream() -> AsyncIterator[bytes]:
        for event in fault.response_events(sent) if fault.response_events else sent:
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    return StreamingResponse(stream(), media_type="text/event-stream; charset=utf-8")


async def messages(request: Request) -> Response:
    """Anthropic's /v1/messages."""
    fault = fault_of(request)
    if fault.no_anthropic:
        return error(404, "Not Found")
    body = request.json()
    fault = drawn(name_of(request), body)
    if fault.message_gate and (refused := fault.message_gate(body)):
        return refused
    if fault.message_request:
        body = fault.message_request(body)
    try:
        made = chat.answer(chat.from_anthropic(body), fault.reply)
    except chat.Refused as problem:
        return error(problem.status, str(problem))
    if not body.get("stream"):
        whole = chat.message(made)
        return JSONResponse(fault.message(whole) if fault.message else whole)
    sent = chat.message_events(made)
    if fault.message_events:
        sent = fault.message_events(sent)

    async def stream() -> AsyncIterator[bytes]:
        for event in sent:
            name = f"event: {event['type']}\n" if fault.event_names else ""
            yield f"{name}data: {json.dumps(event)}\n\n".encode()

    return StreamingResponse(stream(), media_type="text/event-stream; charset=utf-8")


ROUTES = {
    "v1/models": ("GET", models),
    "health": ("GET", health),
    "tokenize": ("POST", tokenize),
    "v1/chat/completions": ("POST", completions),
    "v1/messages": ("POST", messages),
    "v1/responses": ("POST", responses),
}


async def answer(request: Request) -> Response:
    """Whatever is asked for below a fault's name."""
    method, route = ROUTES.get(request.path.removeprefix(f"/{name_of(request)}/"), ("", None))
    if route is None:
        return Response("Not Found", 404, media_type=PLAIN)
    return await route(request) if method == request.method else Response("Method Not Allowed", 405, media_type=PLAIN)


def serving() -> AbstractContextManager[str]:
    """The server on a free port of loopback, in a thread; gives its address."""
    return wire.live(answer)
