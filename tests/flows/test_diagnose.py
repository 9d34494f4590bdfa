"""`moebox watch` names the cause of a fault, and is quiet while nothing is wrong."""

import json
import random
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moebox.core.endpoint import endpoint_from_url
from moebox.detect.conditions import decode_address, sample_connections
from moebox.flows.watch import EndpointWatcher, MetricsLook, WatchHistory, send_alert
from moebox.store import Run
from tests.serving import live

EVERY_S = 2.0
Figures = dict[str, float]


def usual_figures(rng: random.Random) -> Figures:
    """A busy server that is well: a draft, a warm prefix cache, a queue now and then."""
    figures = {
        "running": rng.randint(4, 12),
        "waiting": rng.choice((0, 0, 0, 2)),
        "kv_use": rng.uniform(0.3, 0.7),
        "output_tokens_s": rng.uniform(400, 900),
        "prompt_tokens_s": rng.uniform(0, 9000),
        "preemptions_s": 0.0,
        "stalled_requests": 0.0,
        "accept_length": rng.uniform(2.2, 3.1),
        "gpu_throttled": 0.0,
        "unread_bytes": rng.choice((0.0, 2048.0)),
        "clients": 5.0,
        "top_client_share": rng.uniform(0.2, 0.5),
        "users": 3.0,
        "top_user_share": rng.uniform(0.3, 0.75),
        "first_byte": rng.uniform(0.2, 0.9),
        "tpot": rng.uniform(0.012, 0.02),
    }
    if rng.random() < 0.7:  # requests that ended
        ended = {"ttft": rng.uniform(0.2, 0.9), "prompt_length": rng.uniform(600, 6000)}
        figures |= ended | {"cache_hit_rate": rng.uniform(0.6, 0.95)}
    return {name: float(value) for name, value in figures.items()}


def watch_series(fault: Callable[[Figures], Figures] | None, seed: int, minutes: float = 3.0) -> EndpointWatcher:
    """Ten usual minutes, then the fault."""
    rng, watcher, at = random.Random(seed), EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m")), 0.0
    about = {"unread_bytes": "client 10.0.0.7", "top_user_share": "user anna"}
    while at < (10 + minutes) * 60:
        figures = usual_figures(rng)
        answered = True
        if fault and at >= 600:
            figures = fault(figures)
            answered = bool(figures)
        watcher.add_look(MetricsLook(at=at, answered=answered, figures=figures, about=about))
        at += EVERY_S
    return watcher


FAULTS: dict[str, Callable[[Figures], Figures]] = {
    "gone": lambda seen: {},
    "silent": lambda seen: {**seen, "output_tokens_s": 0.0, "stalled_requests": seen["running"]},
    "slots": lambda seen: {**seen, "waiting": 9.0},
    "queue": lambda seen: {**seen, "waiting": 9.0, "kv_use": 0.93},
    "preempting": lambda seen: {**seen, "preemptions_s": 0.5, "kv_use": 0.94},
    "acceptance": lambda seen: {**seen, "accept_length": 1.1},
    "cache misses": lambda seen: seen | ({"cache_hit_rate": 0.08} if "cache_hit_rate" in seen else {}),
    "throttling": lambda seen: {**seen, "gpu_throttled": 1.0},
    "unread": lambda seen: {**seen, "unread_bytes": 2.5e6},
    "crowding": lambda seen: seen | ({"ttft": 9.0, "prompt_length": 60_000.0} if "ttft" in seen else {}),
    "one client": lambda seen: {**seen, "waiting": 5.0, "top_client_share": 0.93},
    "one user": lambda seen: {**seen, "top_user_share": 0.95, "first_byte": 4.0},
    "slower": lambda seen: {**seen, "tpot": 0.08, "running": 6.0, "kv_use": 0.4},
    "context": lambda seen: {**seen, "context_full": 1.0},
    "crowding ": lambda seen: {"stalled_requests": 1.0, "prompt_length": 60_000.0},
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.siege) for seed in (1, 2))])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_evidence_and_command(name: str, seed: int):
    """The cause is among the alerts, and at most one other one that follows from it."""
    alerts, name = watch_series(FAULTS[name], seed).alerts, name.strip()

    assert name in {alert.name for alert in alerts}
    assert len({alert.name for alert in alerts}) <= 2
    text = next(alert.text for alert in alerts if alert.name == name)
    assert name == "gone" or ("change: " in text and "`" in text)
    assert ("user anna" in text) is (name == "one user")
    assert ("client 10.0.0.7" in text) is (name == "unread")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.siege) for seed in range(1, 5))])
def test_a_quiet_half_hour_raises_nothing(seed: int):
    """Loads that vary by half, short queues and requests that end irregularly are not faults."""
    assert watch_series(None, seed, minutes=20).alerts == []


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_has_ended_is_the_only_alert(seed: int):
    """The last answers before its end, with few cache hits, raised an alert about its cache a minute later."""
    rng, watcher = random.Random(seed), EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"))
    for step in range(200):
        figures = usual_figures(rng) if step < 150 else {}
        if 135 < step < 150:
            figures["cache_hit_rate"] = 0.08
        watcher.add_look(MetricsLook(at=step * EVERY_S, answered=bool(figures), figures=figures))
    assert {alert.name for alert in watcher.alerts} <= {"gone", "cache misses"}
    assert watcher.alerts[-1].name == "gone"


def test_an_idle_server_raises_nothing():
    """No requests for half an hour, then the first ones."""
    watcher = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"))
    idle = {"running": 0.0, "waiting": 0.0, "kv_use": 0.0, "output_tokens_s": 0.0, "stalled_requests": 0.0}
    for step in range(1000):
        figures = idle if step < 900 else usual_figures(random.Random(step))
        watcher.add_look(MetricsLook(at=step * EVERY_S, answered=True, figures=figures))
    assert watcher.alerts == []


def test_other_programs_are_named_where_most_looks_find_no_request_running():
    """Short replies of two clients: the usual number of running requests is half a request, its median none."""
    watcher = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"))
    for step in range(120):
        busy = step >= 80
        figures = {"running": float(step % 2 if busy else step % 3 == 0), "tpot": 0.09 if busy else 0.006}
        figures["other_cpu"] = 0.9 if busy else 0.01
        watcher.add_look(MetricsLook(at=step * EVERY_S, answered=True, figures=figures))
    assert [alert.name for alert in watcher.alerts] == ["slower"]


def test_a_client_that_never_reads_is_seen_in_its_connection():
    """A real socket: the kernel holds what the client does not read, and its address is known."""
    assert decode_address("0100007F" if sys.byteorder == "little" else "7F000001") == "127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            held, _ = server.accept()
            held.setblocking(False)
            with held:
                try:
                    while True:
                        held.send(b"x" * 65536)
                except BlockingIOError:
                    figures, who = sample_connections(port)
            assert figures["unread_bytes"] > 65536
            assert who == f"127.0.0.1 port {client.getsockname()[1]}"


def test_counters_of_drafts_and_prefixes_become_figures():
    """Accepted tokens a step with the engine's own, and the share of prompt tokens that came from the cache."""
    clock = iter((100.0, 110.0))
    watcher = EndpointWatcher(endpoint_from_url("127.0.0.1:9", "m"), clock=lambda: next(clock))
    names = ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens", "prefix_cache_queries", "prefix_cache_hits")
    for values in ((0, 0, 0, 0), (100, 150, 4000, 3000)):
        figures = watcher.derive_figures(
            {f"vllm:{name}_total": float(value) for name, value in zip(names, values, strict=True)}
        )

    assert (figures["accept_length"], figures["cache_hit_rate"]) == (2.5, 0.75)


def test_the_log_of_a_slot_server_becomes_figures(tmp_path: Path):
    """Prompts with their cached tokens, drafts, and a full context, counted from where the watch began to read."""
    log = tmp_path / "engine.log"
    log.write_text("slot update_slots: id  3 | task 1 | new prompt, n_ctx_slot = 8, n_keep = 0, task.n_tokens = 9\n")
    endpoint = replace(endpoint_from_url("127.0.0.1:9", "m", engine="llama.cpp"), log=str(log))
    watcher = EndpointWatcher(endpoint)
    watcher.derive_figures({})
    lines = []
    for task, (tokens, cached) in enumerate(((34, 17), (166, 133))):
        lines += [
            f"slot update_slots: id  3 | task {task} | new prompt, n_ctx_slot = 8, n_keep = 0, task.n_tokens = {tokens}"
        ]
        lines += [f"slot update_slots: id  3 | task {task} | n_tokens = {cached}, memory_seq_rm [{cached}, end)"]
    lines += ["slot update_slots: id  3 | task 1 | n_tokens = 512, memory_seq_rm [512, end)"]  # a prompt's next batch
    lines += ["draft acceptance rate = 0.25000 (   10 accepted /    40 generated)"]
    lines += ["slot      release: id  1 | task 21 | stop processing: n_tokens = 8192, truncated = 1", ""]
    with log.open("a") as file:
        file.write("\n".join(lines))

    figures = watcher.derive_figures({})

    wanted = {"cache_hit_rate": 0.75, "prompt_length": 100.0, "accept_share": 0.25, "context_full": 1.0}
    assert {name: figures[name] for name in wanted} == wanted
    assert watcher.derive_figures({})["context_full"] == 0.0


def test_alerts_reach_a_webhook_and_a_command(tmp_path: Path):
    """JSON by POST, or on the command's standard input; a receiver that fails is one line."""
    received: list[dict[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    alert = watch_series(FAULTS["throttling"], 1).alerts[0]
    endpoint = endpoint_from_url("127.0.0.1:9", "m")
    with live(ThreadingHTTPServer(("127.0.0.1", 0), Hook)) as server:
        assert send_alert(f"http://127.0.0.1:{server.server_port}/hook", alert, endpoint) == ""
    out = tmp_path / "alert.json"
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    assert send_alert(shlex.join([sys.executable, "-c", code, str(out)]), alert, endpoint) == ""

    assert received[0]["name"] == json.loads(out.read_text())["name"] == "throttling"
    assert "No such file" in send_alert("/does/not/exist", alert, endpoint)


def test_history_is_kept_in_the_run_folder_and_stays_small(tmp_path: Path):
    """A line every ten seconds and one for each alert; an old file is replaced, never two kept beside it."""
    run = Run.create("watch", runs=tmp_path)
    history = WatchHistory(run.path, limit=20_000)
    watcher = watch_series(FAULTS["unread"], 2)
    for look in watcher.looks:
        history.add(look, watcher.alerts if look is watcher.looks[-1] else [])

    lines = [json.loads(line) for line in (run.path / "watch.jsonl").read_text().splitlines()]
    assert lines[-1]["alert"] == "unread"
    assert (run.path / "watch.jsonl.1").stat().st_size < 21_000
