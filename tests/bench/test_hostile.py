"""Against servers that misbehave: no hang, no crash, no figure that makes no sense."""

import json
import math
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from moebox.bench import probe
from moebox.cli import main
from tests.bench.hostile import ASIDE, SERVERS
from tests.bench.hostile_more import MORE
from tests.bench.server import Peer, good, serving
from tests.hangs import no_longer_than
from tests.sampling import one_in
from tests.serving import live

PATIENCE_S = 120  # for one server, on a busy machine: a hang, not a figure
FLAGS = ["--requests", "3", "--concurrency", "2", "--output", "8", "--input", "8"]
SHORT = ["--set", "load.timeout_s=2s", "--set", "load.stall_s=1s"]
LONG = [
    "--set",
    "load.timeout_s=60s",
    "--set",
    "load.stall_s=30s",
]  # where all is well in the end, if the machine is not too busy for it
ALL = SERVERS | MORE
SOME = [  # of each sort, for every run of the suite
    "endless tokens, as fast as they go",
    "endless 100 Continue, fast",
    "a stream, one byte at a time",
    "hangs up with the last byte, and reads on",
    "an event of 15 MiB",
    "an end inside a chunk",
    "counts and no other event",
    "replies that were not asked for",
    "one byte that is not UTF-8, like the others",
    "an error that moves the cursor",
    "10^9 tokens",
    "tokens after [DONE]",
    "counts that are true",
    "one byte a chunk",
]


def test_there_are_enough_of_them() -> None:
    """At least 48 ways to misbehave, and the short list names some of them."""
    assert len(SERVERS) >= 48
    assert not set(SERVERS) & set(MORE)
    assert set(SOME) <= set(ALL)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(PATIENCE_S):
        yield


def numbers(value: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Every figure of a document with where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{at}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, value


def sane(result: dict[str, Any], requests: int = 3) -> None:
    """Figures that could be true of a few requests for eight tokens."""
    outcomes = [result[name] for name in ("completed", "failed", "truncated", "empty", "cancelled")]
    assert sum(outcomes) == result["num_prompts"] == requests
    for at, value in numbers(result):
        assert math.isfinite(value), at
        assert value >= 0 or at in (".load.rate", ".timeline.ttft_ms"), f"{at} is {value}"
    longest_ms = result["duration"] * 1e3 + 1
    for name in ("ttft", "e2el", "itl", "tpot"):
        assert (result[f"p99_{name}_ms"] or 0) <= longest_ms
    assert result["total_output_tokens"] <= requests * 24
    assert result["output_throughput"] * result["duration"] <= requests * 24 + 1
    assert all(text.isprintable() for text in (*result["errors"], *result["flags"]))


def judged(name: str, url: str, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """Run the command; its exit code and its document."""
    code = main(["bench", url, "--model", "m", *FLAGS, *flags, "--json"])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err, name
    assert "\x1b" not in shown.out + shown.err
    return code, json.loads(shown.out) if code in (0, 1) else {}


def besieged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is good until it is measured."""
    behaviour, outcome = ALL[name]
    with serving(behaviour) as server:
        code, result = judged(name, server.url, capsys, *(SHORT if outcome == "failed" else LONG))
    sane(result)
    if outcome != "either":
        assert code == (0 if outcome == "completed" else 1), result["errors"]
        assert result["completed"] == (3 if outcome == "completed" else 0), result["errors"]


@pytest.mark.parametrize("name", one_in(3, SOME))
def test_some_servers_that_misbehave(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each sort."""
    besieged(name, capsys)


@pytest.mark.siege
@pytest.mark.parametrize("name", [name for name in ALL if name not in SOME])
def test_every_server_that_misbehaves(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All the others."""
    besieged(name, capsys)


@pytest.mark.siege
@pytest.mark.parametrize("name", ALL)
def test_every_server_that_misbehaves_from_the_first_request_on(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is asked before a measurement hangs and crashes no more than the measurement."""
    behaviour, _ = ALL[name]
    with serving(behaviour, look=behaviour) as server:
        code, result = judged(name, server.url, capsys, *SHORT)

    assert code in (0, 1, 3)
    if result:
        sane(result)


def test_a_silent_tokenizer_and_silent_metrics_hold_nothing_up(capsys: pytest.CaptureFixture[str]) -> None:
    """They are left out."""
    with serving(good, aside=ASIDE["one byte at a time"]) as server:
        code, result = judged("aside", server.url, capsys, "--set", "load.timeout_s=5s")

    assert (code, result["completed"], result["server"]) == (0, 3, None)


@pytest.mark.siege
@pytest.mark.parametrize("name", ASIDE)
def test_whatever_else_the_server_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """/metrics, /tokenize and /v1/models misbehave, with and without a model named."""
    with serving(good, aside=ASIDE[name]) as server:
        code, result = judged(name, server.url, capsys, "--set", "load.timeout_s=5s")
        assert (code, result["completed"]) == (0, 3)
        sane(result)
        assert main(["bench", server.url, *FLAGS, *SHORT, "--json"]) in (0, 2, 3)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert "\x1b" not in shown.out + shown.err


def test_https_to_a_plain_port_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """At once, though a plain server may wait for more of what it takes for a request."""
    with serving(good) as server:
        code = main(["bench", server.url.replace("http:", "https:"), "--model", "m", *FLAGS, *LONG])
    output = capsys.readouterr().err

    assert code == 3
    assert "answers in plain HTTP" in output
    assert "http://" in output


class Quiet(ThreadingHTTPServer):
    """A server that prints nothing of clients that hang up: its thread may outlive the test's captured output."""

    def handle_error(self, *_: object) -> None:
        return


@pytest.mark.parametrize(
    "words",
    [["bench"], ["verify", "--model", "m"], ["watch", "--time", "1s"], ["compare", "http://127.0.0.1:9"]],
    ids=str,
)
def test_https_to_a_plain_port_is_always_reported(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Also where the name of its model, or its list of models, is the first thing that is asked for."""
    with live(Quiet(("127.0.0.1", 0), SimpleHTTPRequestHandler)) as server:
        command, *rest = words
        code = main([command, f"https://127.0.0.1:{server.server_port}/v1", *rest])
    output = " ".join(capfd.readouterr())

    assert code in (1, 3)
    assert "answers in plain HTTP, not TLS" in " ".join(output.split())
    assert "WRONG_VERSION" not in output


@pytest.mark.parametrize("model", [[], ["--model", "m"]], ids=["asked", "named"])
def test_a_refused_key_is_reported_as_such(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No other model's name would help."""

    def refuses(peer: Peer, body: dict[str, object]) -> bool:
        peer.json(401, {"error": {"message": "Incorrect API key"}})
        return True

    with serving(good, look=refuses, aside=refuses) as server:
        assert main(["bench", server.url, *model, *FLAGS]) == 3
    output = capsys.readouterr().err

    assert "--key-env" in output
    assert "/v1/models lists" not in output


def test_a_server_that_always_refuses_is_asked_for_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says when to ask again, for ever: one line tells of the wait, and it ends."""
    monkeypatch.setattr(probe, "MAX_REFUSED_S", 1.5)

    def busy(peer: Peer, body: dict[str, object]) -> bool:
        peer.json(429, {"error": {"message": "slow down"}}, b"retry-after: 0\r\n")
        return True

    with serving(good, look=busy) as server:
        assert main(["bench", server.url, "--model", "m", *FLAGS]) == 3
    notes, error = capsys.readouterr().err.split("error: ")
    assert notes.count("HTTP 429: slow down: asked again") == 1
    assert "HTTP 429: slow down" in error
    assert "--model" not in error


def test_a_redirect_is_named_with_where_it_leads(capsys: pytest.CaptureFixture[str]) -> None:
    """It is not followed: a key would go with it."""

    def moved(peer: Peer, body: dict[str, object]) -> bool:
        peer.json(307, {}, b"location: https://models.example/v1/chat/completions\r\n")
        return True

    with serving(good, look=moved) as server:
        assert main(["bench", server.url, "--model", "m", *FLAGS]) == 3
    assert "it leads to https://models.example/v1/chat/completions" in capsys.readouterr().err
