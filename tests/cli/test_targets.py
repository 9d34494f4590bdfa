"""What verify and its like are pointed at: files to write, and servers that are not what was expected."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox import http
from moebox.cli import main
from tests.serving import live


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "http://127.0.0.1:9/v1", "--model", "m", "--junit"),
        ("climb", "phantom", "-o"),
    ],
)
def test_a_folder_is_no_place_for_a_file(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify --junit FOLDER` made every check and lost them; nothing is asked now, and no run is left behind."""
    assert main([*words, str(tmp_path)]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert f"{tmp_path}: cannot be written: Is a directory" in reported.err
    assert main(["runs", "--json"]) == 0
    assert "verify" not in capsys.readouterr().out


def odd_server(status: int, body: bytes, *, posted: int = 404) -> ThreadingHTTPServer:
    """A server with one reply to every GET, and one status for every POST."""

    class OddReplies(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(status, body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send(posted, b'{"detail": "Not Found"}')

        def send(self, code: int, text: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), OddReplies)


@pytest.mark.parametrize(
    ("status", "body", "texts"),
    [
        (503, b'{"error": {"message": "Loading model"}}', ("HTTP 503: Loading model", "is it still loading")),
        (500, b"out of disk", ("HTTP 500: out of disk", "is this an OpenAI-compatible server?")),
        (200, b"<html>", ("does not list models (HTTP 200: <html>): is this an OpenAI-compatible server?",)),
        (401, b"{}", ("requires a key (401)", "--key-env")),
        (200, b'{"data": []}', ("serves 0 models: its list is empty",)),
    ],
)
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_server_without_models_is_quoted(
    command: str, status: int, body: bytes, texts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that is loading is not another kind of server, and a key that was not sent was not refused."""
    with live(odd_server(status, body)) as server:
        assert main([command, f"http://127.0.0.1:{server.server_port}/v1"]) in (2, 3)
    error = " ".join(capsys.readouterr().err.split())
    assert all(text in error for text in texts), error
    assert "refused the key" not in error


def test_a_silent_server_did_not_hang_up() -> None:
    """The end at the deadline is ours: the reason is the time, and not a disconnected server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reply = http.get(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/models", timeout_s=0.2)
    assert reply.status == 0
    assert "disconnected" not in reply.text
    assert "0.2 s" in reply.text or "timed out" in reply.text


def test_no_cause_is_named_without_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    """A route that is not there shows nothing about parsers, templates or kernels."""
    with live(odd_server(200, b'{"data": [{"id": "m"}]}')) as server:
        assert main(["verify", f"http://127.0.0.1:{server.server_port}/v1", "--effort", "quick"]) == 1
    out = capsys.readouterr().out
    assert "HTTP 404" in out
    assert "likely cause" not in out
    assert "()" not in out
