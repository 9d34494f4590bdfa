"""Whatever a server does, an exchange ends, stays small, and says what happened."""

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import HttpExchange
from moebox.stream.awake import AwakeClock
from moebox.verify.client import MAX_BYTES, ExchangeClient
from moebox.verify.options import VerifyOptions
from moebox.verify.runner import run_checks


@contextmanager
def raw_server(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listener that reads a request's head and then does what `speak` does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                try:
                    line.recv(65536)
                    speak(line)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def get(url: str, deadline_s: float = 5.0) -> HttpExchange:
    async def once() -> HttpExchange:
        async with ExchangeClient(endpoint_from_url(url, "m"), deadline_s=deadline_s) as client:
            return await client.get(url)

    return asyncio.run(once())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_no_server():
    """A refused connection is a verdict with the reason."""
    ladder = run_checks(endpoint_from_url(f"http://127.0.0.1:{free_port()}", "m"))

    assert ladder.verdict == "fail"
    assert ladder.rungs[0].reason.startswith("models: cannot connect")


@pytest.mark.parametrize("url", ["http://", "http://[::1", "ftp://127.0.0.1", "http://exa mple", "http://\x00"])
def test_what_is_no_url_is_said_to_be_none(url: str):
    """Not a traceback."""
    assert get(url).error


def test_a_server_that_accepts_and_says_nothing():
    """The deadline holds."""
    with raw_server(lambda line: threading.Event().wait(2)) as url:
        assert get(url, deadline_s=0.3).error.startswith("no end")


def test_a_server_that_hangs_up():
    """Broken off, not an exception."""
    with raw_server(lambda line: None) as url:
        assert get(url).error.startswith("broken off")


def test_an_answer_that_does_not_end_is_cut_at_a_size():
    """Memory is bounded whatever is sent."""

    def flood(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            line.sendall(b"x" * 65536)

    with raw_server(flood) as url:
        exchange = get(url, deadline_s=30)

    assert exchange.error.startswith("too large")
    assert len(exchange.response) <= MAX_BYTES


def test_headers_that_never_end():
    """A server may be as rude in its headers as in its body."""

    def flood(line: socket.socket) -> None:
        line.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            line.sendall(b"x-more: " + b"y" * 1000 + b"\r\n")

    with raw_server(flood) as url:
        assert get(url, deadline_s=10).error


def test_what_is_not_http():
    """Some other service on that port."""
    with raw_server(lambda line: line.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as url:
        assert get(url).error.startswith("broken off")


def test_a_certificate_that_is_not_signed(tmp_path: Path):
    """TLS trouble is called that."""
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            try:
                line, _ = listener.accept()
                context.wrap_socket(line, server_side=True).close()
            except OSError:
                continue

    threading.Thread(target=serve, daemon=True).start()
    ladder = run_checks(
        endpoint_from_url(f"https://127.0.0.1:{listener.getsockname()[1]}", "m"), VerifyOptions(deadline_s=10, seed=1)
    )
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()

    assert ladder.rungs[0].reason.startswith("models: TLS")
    assert ladder.verdict == "fail"


def test_a_request_during_which_this_machine_slept_is_sent_again():
    """The connection is lost while the lid is closed: no fault of the server's, so it is asked once more."""
    slept, asked = [0.0], []

    def speak(line: socket.socket) -> None:
        asked.append(line)
        if len(asked) == 1:
            slept[0] = 3600.0  # and the line is dropped without an answer
        else:
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def once(url: str) -> HttpExchange:
        awake = AwakeClock(boot=lambda: time.monotonic() + slept[0])
        async with ExchangeClient(endpoint_from_url(url, "m"), awake=awake) as client:
            return await client.get(url)

    with raw_server(speak) as url:
        exchange = asyncio.run(once(url))

    assert (exchange.status, exchange.error, len(asked)) == (200, "", 2)
