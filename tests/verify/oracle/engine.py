"""The oracle as an engine: a program that takes llama-server's words, loads, logs, serves, or dies of what it is given.

-c above 8192     dies like an engine without memory
-ub, -c           words a second: larger is faster, by factors that no busy machine hides
-ctk q4_0         makes it add wrongly, twice as fast
-t                2 threads are the fastest, 1 and 4 take half as long again
MOEBOX_ORACLE_HOLDS  (environment) PATH,WHICH,N: leaves PATH and waits until PATH.go is there, once: before it
                  listens when WHICH is `start`, else in its Nth chat request, of those with max_tokens WHICH, or `any`
MOEBOX_ORACLE_OOM  (environment) PATH,CONTEXT: with -c CONTEXT the kernel kills it, and counts so in PATH
MOEBOX_ORACLE_DRIFT  (environment) PATH: counts its starts there; at the first one the machine is four times slower
MOEBOX_ORACLE_FAILS  (environment) WHICH,N,TEXT: HTTP 500 and TEXT to the Nth chat request with max_tokens WHICH
MOEBOX_ORACLE_TOO_LONG  (environment) the HTTP status of a prompt beyond the context, 400 without it
--spec-type       guesses ahead: faster, with counters in /metrics; with `ngram-mod` it also says other things
"""

import argparse
import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moebox.phantom.question import ModelReply

from . import chat

if TYPE_CHECKING:
    from .bend import Body

MOST_CONTEXT = 8192
WORD_S = 0.008  # at -ub 512 and -c 2048


def main() -> None:
    """Serve until killed."""
    words = argparse.ArgumentParser(allow_abbrev=False)
    for name, default in (("-c", 4096), ("-ub", 512), ("-t", 3), ("--port", 0)):
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
    if marker := os.environ.get("MOEBOX_ORACLE_KILLS"):
        kill_parent_once(marker, given.c)
    path, _, context = os.environ.get("MOEBOX_ORACLE_OOM", "").partition(",")
    if context == str(given.c):
        Path(path).write_text("oom_kill 1\n")
        os.kill(os.getpid(), signal.SIGKILL)
    chat.CONTEXT, chat.TOO_LONG = given.c, int(os.environ.get("MOEBOX_ORACLE_TOO_LONG", "400"))
    holds = Holds(os.environ.get("MOEBOX_ORACLE_HOLDS", ""))
    while holds.held("start"):
        time.sleep(0.02)
    print("srv  llama_server: model loaded", flush=True)
    Server(("127.0.0.1", given.port), routes(given, holds)).serve_forever(0.05)


def kill_parent_once(marker: str, context: int) -> None:
    """For the test of a climb that is killed: leave a mark when this context is reached for the first time."""
    path, _, wanted = marker.partition(":")
    if context == int(wanted) and not os.path.exists(path):
        with open(path, "w") as file:
            file.write(str(os.getpid()))


def drifted() -> int:
    """How much slower the machine is at the first start."""
    path = os.environ.get("MOEBOX_ORACLE_DRIFT")
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


class Server(ThreadingHTTPServer):
    """Every connection in a thread of its own; of the standard library, since it is started some hundred times."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], routes: dict[str, "Answer"]) -> None:
        super().__init__(address, Connection)
        self.routes = routes

    def handle_error(self, *_: object) -> None:
        """A client that hung up; the log is an engine's, and no engine writes of that."""


class Connection(BaseHTTPRequestHandler):
    """Requests one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, body: bytes) -> None:
        route = self.server.routes.get(self.path)
        try:
            route(self, body) if route else self.whole("Not Found", 404)
        except OSError:
            self.close_connection = True  # the client hung up
        except Exception:  # invalid requests are answered, as every server's framework does
            self.whole("Internal Server Error", 500)

    def whole(self, document: object, status: int = 200) -> None:
        """A reply in one piece: text as it is, all else as JSON."""
        text = isinstance(document, str)
        raw = (str(document) if text else json.dumps(document, ensure_ascii=False)).encode()
        self.begin(status, "text/plain" if text else "application/json", {"Content-Length": str(len(raw))})
        self.wfile.write(raw)

    def begin(self, status: int, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | more).items():
            self.send_header(name, value)
        self.end_headers()

    def piece(self, text: str) -> None:
        raw = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def log_message(self, *_: object) -> None:
        pass


Answer = Callable[[Connection, bytes], None]


def routes(given: argparse.Namespace, holds: Holds) -> dict[str, Answer]:
    """The routes of a llama-server."""
    made = itertools.count()
    asked = itertools.count(1)
    which, number, says = (*os.environ.get("MOEBOX_ORACLE_FAILS", "").split(","), "", "")[:3]
    delay = WORD_S * 512 / given.ub * 2048 / given.c / (2 if given.spec_type else 1) * drifted()
    delay *= {1: 1.5, 4: 1.5, 2: 0.8}.get(given.t, 1.0) * (0.5 if given.ctk == "q4_0" else 1.0)

    def bent(reply: ModelReply, body: "Body") -> ModelReply:
        if given.ctk == "q4_0" and reply.content.isdigit():
            return dataclasses.replace(reply, content=str(int(reply.content) + 1))
        if given.spec_type == "ngram-mod" and reply.content:
            return dataclasses.replace(reply, content=reply.content[::-1])
        return reply

    def completions(peer: Connection, raw: bytes) -> None:
        try:
            body = json.loads(raw)
            if (body.get("n") or 1) > 1:
                raise chat.Refused(400, "n above 1 is not supported")
            answer = chat.answer(body, bent)
        except ValueError:
            peer.whole({"error": {"message": "not JSON"}}, 400)
            return
        except chat.Refused as problem:
            peer.whole({"error": {"message": str(problem)}}, problem.status)
            return
        next(made)
        if str(body.get("max_tokens")) == which and next(asked) == int(number):
            peer.whole({"error": {"message": says}}, 500)
            return
        wait = holds.held("any", body.get("max_tokens"))
        if body.get("stream"):
            stream(peer, answer, body.get("max_tokens") or 0, wait)
            return
        while wait and holds.held():
            time.sleep(0.02)
        peer.whole(chat.whole(answer))

    def stream(peer: Connection, answer: chat.Made, room: int, wait: bool) -> None:
        slow = delay * {PACED: 1.0, TOKENS: 0.2}.get(room, 0)  # only measurements are paced: checks stay quick
        peer.begin(200, "text/event-stream", {"Transfer-Encoding": "chunked"})
        for chunk in chat.chunks(answer):
            peer.piece(f"data: {json.dumps(chunk)}\n\n")
            while wait and holds.held():
                time.sleep(0.02)
            if slow:
                time.sleep(slow)
        peer.piece("data: [DONE]\n\n")
        peer.piece("")

    def models(peer: Connection, _: bytes) -> None:
        listed = {"id": given.alias, "owned_by": "llamacpp", "meta": {"n_ctx": given.c}}
        peer.whole({"object": "list", "data": [listed]})

    def tokenize(peer: Connection, raw: bytes) -> None:
        body: dict[str, Any] = json.loads(raw)
        if "messages" in body:
            peer.whole({"count": chat.prompt_tokens(body)})
            return
        text = str(body.get("prompt") or body.get("content"))
        peer.whole({"tokens": [hash(piece) % 65536 for piece in chat.tokens(text)]})

    def metrics(peer: Connection, _: bytes) -> None:
        count = next(made) if given.spec_type else 0
        counts = {"draft": 100 * count, "accepted": 60 * count}
        lines = [f"llamacpp:spec_decode_num_{name}_tokens_total {number}\n" for name, number in counts.items()]
        peer.whole("".join([*lines, f"oracle:word_seconds {delay}\n"]))

    def props(peer: Connection, _: bytes) -> None:
        peer.whole({"total_slots": 1, "default_generation_settings": {"n_ctx": given.c}})

    def health(peer: Connection, _: bytes) -> None:
        peer.whole({"status": "ok"})

    return {
        "/health": health,
        "/props": props,
        "/metrics": metrics,
        "/v1/models": models,
        "/tokenize": tokenize,
        "/v1/chat/completions": completions,
    }


PACED = 24  # max_tokens of a measurement's streams in the tests
TOKENS = 128  # and of moebox.flows.pace, which would take longer to load than all else here (test_climb compares them)

if __name__ == "__main__":
    main()
