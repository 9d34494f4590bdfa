"""The oracle as an engine: a program that takes llama-server's words, loads, logs, serves, or dies of what it is given.

-c above 8192     dies like an engine without memory
-ub, -c           words a second: larger is faster, by factors that no busy machine hides
-ctk q4_0         makes it add wrongly
ORACLE_HOLDS      (environment) PATH,WHICH,N: leaves PATH and waits until PATH.go is there, once: before it listens when
                  WHICH is `start`, else in its Nth chat request, of those with max_tokens WHICH or of `any`
ORACLE_OOM        (environment) PATH,CONTEXT: with -c CONTEXT the kernel kills it, and counts so in PATH
ORACLE_DRIFT      (environment) PATH: counts its starts there; at the first one the machine is four times slower
ORACLE_FAILS      (environment) WHICH,N,TEXT: HTTP 500 and TEXT to the Nth chat request with max_tokens WHICH
ORACLE_TOO_LONG   (environment) the HTTP status of a prompt beyond the context, 400 without it
--spec-type       guesses ahead: faster, with counters in /metrics; with `ngram-mod` it also says other things
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from moebox.flows.pace import TOKENS
from moebox.phantom.task import Reply

from . import bend, chat

MOST_CONTEXT = 8192
WORD_S = 0.008  # at -ub 512 and -c 2048


def main() -> None:
    """Serve until killed."""
    words = argparse.ArgumentParser(allow_abbrev=False)
    for name, default in (("-c", 4096), ("-ub", 512), ("--port", 0)):
        words.add_argument(name, type=int, default=default, dest=name.strip("-"))
    for name in ("-ctk", "-ctv"):
        words.add_argument(name, default="", dest=name.strip("-"))
    words.add_argument("--alias", default="oracle-k2")
    words.add_argument("--spec-type", default="")
    given, _ = words.parse_known_args()
    print("load_tensors: loading model tensors", flush=True)
    if given.c > MOST_CONTEXT:
        print("alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory", flush=True)
        sys.exit(1)
    if marker := os.environ.get("ORACLE_KILLS"):
        kill_parent_once(marker, given.c)
    path, _, context = os.environ.get("ORACLE_OOM", "").partition(",")
    if context == str(given.c):
        Path(path).write_text("oom_kill 1\n")
        os.kill(os.getpid(), signal.SIGKILL)
    chat.CONTEXT, chat.TOO_LONG = given.c, int(os.environ.get("ORACLE_TOO_LONG", "400"))
    holds = Holds(os.environ.get("ORACLE_HOLDS", ""))
    while holds.held("start"):
        time.sleep(0.02)
    print("srv  llama_server: model loaded", flush=True)
    uvicorn.run(app(given, holds), host="127.0.0.1", port=given.port, log_level="warning")


def kill_parent_once(marker: str, context: int) -> None:
    """For the test of a climb that is killed: leave a mark when this context is reached for the first time."""
    path, _, wanted = marker.partition(":")
    if context == int(wanted) and not os.path.exists(path):
        with open(path, "w") as file:
            file.write(str(os.getpid()))


def drifted() -> int:
    """How much slower the machine is at the first start."""
    path = os.environ.get("ORACLE_DRIFT")
    if not path:
        return 1
    with open(path, "a+") as file:
        file.write("started\n")
        file.seek(0)
        return 4 if len(file.readlines()) == 1 else 1


class Holds:
    """Makes one request wait for a test, so that what the test does to the process happens in the middle of it."""

    def __init__(self, spec: str) -> None:
        self.path, self.which, number = spec.split(",") if spec else ("", "", "0")
        self.left = int(number)
        self.holding = False

    def held(self, *which: object) -> bool:
        """Whether to wait, of something that is any of `which`; asked until it is False."""
        if self.holding:
            self.holding = not os.path.exists(f"{self.path}.go")
        elif self.path and self.which in map(str, which) and self.left:
            self.left -= 1
            if not self.left and not os.path.exists(self.path):
                self.holding = True
                open(self.path, "w").close()
        return self.holding


def app(given: argparse.Namespace, holds: Holds) -> Starlette:
    """The routes of a llama-server."""
    made = itertools.count()
    asked = itertools.count(1)
    which, number, says = (*os.environ.get("ORACLE_FAILS", "").split(","), "", "")[:3]
    delay = WORD_S * 512 / given.ub * 2048 / given.c / (2 if given.spec_type else 1) * drifted()

    def bent(reply: Reply, body: bend.Body) -> Reply:
        if given.ctk == "q4_0" and reply.content.isdigit():
            return dataclasses.replace(reply, content=str(int(reply.content) + 1))
        if given.spec_type == "ngram-mod" and reply.content:
            return dataclasses.replace(reply, content=reply.content[::-1])
        return reply

    async def completions(request: Request) -> Response:
        try:
            body = await request.json()
            answer = chat.answer(body, bent)
        except ValueError:
            return JSONResponse({"error": {"message": "not JSON"}}, 400)
        except chat.Refused as problem:
            return JSONResponse({"error": {"message": str(problem)}}, problem.status)
        next(made)
        if str(body.get("max_tokens")) == which and next(asked) == int(number):
            return JSONResponse({"error": {"message": says}}, 500)
        wait = holds.held("any", body.get("max_tokens"))
        if not body.get("stream"):
            while wait and holds.held():  # noqa: ASYNC110  (a file is what another process can leave)
                await asyncio.sleep(0.02)
            return JSONResponse(chat.whole(answer))
        room = body.get("max_tokens") or 0
        slow = {PACED: 1.0, TOKENS: 0.2}.get(room, 0)  # only measurements are paced: ladders stay quick

        async def events() -> AsyncIterator[bytes]:
            for chunk in chat.chunks(answer):
                yield f"data: {json.dumps(chunk)}\n\n".encode()
                while wait and holds.held():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                await asyncio.sleep(delay * slow)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def models(request: Request) -> Response:
        listed = {"id": given.alias, "owned_by": "llamacpp", "meta": {"n_ctx": given.c}}
        return JSONResponse({"object": "list", "data": [listed]})

    async def tokenize(request: Request) -> Response:
        body = await request.json()
        if "messages" in body:
            return JSONResponse({"count": chat.prompt_tokens(body)})
        text = str(body.get("prompt") or body.get("content"))
        return JSONResponse({"tokens": [hash(piece) % 65536 for piece in chat.tokens(text)]})

    async def metrics(request: Request) -> Response:
        count = next(made) if given.spec_type else 0
        counts = {"draft": 100 * count, "accepted": 60 * count}
        lines = [f"llamacpp:spec_decode_num_{name}_tokens_total {number}\n" for name, number in counts.items()]
        return PlainTextResponse("".join([*lines, f"oracle:word_seconds {delay}\n"]))

    async def props(request: Request) -> Response:
        return JSONResponse({"total_slots": 1, "default_generation_settings": {"n_ctx": given.c}})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/props", props),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/chat/completions", completions, methods=["POST"]),
        ]
    )


PACED = 24  # max_tokens of a measurement's streams in the tests

if __name__ == "__main__":
    main()
