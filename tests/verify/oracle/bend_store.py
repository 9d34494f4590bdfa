"""A KV store that moves prefixes out of the cache and brings them back, rightly or damaged."""

import json
import re
from collections import OrderedDict

from .bend import Body

BLOCK = 48  # characters
IN_CACHE = 2  # conversations that the first tier holds; others come from the store
MOVED = 600  # characters that a prompt must have to be moved at all


class Store:
    """Prefixes by their first code or tool, kept as blocks of text; `damage` changes what is restored."""

    def __init__(self, damage: str) -> None:
        self.damage = damage
        self.cache: OrderedDict[str, list[str]] = OrderedDict()
        self.stored: OrderedDict[str, list[str]] = OrderedDict()
        self.hits = 0

    def request(self, body: Body) -> Body:
        """The request as the model sees it: its prefix may have come from the store."""
        if not isinstance(body.get("messages"), list):
            return body  # to be refused as it is
        messages, tools = body["messages"], body.get("tools") or []
        text = messages[-1].get("content")
        if messages[0]["role"] == "system" or not isinstance(text, str):
            return body
        if tools and self.damage == "tools":
            key = json.dumps(tools)
            known = key in self.stored
            self.stored[key] = []
            return {**body, "tools": []} if known and len(self.stored) > IN_CACHE else body
        prefix, mark, question = text.rpartition("\n\n")
        code = re.search(r"code for the \w+ is (\w+)", prefix)
        if len(text) < MOVED or not mark or not code:
            return body
        restored = self.restore(code[1], [prefix[at : at + BLOCK] for at in range(0, len(prefix), BLOCK)])
        return {**body, "messages": [*messages[:-1], {**messages[-1], "content": f"{''.join(restored)}\n\n{question}"}]}

    def restore(self, key: str, blocks: list[str]) -> list[str]:
        """The prefix's blocks: computed, from the cache, or from the store if others took its place meanwhile."""
        found = self.cache.get(key) or blocks
        if key in self.stored and key not in self.cache:
            found = self.damaged(key, self.stored[key])
        self.stored.setdefault(key, blocks)
        self.cache[key] = self.cache.pop(key, found)
        while len(self.cache) > IN_CACHE:
            self.cache.popitem(last=False)
        return found if self.damage else blocks  # one that works returns what it was given

    def damaged(self, key: str, blocks: list[str]) -> list[str]:
        """Blocks as a broken connector returns them."""
        self.hits += 1
        at = 1 + 5 * self.hits % (len(blocks) - 2)
        others = [each for name, each in self.stored.items() if name != key and len(each) == len(blocks)]
        if self.damage == "swap":  # two blocks of one conversation
            return [*blocks[:at], blocks[at + 1], blocks[at], *blocks[at + 2 :]]
        if self.damage == "old" and others:  # a block that another conversation had in this place before
            half = len(blocks) // 2
            return [*blocks[:half], *others[0][half:]]
        if self.damage == "another" and others:
            return others[-1]
        if self.damage == "hole":
            return [*blocks[:at], "\n", *blocks[at + 1 :]]
        return blocks
