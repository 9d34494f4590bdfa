"""Watching an endpoint: figures from counters, alerts that come once, checks in passing."""

import json
import shlex
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox import http
from moebox.cli import main
from moebox.cli.bench_results import sparkline
from moebox.cli.watch import look_line, watch_page
from moebox.core.endpoint import endpoint_from_url
from moebox.core.verdict import CheckVerdict
from moebox.flows.watch import GONE_LOOKS, SHOWN, EndpointWatcher, MetricsLook
from tests.serving import live

TEXT = """vllm:num_requests_running{{model="m"}} {running}
vllm:num_requests_waiting 0
vllm:kv_cache_usage_perc {kv}
vllm:generation_tokens_total {tokens}
vllm:time_to_first_token_seconds_sum {ttft}
vllm:time_to_first_token_seconds_count {count}
"""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A server whose metrics a test writes."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            models = json.dumps({"data": [{"id": "m"}]})
            data = (self.server.text if self.path == "/metrics" else models).encode()  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with live(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as found:
        found.text = ""  # type: ignore[attr-defined]
        yield found


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(server: ThreadingHTTPServer, **figures: float) -> None:
    usual = {"running": 2, "kv": 0.5, "tokens": 0, "ttft": 0, "count": 0}
    server.text = TEXT.format(**{**usual, **figures})  # type: ignore[attr-defined]


def watcher(server: ThreadingHTTPServer, clock: Clock) -> EndpointWatcher:
    return EndpointWatcher(endpoint_from_url(f"127.0.0.1:{server.server_port}", "m"), clock=clock)


def test_counters_become_rates_and_histograms_means(server: ThreadingHTTPServer) -> None:
    clock = Clock()
    watched = watcher(server, clock)
    shown(server, tokens=1000, ttft=10, count=10)
    assert "output_tokens_s" not in watched.look_once().figures  # nothing to compare with yet
    clock.now += 4
    shown(server, tokens=1400, ttft=16, count=13)

    figures = watched.look_once().figures

    assert figures["output_tokens_s"] == 100.0
    assert figures["ttft"] == 2.0
    assert figures["running"] == 2.0


def test_an_engine_that_began_anew_has_no_negative_rate(server: ThreadingHTTPServer) -> None:
    clock = Clock()
    watched = watcher(server, clock)
    shown(server, tokens=1000)
    watched.look_once()
    clock.now += 2
    shown(server, tokens=3)

    assert "output_tokens_s" not in watched.look_once().figures


def test_alerts_come_once_and_again_after_it_was_well(server: ThreadingHTTPServer) -> None:
    clock = Clock()
    watched = watcher(server, clock)
    for kv in (0.99, 0.99, 0.5, 0.99):
        shown(server, kv=kv)
        watched.look_once()

    assert [alert.name for alert in watched.alerts] == ["cache", "cache"]
    assert watched.active_alerts == {"cache"}


def test_requests_without_tokens_are_an_alert_after_a_while(server: ThreadingHTTPServer) -> None:
    clock = Clock()
    watched = watcher(server, clock)
    for _ in range(4):
        shown(server, tokens=1000)
        watched.look_once()
        clock.now += 15.0

    assert [alert.name for alert in watched.alerts] == ["silent"]


def test_an_endpoint_that_is_gone_is_an_alert() -> None:
    watched = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"), clock=Clock())
    for _ in range(GONE_LOOKS + 1):
        watched.look_once()

    assert [alert.name for alert in watched.alerts] == ["gone"]


def test_a_port_that_is_open_and_silent_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel accepts for a process that is stopped: not the same as an engine that has ended."""
    usual = http.get
    monkeypatch.setattr(http, "get", lambda url, **more: usual(url, **more | {"timeout_s": 0.05}))
    with socket.create_server(("127.0.0.1", 0)) as server:
        watched = EndpointWatcher(endpoint_from_url(f"127.0.0.1:{server.getsockname()[1]}", "m"), clock=Clock())
        for _ in range(GONE_LOOKS + 1):
            watched.look_once()

    assert [alert.name for alert in watched.alerts] == ["hung"]
    for _ in range(GONE_LOOKS):
        watched.add_look(MetricsLook(at=1.0, answered=True))
    for _ in range(GONE_LOOKS):  # llama.cpp has a thread for each slot and two more: a queue keeps it from answering
        figures = {"mute": 1.0, "connections": 14.0, "engine_cpu": 0.9}
        watched.add_look(MetricsLook(at=1.0, answered=False, figures=figures))
    assert watched.active_alerts == {"queue"}


def test_several_endpoints_are_watched_at_once(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line names its endpoint, and alerts reach the receiver with its address."""
    shown(server, kv=0.99)
    out = tmp_path / "alerts"
    monkeypatch.setenv("MOEBOX_ALERT", shlex.join(["tee", "-a", str(out)]))
    addresses = [f"{host}:{server.server_port}" for host in ("127.0.0.1", "localhost")]
    words = ["--every", "0.1s", "--canary", "0", "--time", "0.3s"]

    assert main(["watch", *addresses, *words]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f"m at {address}: alert: the KV cache is full" in printed for address in addresses)
    assert all(f'"url": "http://{address}/v1"' in out.read_text() for address in addresses)
    assert main(["watch", *addresses, *words, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["endpoints"]) == 2
    assert main(["watch", *addresses, "--model", "m"]) == 2


def test_a_check_that_fails_is_an_alert() -> None:
    watched = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"), clock=Clock())
    watched.add_canary(CheckVerdict(name="tools", verdict="fail", reason="3 of 4 calls were not JSON"), 1.0)

    assert watched.alerts[0].text == "tools: 3 of 4 calls were not JSON"


def test_the_command_prints_what_it_saw_and_its_code_tells_of_alerts(
    server: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(server, kv=0.99)
    words = ["watch", f"127.0.0.1:{server.server_port}", "--every", "0.1s", "--canary", "0", "--time", "0.3s", "--json"]

    assert main(words) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["alerts"][0]["name"] == "cache"
    assert document["looks"]


@pytest.mark.parametrize("words", [["--every", "0"], ["--every", "soon"], ["--json"]])
def test_what_cannot_be_meant_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "127.0.0.1:9", *words]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_charts_fit_a_narrow_terminal(server: ThreadingHTTPServer) -> None:
    from rich.console import Console

    clock = Clock()
    watched = watcher(server, clock)
    for step in range(60):
        shown(server, tokens=step * step * 10, running=step % 7)
        watched.look_once()
        clock.now += 2
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(watch_page(watched))
    text = console.export_text()

    assert all(len(row) <= 80 for row in text.splitlines())
    assert "output tok/s" in text
    assert "█" in text
    assert sparkline([0.0, 1.0], 40) == "▁█"
    assert look_line(MetricsLook(at=0.0, answered=False)) == "no answer"


def test_the_screen_begins_with_what_is_wrong_and_has_24_lines() -> None:
    """All figures known, four alerts of two lines and six checks; the cause stands under the name of the endpoint."""
    from rich.console import Console

    watched = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"), clock=Clock())
    watched.looks.append(MetricsLook(at=0.0, answered=True, figures={name: 1.0 for name, _, _ in SHOWN}))
    for number in range(6):
        watched.add_canary(CheckVerdict(name=f"check-{number}", verdict="fail", reason="wrong " * 12), 1.0)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(watch_page(watched))
    rows = console.export_text().splitlines()

    assert len(rows) <= 24
    assert rows[1].startswith("! check-")
    assert any("GPU clock, least" in row for row in rows)


def test_a_cache_of_two_ranks_is_as_full_as_they_are_on_average(server: ThreadingHTTPServer) -> None:
    """With data parallelism every rank shows a share of its own: two half full ones are no full cache."""
    ranks = [
        f'vllm:kv_cache_usage_perc{{engine="{rank}"}} 0.5\nvllm:num_requests_running{{engine="{rank}"}} 3\n'
        for rank in (0, 1)
    ]
    server.text = "".join(ranks)  # type: ignore[attr-defined]
    watched = watcher(server, Clock())

    figures = watched.look_once().figures

    assert (figures["kv_use"], figures["running"]) == (0.5, 6.0)
    assert watched.active_alerts == set()
