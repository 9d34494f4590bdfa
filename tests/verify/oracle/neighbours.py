"""Requests that are in flight together, and servers that mix them up."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from . import chat
from .bend import Stream, content
from .chat import Made

ALONE_S = 0.25  # that a request waits for others before it is taken to be alone


async def company(present: Sequence[Any], many: int = 2) -> None:
    """Wait until so many are there: on a busy machine requests that were sent together come one by one."""
    for _ in range(round(ALONE_S / 0.01)):
        if len(present) >= many:
            return
        await asyncio.sleep(0.01)


class Neighbours:
    """Requests that are in flight together, for faults that mix them up."""

    def __init__(self) -> None:
        self.waiting: list[Made] = []
        self.streams: list[list[bytes]] = []

    async def swapped(self, made: Made) -> Made:
        """Wait a moment for company; then answer with the neighbour's words."""
        self.waiting.append(made)
        await company(self.waiting)
        others = [other for other in self.waiting if other is not made]
        asyncio.get_running_loop().call_later(0.05, self.waiting.remove, made)
        return dataclasses.replace(made, content=others[-1].content) if others else made

    async def lost(self, made: Made) -> Made:
        """Among many, every fourth is dropped."""
        self.waiting.append(made)
        await company(self.waiting, 4)
        try:
            if len(self.waiting) > 3 and self.waiting.index(made) % 4 == 3:
                raise chat.Refused(500, "lost")
        finally:
            asyncio.get_running_loop().call_later(0.05, self.waiting.remove, made)
        return made

    async def words_mixed(self, made: Made) -> Stream:
        """Streams of proper form in which now and then a word of the neighbour stands instead of the own one."""
        mine = [json.dumps(chunk) for chunk in chat.chunks(made)]
        self.streams.append([word.encode() for word in made.content])
        own = self.streams[-1]
        await company(self.streams)
        others = [other for other in self.streams if other is not own and other]
        for index, line in enumerate(mine):
            chunk = json.loads(line)
            if others and content(chunk) and index % 9 == 4:
                chunk["choices"][0]["delta"]["content"] = others[0][min(index, len(others[0]) - 1)].decode()
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, self.streams.remove, own)
        yield b"data: [DONE]\n\n"

    async def mixed(self, made: Made) -> Stream:
        """A stream that now and then gives a chunk to its neighbour."""
        mine: list[bytes] = []
        self.streams.append(mine)
        await company(self.streams)
        try:
            for index, chunk in enumerate(chat.chunks(made)):
                line = f"data: {json.dumps(chunk)}\n\n".encode()
                others = [other for other in self.streams if other is not mine]
                if others and index % 7 == 5 and content(chunk):
                    others[0].append(line)
                else:
                    yield line
                while mine:
                    yield mine.pop()
                await asyncio.sleep(0.001)
        finally:
            self.streams.remove(mine)
        yield b"data: [DONE]\n\n"
