"""The HTTP side: OpenAI's and Anthropic's routes over a simulated engine."""

import asyncio
import contextlib
import html
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moebox.loose import Document, Json, inner
from moebox.twin import calls, messages, words
from moebox.twin.engine import Engine
from moebox.twin.metrics import exposition

SAYS = "simulation by moebox twin; no model wrote this and no engine timed it"
FINGERPRINT = "moebox-twin-simulation"
CALL_TOKENS = 12  # a call's name and marks
USUAL = 256  # tokens of an answer nobody limited
GONE = 499  # nginx's code for a client that closed the connection
HERE = ("localhost", "127.0.0.1", "[::1]")  # it listens on the loopback address only
LARGEST = 64 * 2**20  # bytes of a request body


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as far as the twin looks at it."""

    chat: bool
    prompt: str
    prompt_tokens: int
    output: int
    reason: str
    stream: bool
    usage: bool
    call: tuple[str, str] | None = None  # the tool called instead of text, and its arguments

    def arguments(self, start: int, end: int) -> str:
        """The part of the call's arguments that belongs to these tokens of the reply."""
        text = self.call[1] if self.call else ""
        return text[len(text) * start // self.output : len(text) * end // self.output]


class Refused(Exception):
    """A request that an engine would answer with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def build(engine: Engine, *, model: str, context: int, title: str) -> Starlette:
    """The application; the engine steps while it is up."""
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
            "cache": f"{busy.used:,.0f} of {busy.rules.kv_tokens:,} tokens",
            "tokens made": f"{engine.counters.generation_tokens:,}",
        }
        cells = "".join(f"<tr><th>{name}<td>{html.escape(str(value))}" for name, value in rows.items())
        return HTMLResponse(PAGE.format(says=SAYS, cells=cells))

    async def models(_: Request) -> Response:
        card = {"id": model, "object": "model", "created": started, "owned_by": "moebox-twin", "max_model_len": context}
        return JSONResponse({"object": "list", "data": [card], "simulation": SAYS})

    async def health(_: Request) -> Response:
        return Response()

    async def metrics(_: Request) -> Response:
        busy = engine.scheduler
        text = exposition(
            engine.counters,
            model=model,
            running=busy.running + len(busy.reading),
            waiting=len(busy.waiting),
            used=busy.used,
            kv_tokens=busy.rules.kv_tokens,
            context=context,
            preempted=busy.preemptions,
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def complete(request: Request) -> Response:
        anthropic = request.url.path.endswith("/messages")
        chat = anthropic or request.url.path.endswith("/chat/completions")
        try:
            body = await _body(request)
            asked = _read(messages.as_chat(body) if anthropic else body, chat=chat, model=model, context=context)
            if asked.prompt_tokens + asked.output > engine.scheduler.rules.kv_tokens:
                raise Refused(400, f"{asked.prompt_tokens + asked.output} tokens are more than the cache holds")
        except Refused as problem:
            return _error(problem)
        if asked.stream:
            events = messages.streamed if anthropic else _streamed
            return StreamingResponse(events(engine, asked, model), media_type="text/event-stream")
        async with contextlib.aclosing(engine.tokens(asked.prompt_tokens, asked.output)) as made:
            async for _ in made:
                if await request.is_disconnected():
                    return Response(status_code=GONE)
        return JSONResponse(messages.whole(asked, model) if anthropic else _whole(asked, model))

    routes = [
        Route("/", index),
        Route("/health", health),
        Route("/ping", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/chat/completions", complete, methods=["POST"]),
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/messages", complete, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(Marked), Middleware(Here)])


class Here:
    """Answers to names of this machine only: a page from elsewhere could point its own name at the loopback address."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] == "http" and not _is_here(Request(scope).headers.get("host", "")):
            await PlainTextResponse("ask for localhost", 421)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_here(host: str) -> bool:
    name = host.removesuffix("]").rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    return name in HERE


class Marked:
    """Puts the header that says so on every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-moebox-simulation", b"true")]
            await send(message)

        await self.app(scope, receive, marked if scope["type"] == "http" else send)


async def _body(request: Request) -> Document:
    try:
        raw = await request.body()
        if len(raw) > LARGEST:
            raise Refused(413, "the request is too large")
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def _read(body: Json, *, chat: bool, model: str, context: int) -> Asked:
    if body.get("model", model) != model:
        raise Refused(404, f"The model `{body['model']}` does not exist; this twin serves `{model}`.")
    prompt, count = _chat_prompt(body.get("messages")) if chat else _prompt(body.get("prompt"))
    if body.get("n", 1) not in (1, None):
        raise Refused(400, "the twin gives one choice: n must be 1")
    limit = _limit(body)
    if count >= context or count + (limit or 0) > context:
        wanted = f"{limit} tokens in the completion" if limit else "a completion"
        raise Refused(400, f"This model's maximum context length is {context} tokens: {count} of prompt and {wanted}.")
    call = calls.chosen(body) if chat else None
    output, reason = _output(limit, context - count, call, tools=bool(body.get("tools")))
    return Asked(
        chat=chat,
        prompt=prompt,
        prompt_tokens=count,
        output=output,
        reason=reason,
        call=call,
        stream=bool(body.get("stream")),
        usage=bool(inner(body, "stream_options").get("include_usage")),
    )


def _limit(body: Json) -> int | None:
    """The most tokens that were asked for."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise Refused(400, "max_tokens must be 1 or more")
    return limit


def _output(limit: int | None, room: int, call: tuple[str, str] | None, *, tools: bool) -> tuple[int, str]:
    """How many tokens the reply has, and why it ends."""
    output = limit or min(USUAL, room)
    if call:
        return min(output, words.tokens_in(call[1]) + CALL_TOKENS), "tool_calls"
    if tools and output > USUAL:
        return USUAL, "stop"  # an agent allows far more than it means
    return output, "length" if limit else "stop"


def _chat_prompt(messages: object) -> tuple[str, int]:
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise Refused(400, "messages must be a list of objects with role and content")
    parts = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        parts.append(str(content))
    text = "\n".join(parts)
    return text, words.tokens_in(text) + 4 * len(parts)  # a role and its marks are about four tokens


def _prompt(prompt: object) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt, words.tokens_in(prompt)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0], words.tokens_in(prompt[0])
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return str(prompt[:64]), len(prompt)
    raise Refused(400, "prompt must be text or a list of token numbers")


async def _streamed(engine: Engine, asked: Asked, model: str) -> AsyncIterator[bytes]:
    head = _head(asked, model, chunk=True)
    sent = 0
    # Closed by hand: a client that goes away must leave the simulated queue at once, not when memory is tidied.
    async with contextlib.aclosing(engine.tokens(asked.prompt_tokens, asked.output)) as stream:
        async for made in stream:
            if asked.chat and not sent:
                yield _event({**head, "choices": [_piece(asked, "", first=True)]})
            yield _event({**head, "choices": [_called(asked, sent, made) if asked.call else _said(asked, sent, made)]})
            sent = made
    yield _event({**head, "choices": [_piece(asked, "", reason=asked.reason)]})
    if asked.usage:
        yield _event({**head, "choices": [], "usage": _usage(asked)})
    yield b"data: [DONE]\n\n"


def _said(asked: Asked, start: int, end: int) -> Document:
    return _piece(asked, words.text(asked.prompt, start, end))


def _called(asked: Asked, start: int, end: int) -> Document:
    """A piece of the call; the first names it."""
    assert asked.call
    function = {"arguments": asked.arguments(start, end)}
    call: Document = {"index": 0, "function": function}
    if start == 0:
        call |= {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": {"name": asked.call[0], **function}}
    return {"index": 0, "delta": {"tool_calls": [call]}, "logprobs": None, "finish_reason": None}


def _piece(asked: Asked, text: str, *, first: bool = False, reason: str | None = None) -> Document:
    if not asked.chat:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    delta: Document = {"role": "assistant", "content": ""} if first else {"content": text} if text else {}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _whole(asked: Asked, model: str) -> Document:
    text = words.text(asked.prompt, 0, asked.output)
    choice: Document = {"index": 0, "logprobs": None, "finish_reason": asked.reason}
    choice |= {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
    if asked.call:
        function = {"name": asked.call[0], "arguments": asked.call[1]}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {**_head(asked, model, chunk=False), "choices": [choice], "usage": _usage(asked)}


def _head(asked: Asked, model: str, *, chunk: bool) -> Document:
    kind = "chat.completion" + (".chunk" if chunk else "") if asked.chat else "text_completion"
    return {
        "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-twin-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "simulation": SAYS,
    }


def _usage(asked: Asked) -> dict[str, int]:
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": asked.output,
        "total_tokens": asked.prompt_tokens + asked.output,
    }


def _event(document: Json) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _error(problem: Refused) -> JSONResponse:
    kind = "NotFoundError" if problem.status == 404 else "BadRequestError"
    body = {"message": str(problem), "type": kind, "param": None, "code": problem.status}
    return JSONResponse({"error": body, "simulation": SAYS}, status_code=problem.status)


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Simulation · moebox twin</title>
<style>body{{font:16px/1.5 system-ui;margin:3rem auto;max-width:44rem;padding:0 1rem}}
strong{{background:#fc0;color:#000;padding:.1em .4em}}th{{text-align:left;padding-right:2em;font-weight:500}}
td{{font-variant-numeric:tabular-nums}}</style>
<h1>moebox twin</h1>
<p><strong>SIMULATION</strong> {says}.</p>
<table>{cells}</table>
<p><a href="/v1/models">/v1/models</a> · <a href="/metrics">/metrics</a> · POST /v1/chat/completions,
/v1/completions, /v1/messages</p></html>
"""
