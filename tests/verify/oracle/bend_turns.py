"""Ways for a server to go wrong, fourth family: conversations, neighbours and Anthropic's API."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

from . import chat
from .bend import Body, error
from .chat import Made
from .wire import Response


def late_system(all: list[Body]) -> list[Body]:
    """System messages after the first turn are left out."""
    return [turn for place, turn in enumerate(all) if place == 0 or turn["role"] != "system"]


def _turns(body: Body) -> list[Body]:
    listed = body.get("messages")
    return [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []


def must_alternate(request: Any, body: Body) -> Response | None:
    """Two turns of the user in a row are refused."""
    roles = [turn.get("role") for turn in _turns(body)]
    twice = any(a == b == "user" for a, b in itertools.pairwise(roles))
    return error(400, "Conversation roles must alternate user/assistant/user/assistant/...") if twice else None


def no_developer(request: Any, body: Body) -> Response | None:
    """The role `developer` breaks the template."""
    new = any(turn.get("role") == "developer" for turn in _turns(body))
    return error(500, "jinja2.exceptions.TemplateError: Unexpected message role.") if new else None


def no_assistant_parts(request: Any, body: Body) -> Response | None:
    """An assistant's turn that comes as parts breaks the template."""
    parts = any(turn.get("role") == "assistant" and isinstance(turn.get("content"), list) for turn in _turns(body))
    return error(500, "can only concatenate str (not list) to str") if parts else None


def no_empty_turn(request: Any, body: Body) -> Response | None:
    """An empty turn of the assistant breaks the template."""
    empty = any(turn.get("role") == "assistant" and turn.get("content") == "" for turn in _turns(body))
    return error(500, "Invalid assistant message: content is empty") if empty else None


class Crowd:
    """A server whose words depend on how many are served at once."""

    def __init__(self) -> None:
        self.inside = 0

    async def changes(self, made: Made) -> Made:
        """Among more than three, one word of an answer of some length is another."""
        self.inside += 1
        await asyncio.sleep(0.02)
        crowded = self.inside > 3
        self.inside -= 1
        if not crowded or len(made.content) < 6:
            return made
        return dataclasses.replace(made, content=[*made.content[:3], " perhaps", *made.content[4:]])


class Cancels:
    """A server that ends the streams of others with one that is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def stream(self, made: Made) -> AsyncIterator[bytes]:
        """When a client goes away, all streams of that moment end."""
        before, complete = self.cancelled, False
        *sent, last = [chunk for chunk in chat.chunks(made) if chunk["choices"]]
        try:
            for chunk in sent:
                if self.cancelled > before:
                    break
                yield f"data: {json.dumps(chunk)}\n\n".encode()
                await asyncio.sleep(0.001)
            counts = [chunk for chunk in chat.chunks(made) if not chunk["choices"]]
            for chunk in [last, *counts]:
                yield f"data: {json.dumps(chunk)}\n\n".encode()
            yield b"data: [DONE]\n\n"
            complete = True
        finally:
            self.cancelled += not complete


def no_thinking(body: Body) -> Body:
    """Whole messages have no thinking."""
    return {**body, "content": [block for block in body["content"] if block["type"] != "thinking"]}


def unsigned(body: Body) -> Body:
    """Thinking has no signature."""
    for block in body["content"]:
        block.pop("signature", None)
    return body


def unsigned_events(sent: list[Body]) -> list[Body]:
    """The same in a stream."""
    for event in sent:
        if event["type"] == "content_block_start":
            event["content_block"].pop("signature", None)
    return sent


def stop_unsaid(body: Body) -> Body:
    """A stop sequence ends a message as if it were complete."""
    stopped = body["stop_reason"] == "stop_sequence"
    return {**body, "stop_reason": "end_turn", "stop_sequence": None} if stopped else body


def stop_unsaid_events(sent: list[Body]) -> list[Body]:
    """The same in a stream."""
    for event in sent:
        if event["type"] == "message_delta":
            event["delta"] = stop_unsaid(event["delta"])
    return sent


def no_input_tokens(body: Body) -> Body:
    """The prompt is not counted."""
    return {**body, "usage": {**body["usage"], "input_tokens": 0}}


def first_word_twice(sent: list[Body]) -> list[Body]:
    """A block begins with the word that its first delta brings again."""
    for event, after in itertools.pairwise(sent):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "text":
            event["content_block"]["text"] = after.get("delta", {}).get("text", "")
    return sent


def no_limit(body: Body) -> Body:
    """max_tokens is not read."""
    return {**body, "max_tokens": 4096} if "messages" in body else body


def no_tool_choice(body: Body) -> Body:
    """tool_choice is not read."""
    return {key: value for key, value in body.items() if key != "tool_choice"}
