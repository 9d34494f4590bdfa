"""The HTTP server: OpenAI's and Anthropic's routes over a simulated engine, with replies whole and streamed."""

import asyncio
import contextlib
import hmac
import html
import json
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from string import Template

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moebox.core.endpoint import SIMULATION_HEADER
from moebox.loose import Document, Json
from moebox.twin.engine import TwinEngine, metrics_text
from moebox.twin.request import RequestRefused, TwinRequest, count_tokens, parse_request, to_chat_request

PUBLIC_PATHS = ("/health", "/ping")  # they show only that the server is up
CLIENT_CLOSED = 499  # nginx's code for a client that closed the connection
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # the twin listens on the loopback address only
MAX_BODY_BYTES = 64 * 2**20
SIMULATION_TEXT = "simulation by moebox twin; no model wrote this and no engine timed it"
FINGERPRINT = "moebox-twin-simulation"
PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def build_app(engine: TwinEngine, *, model: str, context: int, title: str, key: str) -> Starlette:
    """Build the application; the engine steps while it is up. An empty key lets every user of this machine in."""
    started = int(time.time())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        stepping = asyncio.create_task(engine.run())
        try:
            yield
        finally:
            stepping.cancel()

    async def index(_: Request) -> Response:
        scheduler = engine.scheduler
        rows = {
            "serving": f"{model}: {title}",
            "speed": f"{engine.faster:g}× real time",
            "running": scheduler.running,
            "waiting": len(scheduler.waiting) + len(scheduler.reading),
            "cache": f"{scheduler.used_tokens:,.0f} of {scheduler.rules.kv_tokens:,} tokens",
            "tokens made": f"{engine.counters.generation_tokens:,}",
        }
        for tier, ttft in engine.counters.ttft_by_tier.items():
            text = f"{ttft.total / ttft.number:.3f} s, {ttft.number:,} requests"
            text += f", {engine.counters.cached_tokens[tier]:,} tokens" if tier else ""
            rows[f"first token, {tier or 'computed'}"] = text
        cells = "".join(f"<tr><th>{name}<td>{html.escape(str(value))}" for name, value in rows.items())
        headers = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}  # the URL may hold the key
        return HTMLResponse(PAGE.substitute(simulation=SIMULATION_TEXT, cells=cells), headers=headers)

    async def models(_: Request) -> Response:
        about = {"created": started, "owned_by": "moebox-twin", "max_model_len": context}
        entry = {"id": model, "object": "model", **about}
        return JSONResponse({"object": "list", "data": [entry], "simulation": SIMULATION_TEXT})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        text = metrics_text(engine.counters, engine.scheduler, model=model, context=context)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def tokenize(request: Request) -> Response:
        """Count a text's tokens as vLLM's and llama.cpp's route does; load generators size their prompts with it."""
        body = await read_body(request)
        text = body.get("prompt", body.get("content"))
        if not isinstance(text, str):
            raise RequestRefused(400, "prompt or content must be a text")
        tokens = count_tokens(text)
        return JSONResponse({"count": tokens, "tokens": [0] * tokens, "max_model_len": context})

    async def complete(request: Request) -> Response:
        anthropic = request.url.path.endswith("/messages")
        chat = anthropic or request.url.path.endswith("/chat/completions")
        body = await read_body(request)
        body = to_chat_request(body) if anthropic else body
        wanted = parse_request(body, chat=chat, model=model, context=context)
        total = wanted.prompt_tokens + wanted.output
        if total > engine.scheduler.rules.kv_tokens:
            raise RequestRefused(400, f"{total} tokens do not fit in the cache")
        if wanted.stream:
            events = stream_message if anthropic else stream_reply
            return StreamingResponse(events(engine, wanted, model), media_type="text/event-stream")
        async with contextlib.aclosing(engine.generate(wanted)) as made:
            async for _ in made:
                if await request.is_disconnected():
                    return Response(status_code=CLIENT_CLOSED)
        return JSONResponse((full_message if anthropic else full_reply)(wanted, model))

    routes = [
        Route("/", index),
        Route("/health", health),
        Route("/ping", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/messages", complete, methods=["POST"]),
    ]
    gate = Middleware(TwinGate, key=key, speed=engine.faster)
    return Starlette(routes=routes, lifespan=lifespan, middleware=[gate], exception_handlers={RequestRefused: refuse})


class TwinGate:
    """Require the key, and a local host name: a web page from elsewhere could point its own name at this server.

    Adds the simulation header to every response, errors included.
    """

    def __init__(self, app: ASGIApp, key: str, speed: float) -> None:
        self.app, self.key, self.header = app, key, (SIMULATION_HEADER.encode(), f"{speed:g}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), self.header]
            await send(message)

        if scope["type"] == "http":
            await (self.refusal(Request(scope)) or self.app)(scope, receive, send_with_header)
        else:
            await self.app(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        name = host.removesuffix("]").rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        if name not in LOCAL_NAMES:
            return PlainTextResponse("use http://localhost", 421)
        if not self.key or request.url.path in PUBLIC_PATHS:
            return None
        given = [request.headers.get("authorization", "").removeprefix("Bearer "), request.headers.get("x-api-key", "")]
        if request.url.path == "/":  # for browsers, which send no such header
            given.append(request.query_params.get("key", ""))
        if any(hmac.compare_digest(key.encode(), self.key.encode()) for key in given):
            return None
        return error_response(401, "the key is missing or wrong: `moebox twin` printed it")


async def read_body(request: Request) -> Json:
    """Return the JSON object that a request holds; RequestRefused if there is none."""
    try:
        raw = await request.body()
        if len(raw) > MAX_BODY_BYTES:
            raise RequestRefused(413, "the request is too large")
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise RequestRefused(400, "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestRefused(400, "the body must be a JSON object")
    return body


async def refuse(_: Request, problem: Exception) -> Response:
    return error_response(getattr(problem, "status", 400), str(problem))


def error_response(status: int, message: str) -> JSONResponse:
    """Return an error in OpenAI's format."""
    kind = {401: "AuthenticationError", 404: "NotFoundError"}.get(status, "BadRequestError")
    body = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": body, "simulation": SIMULATION_TEXT}, status_code=status)


async def stream_reply(engine: TwinEngine, request: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """Yield server-sent events, each when the simulation has made its tokens."""
    head, sent = _reply_head(request, model, chunk=True), 0

    def event(delta: Document, reason: str | None = None) -> bytes:
        piece = {"delta": delta} if request.chat else {"text": "", **delta}
        return send(choices=[{"index": 0, **piece, "logprobs": None, "finish_reason": reason}])

    def send(**more: object) -> bytes:
        return b"data: " + json.dumps({**head, **more}, separators=(",", ":")).encode() + b"\n\n"

    # Closed explicitly: a client that disconnects must leave the simulated queue at once, not at garbage collection.
    async with contextlib.aclosing(engine.generate(request)) as stream:
        async for made in stream:
            if request.chat and not sent:
                yield event({"role": "assistant", "content": ""})
            if request.call:
                arguments = request.arguments_part(sent, made)
                part = {"function": {"arguments": arguments}} if sent else _tool_call(request.call[0], arguments)
                yield event({"tool_calls": [{"index": 0, **part}]})
            else:
                yield event({"content" if request.chat else "text": request.text_part(sent, made)})
            sent = made
    yield event({}, request.reason)
    if request.usage:
        yield send(choices=[], usage=_token_usage(request))
    yield b"data: [DONE]\n\n"


def full_reply(request: TwinRequest, model: str) -> Document:
    message: Document = {"role": "assistant", "content": request.text_part(0, request.output)}
    if request.call:
        message = {"role": "assistant", "content": None, "tool_calls": [_tool_call(*request.call)]}
    content = {"message": message} if request.chat else {"text": message["content"]}
    choice = {"index": 0, "logprobs": None, "finish_reason": request.reason, **content}
    return {**_reply_head(request, model, chunk=False), "choices": [choice], "usage": _token_usage(request)}


def _tool_call(name: str, arguments: str) -> Document:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _reply_head(request: TwinRequest, model: str, *, chunk: bool) -> Document:
    return {
        "id": f"{'chatcmpl' if request.chat else 'cmpl'}-twin-{uuid.uuid4().hex}",
        "object": "chat.completion" + (".chunk" if chunk else "") if request.chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "simulation": SIMULATION_TEXT,
    }


def _token_usage(request: TwinRequest) -> Document:
    prompt, output = request.prompt_tokens, request.output
    details = {"prompt_tokens_details": {"cached_tokens": request.cached_tokens}} if request.cached_tokens else {}
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **details}


def full_message(request: TwinRequest, model: str) -> Document:
    block: Document = {"type": "text", "text": request.text_part(0, request.output)}
    if request.call:
        name, arguments = request.call
        block = {"type": "tool_use", "id": _new_id("toolu"), "name": name, "input": json.loads(arguments)}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": request.output}
    return _message_head(request, model) | {"content": [block], "stop_reason": _stop_reason(request), "usage": usage}


async def stream_message(engine: TwinEngine, request: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """The same events of Anthropic's API."""
    yield _sse_event("message_start", message=_message_head(request, model))
    block: Document = {"type": "text", "text": ""}
    if request.call:
        block = {"type": "tool_use", "id": _new_id("toolu"), "name": request.call[0], "input": {}}
    yield _sse_event("content_block_start", index=0, content_block=block)
    sent = 0
    async with contextlib.aclosing(engine.generate(request)) as stream:
        async for made in stream:
            delta = {"type": "text_delta", "text": request.text_part(sent, made)}
            if request.call:
                delta = {"type": "input_json_delta", "partial_json": request.arguments_part(sent, made)}
            yield _sse_event("content_block_delta", index=0, delta=delta)
            sent = made
    yield _sse_event("content_block_stop", index=0)
    ended = {"stop_reason": _stop_reason(request), "stop_sequence": None}
    yield _sse_event("message_delta", delta=ended, usage={"output_tokens": request.output})
    yield _sse_event("message_stop")


def _message_head(request: TwinRequest, model: str) -> Document:
    head: Document = {"id": _new_id("msg"), "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": 0}
    return head | {"stop_reason": None, "stop_sequence": None, "usage": usage, "simulation": SIMULATION_TEXT}


def _stop_reason(request: TwinRequest) -> str:
    return {"tool_calls": "tool_use", "length": "max_tokens"}.get(request.reason, "end_turn")


def _new_id(kind: str) -> str:
    return f"{kind}_twin_{uuid.uuid4().hex}"


def _sse_event(kind: str, **data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, separators=(',', ':'))}\n\n".encode()
