"""Hostile servers: a run must end with a verdict all the same."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from . import chat
from .bend import Body
from .chat import Made
from .faults import Fault
from .wire import JSONResponse, Response

_RANDOM = ("anything", "nested", "later_and_later", "any_counts", "any_listing")
_PICKS = {name: random.Random(name).choice for name in _RANDOM}  # one server's do not depend on another's
CLEARS_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>"


async def drips(made: Made) -> AsyncIterator[bytes]:
    """Comments for ever, and nothing else."""
    while True:
        yield b": still here\n\n"
        await asyncio.sleep(0.05)


def anything(request: Any, body: Body) -> Response | None:
    """Whatever comes to mind: statuses, bodies, types."""
    pick = _PICKS["anything"]
    if not body:
        return None
    bodies: list[Any] = [None, [], {"choices": 7}, {"choices": [{"message": []}]}, {"error": {"code": []}}, "x" * 1000]
    texts = [
        json.dumps(pick(bodies)),
        "{" * 500,
        "data: [DONE]\n\n",
        "",
        "\ufeff<html>",
        '{"a": NaN}',
    ]
    kinds = ["application/json", "text/event-stream", "", "image/png"]
    status = pick([200, 200, 200, 204, 301, 400, 404, 418, 500, 502])
    return Response(pick(texts), status, {"content-type": pick(kinds)})


def shouts(request: Any, body: Body) -> Response | None:
    """Errors that try to drive a terminal."""
    return JSONResponse({"error": {"message": CLEARS_THE_SCREEN}}, 500) if body else None


def nested(request: Any, body: Body) -> Response | None:
    """Errors and answers that are nested too deeply for a parser."""
    pick = _PICKS["nested"]
    text = '{"error": ' * 3000 + "[" * 90_000
    return Response(text, pick([200, 400, 500]), {"content-type": "application/json"}) if body else None


def nested_arguments(whole: Body, made: Made) -> Body:
    """Arguments and texts that are nested too deeply."""
    output = whole["choices"][0]["message"]
    for call in output.get("tool_calls", ()):
        call["function"]["arguments"] = "[" * 50_000
    return whole if output.get("tool_calls") else {**whole, "choices": [_saying(whole, "[" * 50_000)]}


def _saying(whole: Body, text: str) -> Body:
    choice = whole["choices"][0]
    return {**choice, "message": {**choice["message"], "content": text}}


async def slow_words(made: Made) -> AsyncIterator[bytes]:
    """A word in a second, without end."""
    for chunk in itertools.cycle(chat.chunks(made)[1:2]):
        yield f"data: {json.dumps(chunk)}\n\n".encode()
        await asyncio.sleep(1)


async def a_second_late(made: Made) -> Made:
    """Every answer takes as long as it may."""
    await asyncio.sleep(1.5)
    return made


def later_and_later(request: Any, body: Body) -> Response | None:
    """Never now, and always another time."""
    pick = _PICKS["later_and_later"]
    after = pick(["3600", "-1", "nan", "inf", "Wed, 21 Oct 2099 07:28:00 GMT", ""])
    return JSONResponse({"error": {"message": "later"}}, pick([429, 503]), {"retry-after": after})


def elsewhere(request: Any, body: Body) -> Response | None:
    """Sent from one place to the next."""
    return Response("", 307, {"location": request.url})


def any_counts(whole: Body, made: Made) -> Body:
    """Counts of tokens that are no counts."""
    pick = _PICKS["any_counts"]
    numbers: list[Any] = [-1, 0, 10**30, 1.5, "7", None, True, [], {}, float("1e308")]
    keys = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details")
    return {**whole, "usage": {key: pick(numbers) for key in keys}}


def any_listing(body: Body) -> Body:
    """A listing whose limit is anything."""
    pick = _PICKS["any_listing"]
    limits: list[Any] = [0, -5, 1, 3, 1.5, "131072", None, [], {"n_ctx": 1}, 10**18, True]
    return {
        **body,
        "data": [
            {
                **body["data"][0],
                "max_model_len": pick(limits),
                "meta": pick(limits),
            }
        ],
    }


def endless(whole: Body) -> Body:
    """Megabytes of the same."""
    whole["choices"][0]["message"]["content"] = "ha " * 300_000
    return whole


HOSTILE: dict[str, Fault] = {
    "drips": Fault(stream=drips),
    "anything": Fault(gate=anything),
    "shouts": Fault(gate=shouts),
    "says-it-takes-all": Fault(limit=10**12),
    "says-it-takes-little": Fault(limit=3),
    "says-any-limit": Fault(listed=any_listing),
    "nested": Fault(gate=nested),
    "nested-arguments": Fault(whole=nested_arguments),
    "slow-words": Fault(stream=slow_words),
    "slow-answers": Fault(among=a_second_late),
    "later-and-later": Fault(gate=later_and_later),
    "elsewhere": Fault(gate=elsewhere),
    "any-counts": Fault(whole=any_counts),
    "endless-text": Fault(whole=lambda whole, made: endless(whole)),
}
