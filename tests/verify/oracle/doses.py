"""Servers whose faults grow with the dose: with length, turns, company or heat. Asked again, they are often right."""

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable

from moebox.phantom.question import ModelReply

from .bend import Body
from .chat import Made
from .faults import Fault


class Dose:
    """Spoils answers with a chance that depends on the request and the reply; the same run meets the same faults."""

    def __init__(self, chance: Callable[[str, Body], float]) -> None:
        self.chance, self.asked = chance, Counter[str]()

    def __call__(self, reply: ModelReply, body: Body) -> ModelReply:
        key = json.dumps(body, sort_keys=True)
        self.asked[key] = self.asked[key] % 4 + 1
        drawn = random.Random(f"{key} {self.asked[key]}").random()
        if not reply.content or drawn >= self.chance(reply.content, body):
            return reply
        return dataclasses.replace(reply, content=reply.content[: len(reply.content) // 3])


class Crowd:
    """Cuts answers the more often the more requests are open."""

    def __init__(self) -> None:
        self.open = 0

    async def __call__(self, made: Made) -> Made:
        self.open += 1
        await asyncio.sleep(0.02)
        chance = (self.open - 1) / 14
        await asyncio.sleep(0.02)
        self.open -= 1
        spoilt = random.Random(json.dumps(made.request)).random() < chance
        return dataclasses.replace(made, content=made.content[:-1]) if spoilt else made


DOSES: dict[str, Fault] = {
    "words-lost-with-length": Fault(check="trends", reply=Dose(lambda text, body: len(text.split()) / 150)),
    "forgets-over-turns": Fault(check="trends", reply=Dose(lambda text, body: len(body["messages"]) / 50)),
    "wrong-in-a-crowd": Fault(check="trends", among=Crowd()),
    "wrong-when-warm": Fault(check="trends", reply=Dose(lambda text, body: 0.8 * min(1, body.get("temperature") or 0))),
}
