"""Servers that never finish a TLS handshake, and such that send a client elsewhere with its key."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from moebox import http
from moebox.bench.measure import measure_load
from moebox.bench.probe import probe_endpoint
from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.core.measure import Load, Workload
from tests.bench.server import Peer, good, serving
from tests.hangs import no_longer_than
from tests.sampling import one_in

KEY = "sk-test-for-one-host-only-1234567890"
RECORD = b"\x16\x03\x03\x40\x00"  # opens a handshake record of 16 KiB


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(300):
        yield


@contextlib.contextmanager
def silent(*, drips: bool) -> Iterator[int]:
    """A port where connections are taken and no handshake ends: nothing is said, or a byte now and then."""
    over = threading.Event()

    def serve(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            peer.send(RECORD if drips else b"")
            while not over.wait(0.1):
                peer.send(b"\0" if drips else b"")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("drips", [False, True], ids=["mute", "drips"])
def test_a_handshake_that_never_ends_is_given_up(drips: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """By `bench` within its timeout, and by whatever else is asked."""
    with silent(drips=drips) as port:
        url = f"https://127.0.0.1:{port}/v1"
        assert http.get(f"{url}/models", timeout_s=1.0).status == 0
        assert (
            main(
                [
                    "bench",
                    url,
                    "--set",
                    "endpoint.insecure=true",
                    "--model",
                    "m",
                    "--requests",
                    "1",
                    "--set",
                    "load.timeout_s=1",
                ]
            )
            == 3
        )
    said = capsys.readouterr().err

    assert said.count("error:") == 1
    assert "Traceback" not in said


def test_a_handshake_that_never_ends_under_load_fails_its_request() -> None:
    """The first request is answered in the clear; a load over TLS to a mute port ends with failed requests."""
    with serving(good) as server, silent(drips=True) as port:
        subject = probe_endpoint(endpoint_from_url(server.url, "m"))
        target = replace(subject.address, port=port, tls=True, insecure=True)
        load = Load(concurrency=3, requests=3, timeout_s=1.0, stall_s=1.0)
        result = measure_load(
            replace(subject, address=target), Workload(output_tokens=2), load, scrape_metrics=False
        ).result

    assert (result.completed, result.failed) == (0, 3)


@pytest.mark.parametrize("status", one_in(4, [307, 301, 302, 308]))
@pytest.mark.parametrize("command", ["bench", "verify", "compare", "task", "connect"])
def test_a_redirect_to_another_host_does_not_get_the_key(
    status: int, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked there at all."""
    monkeypatch.setenv("DOOR_KEY", KEY)

    def away(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(b"HTTP/1.1 %d X\r\nlocation: %s/v1\r\ncontent-length: 0\r\n\r\n" % (status, other.url.encode()))
        return True

    with serving(lambda peer, body: False) as other, serving(away, look=away, aside=away) as server:
        words = {
            "bench": ["bench", server.url, "--requests", "1"],
            "verify": ["verify", server.url],
            "compare": [
                "compare",
                server.url,
                server.url,
                "--set",
                "questions=1",
                "--set",
                "rounds=2",
                "--concurrency",
                "1",
            ],
            "task": ["task", server.url, "--jobs", "1"],
            "connect": ["connect", "openai", server.url, "--check"],
        }[command]
        assert main([*words, "--model", "m", "--key-env", "DOOR_KEY"]) in (1, 2, 3)
        assert ("authorization", f"Bearer {KEY}") in server.headers, "the first host was not asked"
        assert (other.connections, other.headers) == (0, [])
    said = capsys.readouterr()

    assert KEY not in said.out + said.err
    assert "Traceback" not in said.err
