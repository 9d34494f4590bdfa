"""The ordinary HTTP client against a real server on loopback."""

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox import http
from tests.serving import live

SOURCES = Path(http.__file__).parent


class Pages(BaseHTTPRequestHandler):
    """Replies with the requested path; /large never stops."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(
            b'{"path": "%s"}' % self.path.encode() if self.path != "/large" else b"x" * (http.MAX_REPLY_BYTES * 2)
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "cannot take ' + body[2:6] + b'"}}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with live(ThreadingHTTPServer(("127.0.0.1", 0), Pages)) as pages:
        yield f"http://127.0.0.1:{pages.server_port}"


def test_a_proxy_variable_does_not_come_between(server: str, monkeypatch: pytest.MonkeyPatch):
    """With HTTP_PROXY set, bench lost the server's metrics without a word."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert http.get(f"{server}/metrics").json() == {"path": "/metrics"}
    with http.HttpSession() as client:
        assert client.get(f"{server}/tokenize", timeout_s=5).status == 200


def test_a_refused_connection_is_a_reply():
    reply = http.get("http://127.0.0.1:9/", timeout_s=2)

    assert reply.status == 0
    assert reply.text
    assert reply.json() is None


def test_an_endless_reply_is_cut(server: str):
    assert len(http.get(f"{server}/large").text) == http.MAX_REPLY_BYTES


def test_a_redirect_is_not_followed(server: str):
    """A server under test must not send moebox, with its key, elsewhere."""
    assert http.get(f"{server}/moved").status == 302


def test_the_message_of_an_error_document_is_found(server: str):
    reply = http.post_json(server, {"text": "hello"})

    assert reply.status == 400
    assert http.error_text(reply.text) == "cannot take text"


def test_certificates_are_read_only_for_https():
    """Reading them takes longer than most commands do anything; what has not read them trusts no one."""
    assert http.trusted_certificates("https://example.org").cert_store_stats()["x509_ca"]
    plain = http.trusted_certificates("http://127.0.0.1:8000")
    assert plain.cert_store_stats()["x509_ca"] == 0
    assert plain.verify_mode == ssl.CERT_REQUIRED


def test_there_is_one_client():
    """Proxies, redirects and limits are decided in one place; verify's async client is the one exception."""
    makers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if any(
            call in path.read_text() for call in ("httpx2.get(", "httpx2.Client(", "httpx2.stream(", "urllib.request")
        )
    }

    assert makers <= {"http.py", "serve/connect.py"}
