"""Write replies in OpenAI's formats: chats and completions, whole and streamed."""

import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator

from moebox.loose import Document
from moebox.twin.engine import TwinEngine
from moebox.twin.request import TwinRequest

SIMULATION_TEXT = "simulation by moebox twin; no model wrote this and no engine timed it"
FINGERPRINT = "moebox-twin-simulation"


async def stream_reply(engine: TwinEngine, request: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """Yield server-sent events, each when the simulation has made its tokens."""
    head, sent = _reply_head(request, model, chunk=True), 0

    def event(*deltas: Document, reason: str | None = None, **more: object) -> bytes:
        if request.chat:
            choices: list[Document] = [
                {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason} for delta in deltas
            ]
        else:
            choices = [{"index": 0, "text": "", **delta, "logprobs": None, "finish_reason": reason} for delta in deltas]
        return b"data: " + json.dumps({**head, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"

    # Closed explicitly: a client that disconnects must leave the simulated queue at once, not at garbage collection.
    async with contextlib.aclosing(engine.generate(request)) as stream:
        async for made in stream:
            if request.chat and not sent:
                yield event({"role": "assistant", "content": ""})
            if request.call:
                yield event({"tool_calls": [_call_part(request, sent, made)]})
            else:
                yield event({"content" if request.chat else "text": request.text_part(sent, made)})
            sent = made
    yield event({}, reason=request.reason)
    if request.usage:
        yield event(usage=_token_usage(request))
    yield b"data: [DONE]\n\n"


def _call_part(request: TwinRequest, start: int, end: int) -> Document:
    """Return a part of the tool call; the first part names the tool."""
    function: Document = {"arguments": request.arguments_part(start, end)}
    if start or not request.call:
        return {"index": 0, "function": function}
    named = {"name": request.call[0], **function}
    return {"index": 0, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": named}


def full_reply(request: TwinRequest, model: str) -> Document:
    text = request.text_part(0, request.output)
    choice: Document = {"index": 0, "logprobs": None, "finish_reason": request.reason}
    choice |= {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
    if request.call:
        function = {"name": request.call[0], "arguments": request.call[1]}
        call = {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {**_reply_head(request, model, chunk=False), "choices": [choice], "usage": _token_usage(request)}


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
