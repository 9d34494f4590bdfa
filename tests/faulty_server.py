"""A llama-server that passes requests on to the embedded engine and injects one fault.

    python faulty_server.py VERSION FAULT [llama-server's flags]

Faults, joined by "+": "slow:0.85" stretches streams to that share of the speed, "noise:0.05" adds a random stretch for
each stream, "bursts:0.1" stretches such a share of them by up to three times, "parser" turns tool calls into text,
"garbage" replaces answers, "hang" stops answering from the second concurrent request on, "drop" breaks such requests
off, "no-start" exits. Without a fault streams still pass through, so versions differ in it alone. "canned" has no
engine behind it: it reads prompts and streams words on a fixed schedule ("canned:0.005": seconds a word), and calls
tools with arguments that fit their schema. "scores:0.5" gives it log-probabilities with as much noise (tests.quality).
"""

import http.client
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION, FAULTS = sys.argv[1], dict([*fault.split(":"), ""][:2] for fault in sys.argv[2].split("+") if fault)
ARGV = sys.argv[3:]
INNER = socket.socket()
INNER.bind(("127.0.0.1", 0))
PORT = INNER.getsockname()[1]
INNER.close()
PACE_S = float(FAULTS.get("canned") or 0.0015)  # a token of a canned stream
PROMPT_SHARE = 0.05  # of that pace: a word of its prompt
running = 0
lock = threading.Lock()


def change(data: dict) -> dict:
    """Inject the fault into a reply or an event of a stream."""
    for choice in data.get("choices", ()):
        message = choice.get("message") or choice.get("delta") or {}
        if "parser" in FAULTS and message.get("tool_calls"):
            message["content"] = json.dumps(message.pop("tool_calls"))
            if choice.get("finish_reason") == "tool_calls":
                choice["finish_reason"] = "stop"
        if "garbage" in FAULTS and message.get("content"):
            message["content"] = "!" * len(message["content"])
    return data


def draw_stretch() -> float:
    """How much longer than without faults a stream takes."""
    stretch = 1 + random.uniform(-1, 1) * float(FAULTS.get("noise") or 0)
    if random.random() < float(FAULTS.get("bursts") or 0):
        stretch *= random.uniform(1.2, 3)
    return stretch / float(FAULTS.get("slow") or 1)


def fill(schema: dict) -> object:
    """A value that fits a schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
    return kinds.get(schema.get("type", "string"), "text")


class Proxy(BaseHTTPRequestHandler):
    """Passes on every request."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "canned" in FAULTS:
            pace = PACE_S / float(FAULTS.get("slow") or 1)  # for tests whose verdict a busy machine must not change
            self.send_document({"data": [{"id": "phantom", "owned_by": "llamacpp"}], "pace": pace})
        else:
            self.pass_on(None)

    def do_POST(self) -> None:
        global running
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with lock:
            running += 1
        try:
            if "hang" in FAULTS and running > 1:
                time.sleep(3600)
            if "drop" in FAULTS and running > 1:
                self.close_connection = True
            elif "canned" in FAULTS and self.path.endswith("/chat/completions"):
                self.reply(json.loads(body))
            elif "canned" in FAULTS and "scores" not in FAULTS:
                self.send_document({"error": {"message": "not found"}}, 404)
            else:
                self.pass_on(body)
        finally:
            with lock:
                running -= 1

    def send_document(self, document: dict, status: int = 200) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def reply(self, body: dict) -> None:
        """The canned reply to a chat."""
        count = min(body.get("max_tokens") or 16, 256)
        words = ["garbage " if "garbage" in FAULTS else "hello "] * count
        message: dict = {"role": "assistant", "content": "".join(words)}
        if body.get("tools"):
            tool = body["tools"][0]["function"]
            arguments = {name: fill(each) for name, each in tool["parameters"].get("properties", {}).items()}
            call = {"name": tool["name"], "arguments": json.dumps(arguments)}
            message = {"role": "assistant", "content": None}
            message["tool_calls"] = [{"index": 0, "id": "call-1", "type": "function", "function": call}]
        finish = "tool_calls" if body.get("tools") else "stop"
        usage = {"prompt_tokens": len(str(body["messages"]).split()), "completion_tokens": count}
        if not body.get("stream"):
            self.send_document(
                change({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})
            )
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pace = PACE_S * draw_stretch()
        began = time.monotonic() + pace * PROMPT_SHARE * usage["prompt_tokens"]
        deltas = [message] if body.get("tools") else [{"content": word} for word in words]
        events = [change({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
        events.append(change({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage}))
        try:
            for number, event in enumerate(events, 1):
                time.sleep(max(0.0, began + pace * number - time.monotonic()))
                line = b"data: " + json.dumps(event).encode() + b"\n\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def pass_on(self, body: bytes | None) -> None:
        inner = http.client.HTTPConnection("127.0.0.1", PORT)
        began = time.monotonic()
        try:
            headers = {"Content-Type": "application/json"}
            if "Authorization" in self.headers:
                headers["Authorization"] = self.headers["Authorization"]
            inner.request(self.command, self.path, body, headers)
            reply = inner.getresponse()
        except OSError:
            self.send_error(503)
            return
        kind = reply.headers.get("Content-Type", "")
        self.send_response(reply.status)
        self.send_header("Content-Type", kind)
        if not kind.startswith("text/event-stream"):
            data = reply.read()
            if kind.startswith("application/json") and FAULTS:
                data = json.dumps(change(json.loads(data))).encode() if data.startswith(b"{") else data
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        stretch = draw_stretch()
        lines: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

        def read() -> None:  # in a thread of its own, so that waiting below does not change when lines arrive
            try:
                for line in reply:
                    lines.put((time.monotonic(), line))
            except (OSError, ValueError, AttributeError):
                pass
            lines.put((0.0, b""))

        threading.Thread(target=read, daemon=True).start()
        try:
            while line := (arrived := lines.get())[1]:
                if line.startswith(b"data: {"):
                    line = b"data: " + json.dumps(change(json.loads(line[6:]))).encode() + b"\n"
                time.sleep(max(0.0, began + stretch * (arrived[0] - began) - time.monotonic()))
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client went away
            self.close_connection = True
        finally:
            if inner.sock:
                inner.sock.shutdown(socket.SHUT_RDWR)  # so the inner request ends too
            inner.close()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def main() -> int:
    """Start the embedded engine, and serve in front of it until stopped."""
    if "--version" in ARGV:
        print(f"version: {VERSION.removeprefix('b')} (test)")
        return 0
    if "no-start" in FAULTS:
        print("error: invalid argument: --this-build-does-not-start")
        return 1
    given = {flag: ARGV[ARGV.index(flag) + 1] for flag in ("--port", "--host") if flag in ARGV}
    server = ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), Proxy)
    server.daemon_threads = True
    if "scores" in FAULTS:
        global PORT
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from tests.quality.toy_server import ToyServer

        scores = ToyServer("prompt_logprobs", noise=float(FAULTS["scores"]), seed=2)
        PORT = scores.server_address[1]
        threading.Thread(target=scores.serve_forever, daemon=True).start()
    if "canned" in FAULTS:
        print("listening on http://127.0.0.1", flush=True)
        signal.signal(signal.SIGINT, lambda *_: os._exit(0))
        server.serve_forever()
    argv = [str(PORT) if word == given["--port"] else word for word in ARGV]
    inner = subprocess.Popen([sys.executable, "-m", "moebox.serve.embedded", *argv])
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: os._exit(inner.terminate() or 0))
    threading.Thread(target=lambda: os._exit(inner.wait() and 1), daemon=True).start()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
