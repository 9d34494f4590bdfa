"""The HTTP server: OpenAI's and Anthropic's routes over a simulated engine."""

import asyncio
import contextlib
import hmac
import html
import json
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moebox.core.endpoint import SIMULATION_HEADER
from moebox.loose import Json
from moebox.twin.engine import TwinEngine, metrics_text
from moebox.twin.replies import SIMULATION_TEXT, full_message, full_reply, stream_message, stream_reply
from moebox.twin.request import RequestRefused, count_tokens, parse_request, to_chat_request

PUBLIC_PATHS = ("/health", "/ping")  # they show only that the server is up
CLIENT_CLOSED = 499  # nginx's code for a client that closed the connection
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # the twin listens on the loopback address only
MAX_BODY_BYTES = 64 * 2**20


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
        return HTMLResponse(PAGE.format(simulation=SIMULATION_TEXT, cells=cells), headers=headers)

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
    gate = Middleware(TwinGate, key=key)
    return Starlette(routes=routes, lifespan=lifespan, middleware=[gate], exception_handlers={RequestRefused: refuse})


class TwinGate:
    """Require the key, and a local host name: a web page from elsewhere could point its own name at this server.

    Adds the simulation header to every response, errors included.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (SIMULATION_HEADER.encode(), b"true")]
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


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Simulation · moebox twin</title>
<style>body{{font:16px/1.5 system-ui;margin:3rem auto;max-width:44rem;padding:0 1rem}}
strong{{background:#fc0;color:#000;padding:.1em .4em}}th{{text-align:left;padding-right:2em;font-weight:500}}
td{{font-variant-numeric:tabular-nums}}</style>
<h1>moebox twin</h1>
<p><strong>SIMULATION</strong> {simulation}.</p>
<table>{cells}</table>
<p>GET /v1/models, /metrics · POST /v1/chat/completions, /v1/completions, /v1/messages</p></html>
"""
