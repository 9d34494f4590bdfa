"""The HTTP side: OpenAI's and Anthropic's routes over a simulated engine."""

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
from moebox.twin import messages, openai
from moebox.twin.engine import TwinEngine
from moebox.twin.filler import count_tokens
from moebox.twin.metrics import metrics_text
from moebox.twin.openai import SIMULATION_TEXT
from moebox.twin.request import Json, RequestRefused, TwinRequest, parse_request

PUBLIC_PATHS = ("/health", "/ping")  # say nothing but that it is up
CLIENT_CLOSED = 499  # nginx's code for a client that closed the connection
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")  # it listens on the loopback address only
MAX_BODY_BYTES = 64 * 2**20  # bytes of a request body


def build_app(engine: TwinEngine, *, model: str, context: int, title: str, key: str) -> Starlette:
    """The application; the engine steps while it is up. Without a key ("") everyone on this machine may use it."""
    started = int(time.time())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        stepping = asyncio.create_task(engine.run())
        try:
            yield
        finally:
            stepping.cancel()

    async def index(_: Request) -> Response:
        busy = engine.scheduler
        rows = {
            "serving": f"{model}: {title}",
            "speed": f"{engine.faster:g}× real time",
            "running": busy.running,
            "waiting": len(busy.waiting) + len(busy.reading),
            "cache": f"{busy.used_tokens:,.0f} of {busy.rules.kv_tokens:,} tokens",
            "tokens made": f"{engine.counters.generation_tokens:,}",
        }
        cells = "".join(f"<tr><th>{name}<td>{html.escape(str(value))}" for name, value in rows.items())
        headers = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}  # its address may hold the key
        return HTMLResponse(PAGE.format(says=SIMULATION_TEXT, cells=cells), headers=headers)

    async def models(_: Request) -> Response:
        card = {"id": model, "object": "model", "created": started, "owned_by": "moebox-twin", "max_model_len": context}
        return JSONResponse({"object": "list", "data": [card], "simulation": SIMULATION_TEXT})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        busy = engine.scheduler
        text = metrics_text(
            engine.counters,
            model=model,
            running=busy.running + len(busy.reading),
            waiting=len(busy.waiting),
            used=busy.used_tokens,
            kv_tokens=busy.rules.kv_tokens,
            context=context,
            preempted=busy.preemptions,
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def tokenize(request: Request) -> Response:
        """As vLLM and llama.cpp have it: a load generator learns how long its words are here."""
        try:
            body = await _body(request)
        except RequestRefused as problem:
            return _error(problem)
        text = body.get("prompt", body.get("content"))
        if not isinstance(text, str):
            return _error(RequestRefused(400, "prompt or content is to be a text"))
        tokens = count_tokens(text)
        return JSONResponse({"count": tokens, "tokens": [0] * tokens, "max_model_len": context})

    async def accepted(request: Request, *, anthropic: bool) -> TwinRequest:
        """What is asked; Refused where it is malformed, or more than there is room for."""
        chat = anthropic or request.url.path.endswith("/chat/completions")
        body = await _body(request)
        asked = parse_request(
            messages.to_chat_request(body) if anthropic else body, chat=chat, model=model, context=context
        )
        if asked.prompt_tokens + asked.output > engine.scheduler.rules.kv_tokens:
            raise RequestRefused(400, f"{asked.prompt_tokens + asked.output} tokens are more than the cache holds")
        return asked

    async def waited_for(request: Request, asked: TwinRequest) -> bool:
        """All tokens are made; False where the client did not stay for them."""
        async with contextlib.aclosing(engine.generate(asked.prompt_tokens, asked.output)) as made:
            async for _ in made:
                if await request.is_disconnected():
                    return False
        return True

    async def complete(request: Request) -> Response:
        anthropic = request.url.path.endswith("/messages")
        try:
            asked = await accepted(request, anthropic=anthropic)
        except RequestRefused as problem:
            return _error(problem)
        if asked.stream:
            events = messages.stream_reply if anthropic else openai.stream_reply
            return StreamingResponse(events(engine, asked, model), media_type="text/event-stream")
        if not await waited_for(request, asked):
            return Response(status_code=CLIENT_CLOSED)
        return JSONResponse(messages.full_reply(asked, model) if anthropic else openai.full_reply(asked, model))

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
    return Starlette(
        routes=routes, lifespan=lifespan, middleware=[Middleware(SimulationHeader), Middleware(TwinGate, key=key)]
    )


class TwinGate:
    """Answers who has the key, under names of this machine: a page from elsewhere could point its own name here."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self.key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        refusal = self.refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def refusal(self, request: Request) -> Response | None:
        """The reply to a request that is refused, or None."""
        if not _is_here(request.headers.get("host", "")):
            return PlainTextResponse("ask for localhost", 421)
        if not self.key or request.url.path in PUBLIC_PATHS:
            return None
        given = [request.headers.get("authorization", "").removeprefix("Bearer "), request.headers.get("x-api-key", "")]
        if request.url.path == "/":  # for a browser, which sends no header
            given.append(request.query_params.get("key", ""))
        if any(hmac.compare_digest(key.encode(), self.key.encode()) for key in given):
            return None
        return _error(RequestRefused(401, "the key is missing or wrong: `moebox twin` printed it"))


def _is_here(host: str) -> bool:
    name = host.removesuffix("]").rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name in LOCAL_NAMES


class SimulationHeader:
    """Puts the header that says so on every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (SIMULATION_HEADER.encode(), b"true")]
            await send(message)

        await self.app(scope, receive, marked if scope["type"] == "http" else send)


async def _body(request: Request) -> Json:
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


def _error(problem: RequestRefused) -> JSONResponse:
    kind = {401: "AuthenticationError", 404: "NotFoundError"}.get(problem.status, "BadRequestError")
    body = {"message": str(problem), "type": kind, "param": None, "code": problem.status}
    return JSONResponse({"error": body, "simulation": SIMULATION_TEXT}, status_code=problem.status)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Simulation · moebox twin</title>
<style>body{{font:16px/1.5 system-ui;margin:3rem auto;max-width:44rem;padding:0 1rem}}
strong{{background:#fc0;color:#000;padding:.1em .4em}}th{{text-align:left;padding-right:2em;font-weight:500}}
td{{font-variant-numeric:tabular-nums}}</style>
<h1>moebox twin</h1>
<p><strong>SIMULATION</strong> {says}.</p>
<table>{cells}</table>
<p>GET /v1/models, /metrics · POST /v1/chat/completions, /v1/completions, /v1/messages</p></html>
"""
