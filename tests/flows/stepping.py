"""A stand-in for vLLM whose steps last as long as its layers say, and which fails as its first argument tells.

    python stepping.py MODE … --port N --hf-overrides '{"num_hidden_layers": 4}'

MODE: good; oom-above-N (more layers run out of memory while loading); dies-above-N (so it does while it is timed);
refuses (every request fails); slows (each request takes longer than the one before); caches (answers prompts from its
prefix cache, and reports it); alone (one request after another).
"""

import contextlib
import http.server
import json
import os
import re
import sys
import threading
import time

FIXED_S, LAYER_S, TOKEN_S = 0.002, 0.0005, 2e-7
SERVED = [0]
ALONE = threading.Lock()


def say(text: str) -> None:
    print(text, flush=True)


def number(mode: str) -> int:
    return int(mode.rpartition("-")[2])


class Steps(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    layers, mode = 1, "good"

    def do_GET(self) -> None:
        self.whole(200, {"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        SERVED[0] += 1
        if "messages" in asked:
            self.whole(200, {"choices": [{"message": {"content": "hello"}}], "usage": {"completion_tokens": 1}})
        elif self.mode == "refuses":
            self.whole(500, {"error": {"message": "EngineCore encountered an issue"}})
        elif self.mode.startswith("dies-above") and self.layers > number(self.mode) and SERVED[0] > 6:
            say("RuntimeError: Engine core died")
            os._exit(7)
        else:
            with ALONE if self.mode == "alone" else contextlib.nullcontext():
                self.answer(asked)

    def begin_events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def answer(self, asked: dict) -> None:  # type: ignore[type-arg]
        prompt, output = len(asked["prompt"]), asked["max_tokens"]
        factor = 1 + SERVED[0] / 10 if self.mode == "slows" else 1.0
        self.begin_events()
        time.sleep(factor * (FIXED_S + self.layers * (LAYER_S + TOKEN_S * prompt)))
        for place in range(output):
            if place:
                time.sleep(factor * (FIXED_S + self.layers * LAYER_S))
            self.event({"choices": [{"text": "" if place % 2 else "x", "finish_reason": None}]})
        self.event({"choices": [{"text": "", "finish_reason": "length"}]})
        details = {"prompt_tokens_details": {"cached_tokens": prompt - 1}} if self.mode == "caches" else {}
        self.event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, document: object) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()

    def whole(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    words = sys.argv[1:]
    Steps.mode = words[0]
    Steps.layers = int(re.findall(r'"num_hidden_layers":\s*(\d+)', " ".join(words))[0])
    say("(Worker pid=1) INFO 11-15 02:04:03 [gpu_model_runner.py:5040] Starting to load model models/kimi...")
    if Steps.mode.startswith("oom-above") and Steps.layers > number(Steps.mode):
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB. GPU 0 has a total capacity of ")
        sys.exit(1)
    say(f"Model loading took {Steps.layers * 9e9 / 2**30:.2f} GiB memory and 3.2 seconds")
    tokens = (120_000_000_000 - Steps.layers * 9_000_000_000) // (1152 * Steps.layers)
    say(f"(EngineCore pid=1) INFO 11-15 02:04:09 [kv_cache_utils.py:2328] GPU KV cache size: {tokens:,} tokens, ")
    serve_forever(Steps, int(words[words.index("--port") + 1]))


def serve_forever(steps: type[Steps], port: int) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), steps)
    say("INFO:     Application startup complete.")
    server.serve_forever()


if __name__ == "__main__":
    main()
