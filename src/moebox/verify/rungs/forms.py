"""Requests in the forms that clients send them: settings spelled out, nulls, tools with fields left out or added."""

from collections.abc import Mapping

from moebox.verify.ask import REFUSALS, Asker, Failed, said
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Warned
from moebox.verify.rungs.turns import HELLO

_NONE = {"type": "object", "properties": {}}


def _tools(**function: object) -> dict[str, object]:
    return {"tools": [{"type": "function", "function": {"name": "refresh_all", **function}}]}


FIELDS: Mapping[str, Mapping[str, object]] = {
    "settings at their defaults (top_p 1, n 1, penalties 0)": {
        "top_p": 1,
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    },
    "what SDKs add (user, store, service_tier)": {"user": "ann", "store": False, "service_tier": "auto"},
    "settings that are null (stop, top_p, n)": {"stop": None, "top_p": None, "n": None},
    "a tool without parameters": _tools(description="Refresh everything."),
    "a tool without a description": _tools(parameters=_NONE),
    "a tool with strict": _tools(description="Refresh everything.", strict=True, parameters=_NONE),
}


async def requests(ask: Asker) -> str | Warned:
    """Each is documented, and SDKs send it unasked: it is taken. A polite refusal is said."""
    refused: list[str] = []
    for number, (title, fields) in enumerate(FIELDS.items()):
        ask.trial = (number + 1, len(FIELDS))
        stream = number % 2 == 1
        exchange = await ask.send(ask.body([HELLO], max_tokens=8, stream=stream or None) | fields)
        if exchange.status in REFUSALS:
            refused.append(f"{title} (HTTP {exchange.status}{said(exchange)})")
            continue
        try:
            ask.read(exchange, stream=stream, odd=True)
        except Failed as problem:
            ask.tally.add("prompt" + STREAMED * stream, f"{title}: {problem}")
    return Warned(f"refused: {'; '.join(refused)}") if refused else f"{len(FIELDS)} forms of requests taken"
