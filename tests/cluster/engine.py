"""A small engine that spans nodes as vLLM does: its flags, its rendezvous, workers in processes of their own.

Rank 0 listens at --master-addr for the other ranks, then serves HTTP. Every token of a reply goes through every rank
(as pipeline stages do), so a rank that dies is noticed at once: rank 0 then ends with an error, as vLLM's engine core
does. Behaviour is chosen by SMALL_ENGINE: "" serves, "die-loading", "die-ready", "hang" and "no-rank" fail on rank 1;
the workers of "stubborn" heed no signal but SIGKILL.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(os.environ.get("SMALL_ENGINE_PORT", "29501"))
MODE = os.environ.get("SMALL_ENGINE", "")


def say(text: str) -> None:
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [small_engine.py:1] {text}", flush=True)


def worker() -> None:
    """A process of the rank that only its rank's end should end."""
    if os.fork() == 0:
        if MODE == "stubborn":
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(3600)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--served-model-name", default="small")
    return parser.parse_known_args()[0]


def follow(given: argparse.Namespace) -> None:
    """Any rank but the first: join, then pass tokens on until the first rank is gone."""
    if MODE == "die-loading":
        say("Loading weights")
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        sys.exit(1)
    until = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection((given.master_addr, PORT), timeout=5)
            break
        except OSError:
            if time.monotonic() > until:
                print("RuntimeError: rendezvous timed out", flush=True)
                sys.exit(1)
            time.sleep(0.1)
    peer.settimeout(None)
    say(f"rank {given.node_rank} joined")
    while data := peer.recv(1):
        if MODE == "die-ready":
            os._exit(1)
        peer.sendall(data)
    say("rank 0 is gone")


class Lead:
    """The first rank: the others' connections, and a token's way through all of them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.lock, self.peers = given, threading.Lock(), []
        if given.nnodes == 1:  # no other node joins, and several of these may be on one machine
            return
        listening = socket.create_server((given.master_addr, PORT))
        say(f"waiting for {given.nnodes - 1} ranks")
        self.peers = [listening.accept()[0] for _ in range(given.nnodes - 1)]
        listening.close()

    def token(self) -> None:
        with self.lock:
            for peer in self.peers:
                peer.sendall(b"t")
                if peer.recv(1) != b"t":
                    print("RuntimeError: Connection closed by peer: a worker on another node died", flush=True)
                    os._exit(1)

    def beat(self) -> None:
        while True:
            time.sleep(0.5)
            self.token()


def serve(given: argparse.Namespace) -> None:
    lead = Lead(given)
    threading.Thread(target=lead.beat, daemon=True).start()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, document: object) -> None:
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.reply({"data": [{"id": given.served_model_name, "max_model_len": 4096, "owned_by": "vllm"}]})
            else:
                self.reply({})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for _ in range(min(body.get("max_tokens", 8), 64)):
                lead.token()
            message = {"role": "assistant", "content": "one two three"}
            self.reply({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}})

    say("Application startup complete.")
    ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()


given = parse()
worker()
if given.node_rank:
    if MODE == "hang":
        time.sleep(3600)
    follow(given)
else:
    serve(given)
