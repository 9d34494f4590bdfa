"""Servers that mean harm: a ladder must end with a verdict all the same."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response

from .bend import Body
from .chat import Made
from .faults import Fault

CLEARS_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>"


async def drips(made: Made) -> AsyncIterator[bytes]:
    """Comments for ever, and nothing else."""
    while True:
        yield b": still here\n\n"
        await asyncio.sleep(0.05)


def anything(request: Any, body: Body) -> Response | None:
    """Whatever comes to mind: statuses, bodies, types."""
    if not body:
        return None
    bodies: list[Any] = [None, [], {"choices": 7}, {"choices": [{"message": []}]}, {"error": {"code": []}}, "x" * 1000]
    texts = [json.dumps(random.choice(bodies)), "{" * 500, "data: [DONE]\n\n", "", "\ufeff<html>", '{"a": NaN}']
    kinds = ["application/json", "text/event-stream", "", "image/png"]
    status = random.choice([200, 200, 200, 204, 301, 400, 404, 418, 500, 502])
    return Response(random.choice(texts), status, {"content-type": random.choice(kinds)})


def shouts(request: Any, body: Body) -> Response | None:
    """Errors that try to drive a terminal."""
    return JSONResponse({"error": {"message": CLEARS_THE_SCREEN}}, 500) if body else None


HOSTILE: dict[str, Fault] = {
    "drips": Fault(stream=drips),
    "anything": Fault(gate=anything),
    "shouts": Fault(gate=shouts),
    "says-it-takes-all": Fault(limit=10**12),
}
