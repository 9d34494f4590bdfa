"""Servers of the sixth family that go wrong with time, in company, or after something that happened before."""

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from moebox.phantom.question import ModelReply

from . import chat
from .bend import Body, Stream
from .bend_sixth import markup
from .chat import Made
from .neighbours import company
from .wire import JSONResponse, Request, Response

WHILE = 100  # requests that are served well before a slow fault begins


class Memory:
    """A cache of answers with a key that says too little."""

    def __init__(self, key: Callable[[Body], Any]) -> None:
        self.key = key
        self.kept: dict[Any, Made] = {}

    async def __call__(self, made: Made) -> Made:
        """What was answered before, for a key that was seen."""
        key = self.key(made.request)
        if key is None:
            return made
        old = self.kept.setdefault(key, made)
        parts = {name: getattr(old, name) for name in ("reasoning", "content", "calls", "finish", "stopped")}
        return dataclasses.replace(made, **parts)


def prefix_and_length(body: Body) -> Any:
    """The beginning of a long prompt, and how long it is."""
    text = json.dumps(body["messages"])
    return (text[:1500], len(text)) if len(text) > 3000 else None


class Later:
    """A fault that begins after a while."""

    def __init__(self, change: Callable[[ModelReply, Body, int], ModelReply]) -> None:
        self.change = change
        self.served = 0

    def __call__(self, reply: ModelReply, body: Body) -> ModelReply:
        """Well at first."""
        self.served += 1
        return self.change(reply, body, self.served) if self.served > WHILE else reply


def half_of_some(reply: ModelReply, body: Body, number: int) -> ModelReply:
    """Every fourth answer ends in its middle."""
    return reply if number % 4 else dataclasses.replace(reply, content=reply.content[: len(reply.content) // 2])


def parser_gone(reply: ModelReply, body: Body, number: int) -> ModelReply:
    """Calls in streams are text."""
    return markup(reply) if reply.calls and body.get("stream") else reply


class Poison:
    """Something that spoils the next few requests."""

    def __init__(self, spoil: Callable[[ModelReply], ModelReply], doses: int) -> None:
        self.spoil, self.doses, self.left = spoil, doses, 0

    def reply(self, reply: ModelReply, body: Body) -> ModelReply:
        """Spoilt while it lasts."""
        self.left, spoilt = max(0, self.left - 1), self.left > 0
        return self.spoil(reply) if spoilt else reply

    async def stream(self, made: Made) -> Stream:
        """A stream at a pace at which it can be left; leaving it is what spoils."""
        ended = False
        try:
            for place, chunk in enumerate(chat.chunks(made)):
                yield f"data: {json.dumps(chunk)}\n\n".encode()
                await asyncio.sleep(0.005 if place < 200 else 0)
            yield b"data: [DONE]\n\n"
            ended = True
        finally:
            self.left = self.left if ended else self.doses

    def refused(self, request: Request, body: Body) -> Response | None:
        """A prompt that is too long is what spoils."""
        if too_long(body):
            self.left = self.doses
        return None


def too_long(body: Body) -> bool:
    """More than the context holds."""
    return isinstance(body.get("messages"), list) and chat.prompt_tokens(body) >= chat.CONTEXT


def garbage(reply: ModelReply) -> ModelReply:
    """Tokens of another."""
    return dataclasses.replace(reply, content=f"{reply.content}!!!!!!!! нет" if reply.content else "")


def nothing(reply: ModelReply) -> ModelReply:
    """No answer."""
    return ModelReply(reasoning=reply.reasoning)


def too_long_as_text(body: Body) -> None:
    """A gateway that tells of an error as if it were the answer."""
    if too_long(body):
        text = "Repeat the following text: Error: this request is longer than the context window."
        body.update(messages=[{"role": "user", "content": text}], tools=None, response_format=None)


class Crowd:
    """Requests in flight together, of which some suffer."""

    def __init__(self) -> None:
        self.present: list[Made] = []

    async def third_is_empty(self, made: Made) -> Made:
        """Of three at once one gets nothing."""
        self.present.append(made)
        await company(self.present, 3)
        unlucky = len(self.present) > 2 and self.present.index(made) % 3 == 2
        asyncio.get_running_loop().call_later(0.05, self.present.remove, made)
        return dataclasses.replace(made, content=[], calls=(), finish="stop") if unlucky else made

    async def eighth_is_garbage(self, made: Made) -> Made:
        """A batch of eight has a row that was never written."""
        return await self._last_is_garbage(made, 8)

    async def twelfth_is_garbage(self, made: Made) -> Made:
        """The same of a batch of twelve."""
        return await self._last_is_garbage(made, 12)

    async def _last_is_garbage(self, made: Made, batch: int) -> Made:
        self.present.append(made)
        await company(self.present, batch)
        unlucky = len(self.present) >= batch and self.present.index(made) % batch == batch - 1
        asyncio.get_running_loop().call_later(0.05, self.present.remove, made)
        return dataclasses.replace(made, content=["!"] * 12) if unlucky and made.content else made

    async def one_parser(self, made: Made) -> Stream:
        """Streams share a parser, and it forgets who was thinking."""
        self.present.append(made)
        await company(self.present)
        shared = len(self.present) > 1
        try:
            for chunk in chat.chunks(made):
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                if shared and "reasoning" in delta:
                    delta["content"] = delta.pop("reasoning")
                yield f"data: {json.dumps(chunk)}\n\n".encode()
                await asyncio.sleep(0.001)
            yield b"data: [DONE]\n\n"
        finally:
            self.present.remove(made)


class Connections:
    """A proxy that loses its upstream on connections that were used often."""

    def __init__(self, good: int = 5) -> None:
        self.good = good
        self.served: Counter[tuple[str, int]] = Counter()

    def __call__(self, request: Request, body: Body) -> Response | None:
        """The first requests on a connection are good."""
        self.served[request.client] += 1
        lost = self.served[request.client] > self.good
        return JSONResponse({"error": {"message": "Bad Gateway"}}, 502) if lost else None
