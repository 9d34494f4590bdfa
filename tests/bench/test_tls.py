"""Streams and everything asked beside them over TLS."""

import json
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.bench.measure import measure_load
from moebox.bench.probe import choose_words, probe_endpoint
from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.core.measure import Load, Workload
from tests.bench.server import good, serving

WORK = Workload(input_tokens=8, output_tokens=6)
LOAD = Load(concurrency=4, requests=12)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One for loopback that is not trusted, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, "-days", "1", *subject], check=True, capture_output=True)
    return cert, key


def tls(certificate: tuple[Path, Path]) -> Callable[[socket.socket], socket.socket]:
    """Wraps what a server accepts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return lambda sock: context.wrap_socket(sock, server_side=True)


def test_streams_over_tls(certificate: tuple[Path, Path]) -> None:
    """Certificates are checked by default, and kernel times are kept."""
    with serving(good, wrap=tls(certificate)) as server:
        endpoint = endpoint_from_url(server.url.replace("http://", "https://"), "m")
        subject_ = probe_endpoint(endpoint, ca_file=str(certificate[0]))
        result = measure_load(subject_, WORK, LOAD, scrape_metrics=False).result

    assert (result.completed, result.total_output_tokens) == (12, 72)


@pytest.mark.parametrize("how", ["insecure=true", "ca_file="])
def test_tokenizer_metrics_and_model_names_over_tls_trust_what_the_streams_trust(
    how: str, certificate: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """They were asked with the usual certificates only: prompt lengths were estimates, and metrics were missing."""
    trust = ["--set", f"endpoint.{how}{certificate[0] if how.endswith('=') else ''}"]
    pages = {"models": ["the-model"], "tokenizes": True, "metrics": lambda: "vllm:num_requests_running 3\n"}
    with serving(good, wrap=tls(certificate), **pages) as server:
        url = server.url.replace("http://", "https://")
        code = main(["bench", url, *trust, "--requests", "2", "--output", "3", "--json"])
        assert main(["bench", url, "--requests", "2"]) == 3, "it is not trusted by default"
    output = capsys.readouterr()
    assert "SSL_CERT_FILE=FILE" in output.err
    result = json.loads(output.out)

    assert code == 0, output.err
    assert (result["model_id"], result["tokenizer_id"]) == ("the-model", "the server's /tokenize")
    assert result["server"]["peak_running"] == 3


def test_words_are_chosen_over_one_connection() -> None:
    """Each of some thirty questions to /tokenize opened one of its own."""
    with serving(good, tokenizes=True) as server:
        endpoint = endpoint_from_url(server.url, "m")
        text = choose_words(endpoint)
        connections = server.connections

    assert text.is_exact
    assert connections == 1
