"""Ways for a server to go wrong, third family: what it keeps from one request to the next, and Anthropic's API."""

import asyncio
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator

from moebox.phantom.question import ModelReply

from . import chat
from .bend import Body
from .chat import Made


class Cache:
    """A prefix cache that damages what it restores: only prompts of some length are kept, by their first half."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.replies: dict[str, ModelReply] = {}

    def _hit(self, made: Made) -> bool:
        text = json.dumps(made.request["messages"])
        key = text[:1200]
        hit = len(text) > 1200 and key in self.seen
        self.seen.add(key)
        return hit

    async def first_token_lost(self, made: Made) -> Made:
        """On a hit the first token of the answer is lost."""
        return dataclasses.replace(made, content=made.content[1:]) if self._hit(made) else made

    async def bangs(self, made: Made) -> Made:
        """On a hit the cache is garbage."""
        return dataclasses.replace(made, content=["!"] * 60, calls=()) if self._hit(made) else made

    def without_the_end(self, reply: ModelReply, body: Body) -> ModelReply:
        """Prompts that differ in the last part only are taken for one another."""
        text = json.dumps(body["messages"])
        return self.replies.setdefault(text[:-150], reply) if len(text) > 1200 else reply


class Cancelled:
    """A slot that is not cleared when a client goes away."""

    def __init__(self) -> None:
        self.left: list[str] = []

    async def stream(self, made: Made) -> AsyncIterator[bytes]:
        """What a cancelled stream did not send begins the next answer."""
        left, self.left = self.left, []
        words = [*left[:5], *made.content]
        complete = False
        try:
            for chunk in chat.chunks(dataclasses.replace(made, content=words)):
                yield f"data: {json.dumps(chunk)}\n\n".encode()
                await asyncio.sleep(0.001)
            yield b"data: [DONE]\n\n"
            complete = True
        finally:
            if not complete:
                self.left = words[-5:]


class Stalls:
    """A scheduler that forgets a stream for a while."""

    def __init__(self) -> None:
        self.count = itertools.count()

    async def stream(self, made: Made) -> AsyncIterator[bytes]:
        """One stream in 25 stands still for eight seconds."""
        sent = chat.chunks(made)
        stalls = next(self.count) % 25 == 12
        for number, chunk in enumerate(sent):
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(8 if stalls and number == len(sent) // 2 else 0)
        yield b"data: [DONE]\n\n"


class Crowd:
    """A server that is right while it is alone."""

    def __init__(self) -> None:
        self.inside = 0

    async def cuts(self, made: Made) -> Made:
        """With more than four at once answers lose their last quarter."""
        self.inside += 1
        await asyncio.sleep(0.02)
        crowded = self.inside > 4
        self.inside -= 1
        return dataclasses.replace(made, content=made.content[: len(made.content) * 3 // 4]) if crowded else made


def window(all: list[Body]) -> list[Body]:
    """Of a long prompt the first words and the last half are seen."""

    def seen(turn: Body) -> Body:
        text = turn.get("content")
        if not isinstance(text, str) or len(text) < 6000:
            return turn
        return {**turn, "content": text[:100] + text[len(text) * 45 // 100 :]}

    return [seen(turn) for turn in all]


def end_turn(sent: list[Body]) -> list[Body]:
    """A streamed message with tool_use ends as a turn."""
    for event in sent:
        if event["type"] == "message_delta":
            event["delta"]["stop_reason"] = "end_turn"
    return sent


def thoughts_as_text(body: Body) -> Body:
    """Thinking comes as text."""
    blocks = [
        {"type": "text", "text": block["thinking"]} if block["type"] == "thinking" else block
        for block in body["content"]
    ]
    return {**body, "content": blocks}


def no_output_tokens(sent: list[Body]) -> list[Body]:
    """The stream counts no output."""
    for event in sent:
        if event["type"] == "message_delta":
            event["usage"]["output_tokens"] = 0
    return sent


def system_blocks_lost(body: Body) -> Body:
    """A system prompt that comes as blocks is not read."""
    return {key: value for key, value in body.items() if key != "system" or isinstance(value, str)}


def result_blocks_lost(body: Body) -> Body:
    """The content of a tool_result that comes as blocks is not read."""

    def emptied(block: Body) -> Body:
        lost = block["type"] == "tool_result" and isinstance(block.get("content"), list)
        return {**block, "content": "{}"} if lost else block

    turns = [
        {**turn, "content": [emptied(block) for block in turn["content"]]}
        if isinstance(turn["content"], list)
        else turn
        for turn in body.get("messages", ())
    ]
    return {**body, "messages": turns} if "messages" in body else body


def json_twice(sent: list[Body]) -> list[Body]:
    """The input of a tool is a string of JSON in JSON."""
    texts: dict[int, str] = {}
    kept = []
    for event in sent:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            texts[event["index"]] = texts.get(event["index"], "") + event["delta"]["partial_json"]
            continue
        if event["type"] == "content_block_stop" and event["index"] in texts:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(texts[event["index"]])}
            kept.append({"type": "content_block_delta", "index": event["index"], "delta": delta})
        kept.append(event)
    return kept
