"""Anthropic's messages API over the same simulation: its requests as chats, its replies and streams in its own form."""

import contextlib
import json
import uuid
from collections.abc import AsyncIterator

from moebox import loose
from moebox.twin import filler
from moebox.twin.engine import TwinEngine
from moebox.twin.openai import SIMULATION_TEXT, Document
from moebox.twin.request import Json, TwinRequest


def to_chat_request(body: Json) -> Json:
    """The request in OpenAI's form; what is not there stays away and is refused where a chat's would be."""
    messages: list[object] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    messages += [_message(message) if isinstance(message, dict) else message for message in _messages(body)]
    tools = [
        {"function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in loose.get_objects(body, "tools")
    ]
    chat: Document = {key: body[key] for key in ("model", "stream", "max_tokens") if key in body}
    return {**chat, "messages": messages, "tools": tools, "tool_choice": _choice(body.get("tool_choice"))}


def _messages(body: Json) -> list[object]:
    """What is listed, whatever it is: a chat's reader refuses what is no message."""
    value = body.get("messages")
    return value if isinstance(value, list) else []


def _message(message: Json) -> Json:
    """A turn; one that holds a tool's result counts as the tool's."""
    content = message.get("content")
    if any(block.get("type") == "tool_result" for block in loose.get_objects(message, "content")):
        return {"role": "tool", "content": json.dumps(content)}
    return {"role": message.get("role"), "content": content}


def _choice(given: object) -> object:
    if not isinstance(given, dict):
        return "auto"
    kind = given.get("type")
    if kind == "tool":
        return {"function": {"name": given.get("name")}}
    return {"any": "required", "none": "none"}.get(str(kind), "auto")


def full_reply(asked: TwinRequest, model: str) -> Document:
    """A reply in one piece."""
    head = _head(asked, model)
    block: Document = {"type": "text", "text": filler.filler_text(asked.prompt, 0, asked.output)}
    if asked.call:
        block = {"type": "tool_use", "id": _id("toolu"), "name": asked.call[0], "input": json.loads(asked.call[1])}
    usage = {"input_tokens": asked.prompt_tokens, "output_tokens": asked.output}
    return {**head, "content": [block], "stop_reason": _reason(asked), "usage": usage}


async def stream_reply(engine: TwinEngine, asked: TwinRequest, model: str) -> AsyncIterator[bytes]:
    """A reply as events, each when the simulation has it."""
    yield _event("message_start", message=_head(asked, model))
    block: Document = {"type": "text", "text": ""}
    if asked.call:
        block = {"type": "tool_use", "id": _id("toolu"), "name": asked.call[0], "input": {}}
    yield _event("content_block_start", index=0, content_block=block)
    sent = 0
    async with contextlib.aclosing(engine.generate(asked.prompt_tokens, asked.output)) as stream:
        async for made in stream:
            delta = {"type": "text_delta", "text": filler.filler_text(asked.prompt, sent, made)}
            if asked.call:
                delta = {"type": "input_json_delta", "partial_json": asked.arguments_part(sent, made)}
            yield _event("content_block_delta", index=0, delta=delta)
            sent = made
    yield _event("content_block_stop", index=0)
    ended = {"stop_reason": _reason(asked), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage={"output_tokens": asked.output})
    yield _event("message_stop")


def _head(asked: TwinRequest, model: str) -> Document:
    usage = {"input_tokens": asked.prompt_tokens, "output_tokens": 0}
    head = {"id": _id("msg"), "type": "message", "role": "assistant", "model": model, "content": []}
    return {**head, "stop_reason": None, "stop_sequence": None, "usage": usage, "simulation": SIMULATION_TEXT}


def _reason(asked: TwinRequest) -> str:
    return {"tool_calls": "tool_use", "length": "max_tokens"}.get(asked.reason, "end_turn")


def _id(kind: str) -> str:
    return f"{kind}_twin_{uuid.uuid4().hex}"


def _event(kind: str, **data: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data}, separators=(',', ':'))}\n\n".encode()
