"""Anthropic's messages API over the same simulation: read its requests as chats, write its replies and streams."""

import contextlib
import json
import uuid
from collections.abc import AsyncIterator

from moebox import loose
from moebox.loose import Document, Json
from moebox.twin.engine import TwinEngine
from moebox.twin.openai import SIMULATION_TEXT
from moebox.twin.request import TwinRequest


def to_chat_request(body: Json) -> Json:
    """Translate a request into OpenAI's format. Invalid parts are passed on, for the chat parser to refuse."""
    messages: list[object] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    given = body.get("messages")
    for message in given if isinstance(given, list) else []:
        if any(block.get("type") == "tool_result" for block in loose.get_objects(message, "content")):
            messages.append({"role": "tool", "content": json.dumps(message["content"])})
        elif isinstance(message, dict):
            messages.append({"role": message.get("role"), "content": message.get("content")})
        else:
            messages.append(message)
    tools = [
        {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in loose.get_objects(body, "tools")
    ]
    choice = loose.get_object(body, "tool_choice")
    chosen: object = {"any": "required", "none": "none"}.get(str(choice.get("type")), "auto")
    if choice.get("type") == "tool":
        chosen = {"function": {"name": choice.get("name")}}
    chat: Document = {key: body[key] for key in ("model", "stream", "max_tokens") if key in body}
    return {**chat, "messages": messages, "tools": tools, "tool_choice": chosen}


def full_reply(request: TwinRequest, model: str) -> Document:
    block: Document = {"type": "text", "text": request.text_part(0, request.output)}
    if request.call:
        name, arguments = request.call
        block = {"type": "tool_use", "id": _new_id("toolu"), "name": name, "input": json.loads(arguments)}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": request.output}
    return _reply_head(request, model) | {"content": [block], "stop_reason": _stop_reason(request), "usage": usage}


async def stream_reply(engine: TwinEngine, request: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """Yield server-sent events, each when the simulation has made its tokens."""
    yield _sse_event("message_start", message=_reply_head(request, model))
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


def _reply_head(request: TwinRequest, model: str) -> Document:
    head: Document = {"id": _new_id("msg"), "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": 0}
    return head | {"stop_reason": None, "stop_sequence": None, "usage": usage, "simulation": SIMULATION_TEXT}


def _stop_reason(request: TwinRequest) -> str:
    return {"tool_calls": "tool_use", "length": "max_tokens"}.get(request.reason, "end_turn")


def _new_id(kind: str) -> str:
    return f"{kind}_twin_{uuid.uuid4().hex}"


def _sse_event(kind: str, **data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, separators=(',', ':'))}\n\n".encode()
