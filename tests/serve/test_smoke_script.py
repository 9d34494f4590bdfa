"""scripts/smoke_test_openai.py against a real server that answers well, badly or not at all."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.serving import live

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "smoke_test_openai.py"


class Server(ThreadingHTTPServer):
    """Answers by the question; `way` says what is broken."""

    way = "good"
    keys: list[str | None]


class Handler(BaseHTTPRequestHandler):
    """A model of few words."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Stays quiet."""

    def do_GET(self) -> None:
        """The list of models."""
        self.reply({"data": [{"id": "kimi"}]})

    def do_POST(self) -> None:
        """One answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers["Authorization"])
        self.reply({"choices": [{"message": answer(body, self.server.way)}]})

    def reply(self, document: dict[str, Any]) -> None:
        """JSON, whatever was asked."""
        text = json.dumps(document).encode()
        self.send_response(500 if self.server.way == "failing" else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def answer(body: dict[str, Any], way: str) -> dict[str, Any]:
    """The message to a question of the script."""
    asked = body["messages"][0]["content"]
    if "tools" in body:
        call = {"function": {"name": "lookup_weather", "arguments": '{"city": "Lisbon"}'}}
        return {"content": "<|tool_call_begin|>"} if way == "leaking" else {"content": None, "tool_calls": [call]}
    if product := re.search(r"(\d+) times (\d+)", asked):
        right = int(product.group(1)) * int(product.group(2))
        return {"content": f"<think>easy</think>{right + (way == 'wrong')}"}
    if "fibonacci" in asked:
        code = "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n"
        return {"content": f"```python\n{code[:12] if way == 'torn' else code}```"}
    if "JSON" in asked:
        return {"content": '{"city": "Paris", "population": 2100000}'}
    return {"content": "!!!!!!!!!!!!" if way == "garbage" else "Air scatters blue light more than it scatters red."}


@pytest.fixture
def server() -> Iterator[Server]:
    """A live server on a free port."""
    with live(Server(("127.0.0.1", 0), Handler)) as found:
        found.keys = []
        yield found


def smoke(server: Server, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script as the post does."""
    url = f"http://127.0.0.1:{server.server_port}/v1"
    argv = [sys.executable, SCRIPT, "--base-url", url, *more]
    return subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"} | env)


def test_a_good_server_passes(server: Server):
    """Five probes, five passes; the key goes along and is not printed."""
    done = smoke(server, "--model", "kimi", OPENAI_API_KEY="s3cret")

    assert done.returncode == 0
    assert done.stdout.count("pass ") == 5
    assert set(server.keys) == {"Bearer s3cret"}
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("way", "failed"),
    [("garbage", "language"), ("wrong", "arithmetic"), ("torn", "code"), ("leaking", "tool call")],
)
def test_a_bad_server_is_recognised(way: str, failed: str, server: Server):
    """The probe that failed is named, and the rest still run."""
    server.way = way
    done = smoke(server)

    assert done.returncode == 1
    assert [line[6:17].strip() for line in done.stdout.splitlines() if line.startswith("FAIL")] == [failed]


def test_a_failing_or_absent_server(server: Server):
    """One line, and a code of its own."""
    server.way = "failing"

    assert smoke(server, "--model", "kimi").returncode == 3
    done = smoke(server, "--base-url", "http://127.0.0.1:9/v1")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert smoke(server, "--base-url", "file:///etc/passwd").returncode == 3
