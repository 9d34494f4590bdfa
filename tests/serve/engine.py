"""A stand-in engine: a real process that loads, serves, hangs, floods, forks or dies as its first argument says.

    python engine.py MODE [--port N …]

Everything after the mode is taken as an engine's command line; only --port (and --host) matter. The key comes from
VLLM_API_KEY. It prints what vLLM prints, as far as moebox reads it.
"""

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def load(shards: int = 4) -> None:
    """The phases of a start."""
    say("(EngineCore pid=1) INFO 11-15 02:04:02 [core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: {}")
    say("(Worker pid=1) INFO 11-15 02:04:03 [gpu_model_runner.py:5040] Starting to load model models/kimi...")
    for done in range(1, shards + 1):
        say(
            f"Loading safetensors checkpoint shards:  {100 * done // shards}% Completed | {done}/{shards} [00:01<00:00]"
        )
    say("(EngineCore pid=1) INFO 11-15 02:04:09 [kv_cache_utils.py:2328] GPU KV cache size: 180,191 tokens, "
        "Maximum concurrency for 65,536 tokens per request: 2.75x")  # fmt: skip


class Talk(http.server.BaseHTTPRequestHandler):
    """/health and one kind of chat."""

    mode = "good"
    chats = 0  # answered so far

    def do_GET(self) -> None:
        self.reply(200, {"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        key = os.environ.get("VLLM_API_KEY")
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.reply(401, {"error": {"message": "Unauthorized"}})
        elif "prompt" in asked:
            self.complete(len(asked["prompt"].split()))
        elif self.mode == "broken-chat":
            self.reply(500, {"error": {"message": "the model produced nothing"}})
        elif self.mode == "silent-chat":
            time.sleep(600)
        elif self.mode == "empty-chat":
            self.reply(200, {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}})
        else:
            message = {"role": "assistant", "content": "hello"}
            if self.mode == "hangs-after-ready" and Talk.chats:
                time.sleep(600)
            Talk.chats += 1
            self.reply(200, {"choices": [{"message": message}], "usage": {"completion_tokens": 1}})
            if self.mode == "dies-after-ready":
                threading.Timer(0.3, os._exit, (7,)).start()

    def complete(self, words: int) -> None:
        if self.mode == "fails-at-length" and words > 1000:
            say("OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376")
            self.reply(500, {"error": {"message": "EngineCore encountered an issue"}})
        else:
            self.reply(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": words, "completion_tokens": 1}})

    def reply(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve(mode: str) -> None:
    """Listen and answer."""
    Talk.mode = mode
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Talk)
    say("INFO:     Application startup complete.")
    server.serve_forever()


def main() -> None:
    """Follow the flags."""
    mode = sys.argv[1]
    if mode == "quits":
        load()
        sys.exit(0)
    if mode.endswith(".log"):  # a failure that was recorded
        with open(mode, encoding="utf-8") as log:
            for line in log:
                print(line, end="")
        sys.exit(1)
    if mode == "hangs-at-99":
        load(0)
        for done in (1, 50, 99):
            say(f"Loading safetensors checkpoint shards:  {done}% Completed | {done}/100 [00:01<00:00]")
        while True:
            say("INFO [shm_broadcast.py:108] No available shared memory broadcast block found in 60 seconds.")
            time.sleep(0.2)
    if mode == "compiles":  # as SGLang's INT4 experts: a compiler for minutes, and no line
        load()
        with tempfile.TemporaryDirectory() as folder:
            compiler = shutil.copy(shutil.which("sleep") or "", f"{folder}/ptxas")
            subprocess.run(["sh", "-c", f"{compiler} 4; true"], check=True)
    if mode == "flood":
        line = (
            b"INFO 11-15 02:04:02 [loggers.py:283] Engine 000: Avg prompt throughput: 123.4 tokens/s, Running: 7 reqs\n"
        )
        for _ in range(int(os.environ["FLOOD_BYTES"]) // (len(line) * 10_000)):
            sys.stdout.buffer.write(line * 10_000)
        sys.stdout.buffer.flush()
    if mode == "leaks-key":
        say(f"non-default args: {{'api_key': ['{os.environ['VLLM_API_KEY']}']}}")
        sys.stdout.write(os.environ["VLLM_API_KEY"][:5])  # torn in two on its way
        sys.stdout.flush()
        time.sleep(0.2)
        say(os.environ["VLLM_API_KEY"][5:])
    if mode == "stubborn":
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)
    if mode in ("forks", "stubborn"):  # a worker in a session of its own that heeds nothing, and its child
        worker = "import signal,subprocess,sys,time\n[signal.signal(s, signal.SIG_IGN) for s in (2, 15)]\n"
        worker += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        worker += "print('both are there', flush=True)\ntime.sleep(300)"
        made = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True, stdout=subprocess.PIPE)
        assert made.stdout
        made.stdout.readline()
    load()
    serve(mode)


if __name__ == "__main__":
    main()
