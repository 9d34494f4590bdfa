"""The load generator against real sockets that behave well and badly."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from moebox.bench.client_check import joined_share, merged_share
from moebox.bench.measure import MeasuredLoad, measure_load
from moebox.bench.probe import probe_endpoint
from moebox.core.endpoint import endpoint_from_url
from moebox.core.measure import Load, Workload
from moebox.core.result import result_document
from moebox.stream import sockets
from tests.bench.server import HEAD, Behaviour, Peer, chunk, event, good, serving, tail
from tests.sampling import one_in

WORK = Workload(input_tokens=8, output_tokens=6)
LOAD = Load(concurrency=4, requests=12)


def run(url: str, work: Workload = WORK, load: Load = LOAD, **more: object) -> MeasuredLoad:
    """One measurement of the server at `url`."""
    endpoint = endpoint_from_url(url, "m", key=str(more.pop("key")) if "key" in more else None)
    return measure_load(probe_endpoint(endpoint), work, load, scrape_metrics=False, **more)  # type: ignore[arg-type]


def test_a_good_server_is_counted_exactly() -> None:
    """Every request completes with every token, over as many connections as connections, and kernel times are used."""
    with serving(good) as server:
        made = run(server.url)
    result = made.result

    assert (result.completed, result.failed, result.truncated, result.empty) == (12, 0, 0, 0)
    assert (result.total_output_tokens, result.total_input_tokens) == (72, 12 * 9)
    assert len(made.samples.time) == 72
    assert result.max_concurrent_requests <= 4
    assert server.connections <= 4 + 2 + 3  # connections, the two looks, and /tokenize tries: connections are kept
    assert result.token_counts == "usage"
    assert result.client.clock in ("kernel", "user")
    assert not result.partial


def test_what_the_server_does_not_count_a_tokenizer_does() -> None:
    """Without usage in its streams, the server's own /tokenize says how many tokens a reply had, and the result how."""

    def silent(peer: Peer, body: dict[str, object]) -> bool:
        pieces = [chunk(event({"content": text})) for text in (" one", " two three", " four")]
        peer.send(HEAD, *pieces, chunk(event({"tool_calls": [{"index": 0}]})), tail(0, usage=False))
        return True

    with serving(silent, counts=False, tokenizes=True) as server:
        made = run(server.url)
    with serving(silent, counts=False) as server:
        plain = run(server.url)

    assert (made.result.token_counts, made.result.total_output_tokens) == ("tokenizer", 12 * 5)
    assert list(made.samples.tokens)[:4] == [1, 2, 1, 1]
    assert (plain.result.token_counts, plain.result.total_output_tokens) == ("chunks", 12 * 4)


def test_a_simulation_is_marked_as_one() -> None:
    """Figures of a server that says it simulates say so too."""

    def twin(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(HEAD[:-2] + b"X-Moebox-Simulation: true\r\n\r\n", chunk(event({"content": "a"})), tail(1))
        return True

    with serving(twin, look=twin) as server:
        assert run(server.url).result.simulation is True
    with serving(good) as server:
        assert run(server.url).result.simulation is False


def test_code_is_as_long_as_the_server_counts_it() -> None:
    """Without a tokenizer, the length of code in tokens comes from the server's count of one prompt."""

    def counting(peer: Peer, body: dict[str, object]) -> bool:
        words = len(str(body["messages"]).split())
        usage = {"prompt_tokens": 3 * words, "completion_tokens": 1, "total_tokens": 3 * words + 1}
        peer.send(HEAD, chunk(event({"content": "a"})), chunk(event(None, usage=usage)), chunk(b"data: [DONE]\n\n"))
        peer.send(b"0\r\n\r\n")
        return True

    with serving(counting) as server:
        made = run(
            server.url, Workload(kind="code", input_tokens=900, output_tokens=1), Load(concurrency=1, requests=2)
        )

    assert made.result.tokenizer_id.startswith("calibrated words (by the server")
    assert 800 < made.result.total_input_tokens / 2 < 1300


def test_a_seed_whose_prompts_are_reused_asks_the_same_and_no_two_prompts_share_a_head() -> None:
    """Seeds make requests repeatable; prompts must not feed a prefix cache by accident."""
    asked = []
    for _ in range(2):
        with serving(good) as server:
            run(server.url, replace(WORK, input_tokens=64, reuse_prompts=True))
        asked.append(sorted(json.dumps(body["messages"]) for body in server.asked))

    assert asked[0] == asked[1]
    assert len({text[:80] for text in asked[0]}) == 12


def test_several_workers_share_the_work() -> None:
    """Two processes ask every request once."""
    with serving(good) as server:
        result = run(server.url, load=replace(LOAD, workers=2)).result

    assert (result.completed, result.client.workers) == (12, 2)
    assert len({json.dumps(body["messages"]) for body in server.asked}) == 12


def dropping(peer: Peer, body: dict[str, object]) -> bool:
    """Hang up in the middle of the third token."""
    piece = chunk(event({"content": " a"}))
    peer.send(HEAD, piece, piece, piece[:20])
    return False


def erring(peer: Peer, body: dict[str, object]) -> bool:
    """Report an error inside the stream."""
    peer.send(HEAD, chunk(event({"content": " a"})), chunk(b'data: {"error":{"message":"CUDA error"}}\n\n'))
    peer.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return True


def unfinished(peer: Peer, body: dict[str, object]) -> bool:
    """End the response properly, but with neither finish reason nor [DONE]."""
    peer.send(HEAD, chunk(event({"content": " a"})), b"0\r\n\r\n")
    return True


def empty(peer: Peer, body: dict[str, object]) -> bool:
    """No token at all."""
    peer.send(HEAD, tail(0))
    return True


def refusing(peer: Peer, body: dict[str, object]) -> bool:
    """Too many requests."""
    peer.json(400, {"error": {"message": "too long"}})
    return True


def garbage(peer: Peer, body: dict[str, object]) -> bool:
    """Something that is not HTTP."""
    peer.send(b"hello there\r\n\r\n")
    return False


def halves(peer: Peer, body: dict[str, object]) -> bool:
    """A good reply, one byte in each write, with comments and CRLF between."""
    pieces = [chunk(b": ping\r\n\r\n")]
    pieces += [chunk(event({"content": " é"}).replace(b"\n\n", b"\r\n\r\n"))] * int(str(body["max_tokens"]))
    for byte in HEAD + b"".join(pieces) + tail(int(str(body["max_tokens"]))):
        peer.send(bytes([byte]))
    return True


def packed(peer: Peer, body: dict[str, object]) -> bool:
    """Everything in one packet."""
    peer.send(
        HEAD + chunk(event({"content": " a"})) * int(str(body["max_tokens"])) + tail(int(str(body["max_tokens"])))
    )
    return True


def closing(peer: Peer, body: dict[str, object]) -> bool:
    """A good reply that ends with the connection."""
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    peer.send(event({"content": " a"}) * int(str(body["max_tokens"])), event({}, finish="stop"), b"data: [DONE]\n\n")
    return False


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        (dropping, "truncated", "without [DONE]"),
        (erring, "failed", "CUDA error"),
        (unfinished, "truncated", "without [DONE]"),
        (empty, "empty", "no token"),
        (refusing, "failed", "HTTP 400: too long"),
        (garbage, "failed", "not an HTTP/1.1 response"),
        (halves, "completed", ""),
        (packed, "completed", ""),
        (closing, "completed", ""),
    ],
)
def test_faults_are_counted_apart(behaviour: Behaviour, outcome: str, reason: str) -> None:
    """What did not complete never enters an average, and says why."""
    with serving(behaviour) as server:
        result = run(server.url, load=Load(concurrency=2, requests=4)).result
    counts = {name: getattr(result, name) for name in ("completed", "failed", "truncated", "empty")}

    assert counts == {**dict.fromkeys(counts, 0), outcome: 4}
    assert result.ttft.mean is None or outcome == "completed"
    assert not reason or any(reason in text for text in result.errors)
    assert outcome != "completed" or result.total_output_tokens == 24


def test_a_busy_server_is_asked_again_later() -> None:
    """503 for a while: those requests fail, the ones after them complete, and connections wait before they go on."""

    def busy(peer: Peer, body: dict[str, object]) -> bool:
        if len(peer.state.asked) <= 3:
            peer.json(503, {"error": "loading"})
            return True
        return good(peer, body)

    with serving(busy) as server:
        result = run(server.url, load=Load(concurrency=2, requests=8)).result

    assert (result.failed, result.completed) == (3, 5)
    assert result.errors == {"HTTP 503: loading": 3}


def test_silence_ends_a_request() -> None:
    """A stalled stream fails after --set load.stall_s=instead of holding the run up."""

    def stalling(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(HEAD, chunk(event({"content": " a"})))
        time.sleep(5)
        return False

    with serving(stalling) as server:
        result = run(server.url, load=Load(concurrency=1, requests=1, stall_s=0.6)).result

    assert (result.failed, list(result.errors)) == (1, ["silent for 0.6 s"])


def test_a_server_that_is_gone_fails_every_request() -> None:
    """No connection is a failure with a reason, not a traceback."""
    with serving(good) as server:
        endpoint = endpoint_from_url(server.url, "m")
        subject = probe_endpoint(endpoint)
        server.close()
        time.sleep(0.05)
    gone = replace(subject, address=sockets.address_from_url("http://127.0.0.1:9/v1"))
    result = measure_load(gone, WORK, Load(concurrency=2, requests=2), scrape_metrics=False).result

    assert (result.failed, list(result.errors)) == (2, ["connection refused"])


def test_a_connection_closed_while_idle_is_opened_again() -> None:
    """Servers drop kept connections; that is not a failure."""

    def once(peer: Peer, body: dict[str, object]) -> bool:
        good(peer, body)
        return False

    with serving(once) as server:
        result = run(server.url, load=Load(concurrency=2, requests=8)).result

    assert (result.completed, result.failed) == (8, 0)


def test_conversations_grow_by_what_was_said() -> None:
    """Each turn carries all before it, with the server's own replies."""
    work = replace(WORK, kind="turns", turns=3, output_tokens=2, think_s=0.01)
    with serving(good) as server:
        result = run(server.url, work, Load(concurrency=2, requests=6)).result
    roles = sorted([m["role"] for m in body["messages"]] for body in server.asked)  # type: ignore[attr-defined,index]

    assert result.completed == 6
    assert roles == sorted([["user"] * 1, ["user", "assistant", "user"], ["user", "assistant"] * 2 + ["user"]] * 2)
    assert {m["content"] for body in server.asked for m in body["messages"] if m["role"] == "assistant"} == {" a a"}  # type: ignore[attr-defined,index]


def test_an_open_loop_sends_by_the_clock() -> None:
    """Requests are due at their arrival times whatever became of the ones before."""
    with serving(good) as server:
        made = run(server.url, load=Load(rate=50.0, arrivals="constant", requests=10))
    due = sorted(made.samples.columns["due"])

    assert made.result.completed == 10
    assert [round((b - a) / 1e6) for a, b in itertools.pairwise(due)] == [20] * 9
    assert all(s >= d for s, d in zip(made.samples.columns["sent"], made.samples.columns["due"], strict=True))


def test_an_open_loop_that_cannot_send_in_time_is_limited_by_the_client() -> None:
    """400 long requests due within a hundredth of a second: the figure is marked, and says why."""
    with serving(good) as server:
        work, load = (
            replace(WORK, input_tokens=4000, output_tokens=1),
            Load(rate=1e5, arrivals="constant", requests=400),
        )
        result = run(server.url, work, load).result

    assert result.client_limited
    assert any("were sent" in reason for reason in result.client.reasons)


def test_a_trace_is_replayed_at_its_own_times(tmp_path: Path) -> None:
    """Timestamps, lengths and shared blocks come from the file."""
    rows = [
        {"timestamp": 1000 + 50 * i, "input_length": 520, "output_length": 2 + i, "hash_ids": [7]} for i in range(3)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    with serving(good) as server:
        made = run(server.url, Workload(kind="trace", file=str(file)), Load())
    texts = [body["messages"][0]["content"] for body in server.asked]  # type: ignore[index]

    assert sorted(made.samples.columns["output"]) == [2, 3, 4]
    assert len({text[:2000] for text in texts}) == 1
    assert len(set(texts)) == 3


def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    """JSON lines and ShareGPT conversations alike."""
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": 'say "hi"\n', "max_tokens": 2},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "x" * 20}]},
    ]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    with serving(good) as server:
        run(server.url, Workload(kind="prompts", file=str(file)), Load(concurrency=1, requests=2))

    assert {(body["messages"][0]["content"], body["max_tokens"]) for body in server.asked} == {  # type: ignore[index]
        ('say "hi"\n', 2),
        ("q", 5),
    }


def test_the_key_travels_in_the_header_and_nowhere_else() -> None:
    """Every request carries it; the result does not."""
    with serving(good) as server:
        made = run(server.url, key="sk-secret-1")

    assert ("authorization", "Bearer sk-secret-1") in server.headers
    assert "sk-secret-1" not in json.dumps(result_document(made.result))


@pytest.mark.parametrize("number", one_in(3, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_an_interrupt_keeps_what_was_measured(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, a service manager or a closed terminal: exit code 130, a file marked partial, and how to go on."""
    file = tmp_path / "result.json"
    code, output, url = interrupted(number, file, "2,4", after=3)
    result = json.loads(file.read_text())

    assert code == 130
    assert (result["partial"], result["completed"], result["cancelled"]) == (True, 3, 2)
    again = f"moebox bench {url} --model m --input 256 --output 3 --concurrency 2,4 --requests 9 -o {file}"
    assert f"resume with: {again}\n" in output
    assert "Traceback" not in output


def test_going_on_after_an_interrupt_spares_what_was_measured(tmp_path: Path) -> None:
    """The first load is done and in the file: the others go into another one."""
    file = tmp_path / "result.json"
    _, output, _ = interrupted(signal.SIGINT, file, "1,2,4", after=9)

    assert [result["partial"] for result in json.loads(file.read_text())["results"]] == [False, True]
    assert f"--concurrency 2,4 --requests 9 -o {tmp_path / 'result-2.json'}\n" in output


def interrupted(number: signal.Signals, file: Path, loads: str, *, after: int) -> tuple[int, str, str]:
    """A sweep that is ended when so many requests were answered: exit code, stderr, and where it was measured."""

    def slow(peer: Peer, body: dict[str, object]) -> bool:
        if len(peer.state.asked) <= after:
            return good(peer, body)
        peer.send(HEAD, chunk(event({"content": " a"})))
        time.sleep(20)
        return False

    with serving(slow) as server:
        url = server.url
        command = [sys.executable, "-c", "import sys; from moebox.cli import main; sys.exit(main())", "bench"]
        flags = ["--model", "m", "--concurrency", loads, "--requests", "9", "--output", "3", "-o", str(file)]
        process = subprocess.Popen(
            [*command, url, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        while len(server.asked) < after + 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, number)
        output = process.communicate(timeout=30)[1].decode()
    return process.returncode, output, url


def test_a_server_that_holds_tokens_back_is_not_the_clients_fault() -> None:
    """Without TCP_NODELAY a server's kernel sends small writes together, once the last were acknowledged."""

    def held(peer: Peer, body: dict[str, object]) -> bool:
        peer.send(HEAD, chunk(event({"role": "assistant", "content": ""})))
        for _ in range(10):
            time.sleep(0.04)
            peer.send(chunk(event({"content": " a"})) * 4)
        peer.send(tail(40))
        return True

    with serving(held) as server:
        made = run(server.url, replace(WORK, output_tokens=40), Load(concurrency=2, requests=4))

    assert made.result.completed == 4
    assert merged_share(made.samples) > 0
    assert joined_share(made.samples) == 0, "however late this machine let the client read"
