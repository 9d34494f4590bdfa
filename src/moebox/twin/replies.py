"""Write replies, whole and streamed: OpenAI's chats and completions, and Anthropic's messages."""

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
