"""The twin as a client sees it: a real server on a free port, OpenAI's shapes, and a sign on everything."""

import contextlib
import http.client
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moebox.bench.probe import choose_words
from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.serve import state
from moebox.serve.state import find_key
from tests.bench.server import good, serving

CODE = "import sys; from moebox.cli import main; sys.exit(main())"
WORDS = ["kimi-k2.6", "--box", "8x-rtx-pro-6000-server", "--set", "engine=vllm"]
SETTINGS = ["--set", "runtime.preset=community", "--set", "kv=fp8", "--set", "context=8192", "--speed", "20"]
HEADER = "x-moebox-simulation"


@contextlib.contextmanager
def running(*words: str) -> Iterator[dict[str, Any]]:
    """A twin in its own process, and what it says of itself."""
    command = [sys.executable, "-c", CODE, "twin", *words, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        yield json.loads(text)
        process.terminate()


@pytest.fixture(scope="module")
def twin() -> Iterator[dict[str, Any]]:
    """One twenty times as fast as the box."""
    with running(*WORDS, *SETTINGS) as reported:
        yield reported


def ask(
    twin: dict[str, Any], path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request, with the key unless `headers` are given; the response with its header, and its body."""
    host = str(twin["url"]).removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=60)
    raw = body if isinstance(body, str | None) else json.dumps(body)
    known = {"Authorization": f"Bearer {twin['key']}"} if "key" in twin else {}
    connection.request("GET" if body is None else "POST", path, raw, known if headers is None else headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def chat(twin: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": twin["model"], "messages": [{"role": "user", "content": "Say hello."}], **settings}


def events(content: bytes) -> list[Any]:
    """The events of a stream; the last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in content.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/nowhere"])
def test_every_page_says_that_it_is_a_simulation(twin: dict[str, Any], path: str) -> None:
    """The header is on every response, and everything with a body says it there too."""
    response, content = ask(twin, path)

    assert response.headers[HEADER] == "20"  # times the speed of its forecast
    assert path in ("/health", "/nowhere") or b"simulation" in content.lower()


def test_models_lists_the_served_name(twin: dict[str, Any]) -> None:
    """One model, with the context of the recipe."""
    _, content = ask(twin, "/v1/models")

    (card,) = json.loads(content)["data"]
    assert card["id"] == twin["model"]
    assert card["max_model_len"] == 8192


def test_a_recipe_that_leaves_the_context_open_has_the_models(tmp_path: Path) -> None:
    """It served a context of 0 tokens, which is no request at all."""
    path = tmp_path / "recipe.toml"
    assert main(["plan", "qwen3-235b", "--box", "8x-h200", "-o", str(path)]) == 0
    path.write_text(re.sub("(?m)^context = .*$", "context = 0", path.read_text()))

    with running(str(path), "--speed", "100") as reported:
        (card,) = json.loads(ask(reported, "/v1/models")[1])["data"]
        answer, _ = ask(reported, "/v1/chat/completions", chat(reported, max_tokens=4))
        page = ask(reported, "/")[1].decode()
    assert card["max_model_len"] == 40960
    assert answer.status == 200
    assert "context 40,960" in page


def test_max_tokens_is_honoured_and_the_text_is_the_same_twice(twin: dict[str, Any]) -> None:
    """Twenty tokens asked for, twenty given, and the same words for the same prompt."""
    first, second = (json.loads(ask(twin, "/v1/chat/completions", chat(twin, max_tokens=20))[1]) for _ in range(2))

    assert first["usage"]["completion_tokens"] == 20
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]
    assert "simulation" in first["system_fingerprint"]
    assert "simulation" in first["simulation"]


def test_a_stream_has_the_shape_clients_expect(twin: dict[str, Any]) -> None:
    """Role first, a chunk for each step, a finish reason, usage when asked for, [DONE]; all marked."""
    body = chat(twin, max_tokens=30, stream=True, stream_options={"include_usage": True})
    _, content = ask(twin, "/v1/chat/completions", body)
    pieces = events(content)
    whole = json.loads(ask(twin, "/v1/chat/completions", chat(twin, max_tokens=30))[1])

    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces[:-1])
    assert text == whole["choices"][0]["message"]["content"]
    assert pieces[-2]["choices"][0]["finish_reason"] == "length"
    assert pieces[-1]["usage"]["completion_tokens"] == 30
    assert len(pieces) == 30 + 3
    assert all(piece["system_fingerprint"] and piece["simulation"] for piece in pieces)


def test_completions_take_token_numbers(twin: dict[str, Any]) -> None:
    """A prompt of token numbers is as long as its list."""
    body = {"model": twin["model"], "prompt": list(range(100)), "max_tokens": 5}

    answer = json.loads(ask(twin, "/v1/completions", body)[1])

    assert answer["object"] == "text_completion"
    assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 400),
        ({"messages": []}, 400),
        ({"messages": "hello"}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 9000}, 400),
        ({"messages": [{"role": "user", "content": "x" * 60_000}]}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "n": 3}, 400),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, 404),
    ],
)
def test_what_an_engine_refuses_is_refused(twin: dict[str, Any], body: Any, status: int) -> None:
    """Bad bodies get OpenAI's error shape and a sentence, never a traceback."""
    response, content = ask(twin, "/v1/chat/completions", body)

    assert response.status == status
    assert json.loads(content)["error"]["message"]


def test_metrics_count_in_vllms_names(twin: dict[str, Any]) -> None:
    """Tokens made go up by what was asked for; the cache's size is a label, as vLLM has it."""

    def made() -> float:
        _, content = ask(twin, "/metrics")
        lines = [line for line in content.decode().splitlines() if line.startswith("vllm:generation_tokens_total")]
        return float(lines[0].split()[-1])

    before = made()
    ask(twin, "/v1/chat/completions", chat(twin, max_tokens=40))
    _, content = ask(twin, "/metrics")

    assert made() == before + 40
    assert f'kv_cache_size_tokens="{twin["kv_tokens"]}"'.encode() in content
    for name in (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc"):
        assert name in content


def test_many_clients_at_once_all_get_their_tokens(twin: dict[str, Any]) -> None:
    """Thirty streams share the simulated batch; each gets exactly what it asked for."""

    def stream(number: int) -> int:
        body = chat(twin, max_tokens=10 + number, stream=True, stream_options={"include_usage": True})
        pieces = events(ask(twin, "/v1/chat/completions", body)[1])
        return int(pieces[-1]["usage"]["completion_tokens"])

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(stream, range(30))) == [10 + number for number in range(30)]


def test_a_client_that_goes_away_leaves_the_queue(twin: dict[str, Any]) -> None:
    """A stream closed by its client is taken out of the simulated batch."""
    host = str(twin["url"]).removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=60)
    headers = {"x-api-key": str(twin["key"])}
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(twin, max_tokens=8000, stream=True)), headers)
    response = connection.getresponse()
    assert response.read(10)
    response.close()
    connection.close()
    left = threading.Event()

    def running() -> bool:
        content = ask(twin, "/metrics")[1].decode()
        return any(
            line.startswith("vllm:num_requests_running") and line.endswith(" 0") for line in content.splitlines()
        )

    for _ in range(200):
        if running():
            left.set()
            break
        threading.Event().wait(0.05)
    assert left.is_set()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_the_twin_answers_to_this_machines_names_only(twin: dict[str, Any], host: str) -> None:
    """A page from elsewhere that points its own name at the loopback address reads nothing."""
    address = str(twin["url"]).removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.putrequest("GET", "/v1/models", skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == 421
    connection.close()


def test_a_load_generator_learns_how_long_its_words_are(twin: dict[str, Any]) -> None:
    """Prompts were 45 % longer than asked: the twin counts letters, and had no route that says so."""
    text = choose_words(endpoint_from_url(str(twin["url"]), str(twin["model"]), key=str(twin["key"])))
    assert text.source == "the server's /tokenize, mean length"
    assert 1.3 < text.tokens_per_word < 1.6


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--requests", "2", "--input", "32", "--output", "8"],
        ["verify", "--only", "alive"],
        ["task", "--family", "errand", "--jobs", "1", "--set", "job_s=5s"],
        ["watch", "--time", "1s", "--canary", "0"],
        ["connect", "curl"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_that_no_model_answers(
    words: list[str], twin: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own output, and in the lists of runs where it leaves one."""
    monkeypatch.setenv("THE_KEY", twin["key"])
    main([*words, twin["url"], "--key-env", "THE_KEY"])
    noted = " ".join(capsys.readouterr().err.split())
    assert "this endpoint is a simulation: it runs at 20x its forecast speed, so its figures mean nothing" in noted
    main(["runs", "--json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == (words[0] in ("bench", "verify", "task", "watch"))
    assert all(run["simulation"] for run in runs)
    main(["runs"])
    assert capsys.readouterr().out.count("simulated") == len(runs)


@pytest.mark.parametrize("speed", ["1", "1e3"])
def test_a_benchmark_of_a_simulation_keeps_its_speed(
    speed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of a twin that runs faster than its box are no forecast: on the screen, in JSON, in the run and its
    reports. Those of one that does not are.
    """
    with running(*WORDS, *SETTINGS[:-1], speed) as reported:
        words = ["bench", reported["url"], "--requests", "2", "--input", "32", "--output", "4", "--json"]
        assert main(words) == 0
        shown = capsys.readouterr()
        assert main([*words[:2], "--tg", "4", "--set", "repeat=1", "--json"]) == 0
        tests = json.loads(capsys.readouterr().out)
        assert main(["compare", reported["url"], reported["url"], "--effort", "quick", "--concurrency", "1"]) in (0, 1)
        compared = capsys.readouterr()
        assert main(["compare", reported["url"], reported["url"], "--by", "task"]) == 2
        assert "a simulation does no work" in capsys.readouterr().err
    result = json.loads(shown.out)
    (run,) = (
        path
        for path in Path(os.environ["MOEBOX_RUNS"]).iterdir()
        if (path / "measurements" / "random-c1.json").exists()
    )
    main(["runs", "show", run.name])
    main(["report", run.name, "-o", str(tmp_path / "r.md")])
    texts = [shown.err, compared.err, capsys.readouterr().out, (tmp_path / "r.md").read_text()]
    texts += [" ".join(result["flags"]), " ".join(tests["flags"])]  # a busy machine has flags of its own
    marked = ["1000x its forecast speed" in " ".join(text.split()) for text in texts]

    assert result["simulation"]
    assert reported["speed"] == float(speed)
    assert "answers were not compared" in compared.out
    assert ("its speed is a forecast" in shown.err) == (speed == "1")
    assert marked == [speed != "1"] * len(texts)


def test_answers_of_a_simulation_are_not_judged(
    twin: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server replies; what it writes was made up, so no check fails for it and no cause is named."""
    monkeypatch.setenv("THE_KEY", twin["key"])
    words = ["verify", twin["url"], "--key-env", "THE_KEY", "--effort", "quick"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([*words, "--only", "plain,tools", "--json"]) == 0
    nothing = json.loads(capsys.readouterr().out)
    main(words)

    rungs = {rung["name"]: rung for rung in document["rungs"]}
    assert rungs.pop("alive")["verdict"] == "pass"
    assert {rung["verdict"] for rung in (*rungs.values(), *nothing["rungs"])} == {"skip"}
    assert all("its text is made up" in rung["reason"] for rung in (*rungs.values(), *nothing["rungs"]))
    assert (document["verdict"], nothing["verdict"]) == ("warn", "warn")
    shown = capsys.readouterr().out
    assert "likely cause" not in shown
    assert "answers are not judged" in " ".join(shown.split())


def test_a_simulation_is_compared_with_no_engine(
    twin: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor kept in the run of one."""
    monkeypatch.setenv("THE_KEY", twin["key"])
    with serving(good) as server:
        assert main(["compare", twin["url"], server.url, "--model", twin["model"], "--key-env", "THE_KEY"]) == 2
        assert "A is a simulation and B is not" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/tokenize", "/v1/chat/completions", "/nowhere"])
def test_without_its_key_the_twin_answers_nothing(twin: dict[str, Any], path: str) -> None:
    """Other users of the machine have no key; that it is up, anyone may see."""
    body = None if path in ("/", "/v1/models", "/metrics") else chat(twin, max_tokens=1)
    key = str(twin["key"])
    assert len(key) >= 22  # 128 bits in base64
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {key}x"}, {"x-api-key": key[:-1]}):
        response, content = ask(twin, path, body, headers)
        assert response.status == 401
        assert "key" in json.loads(content)["error"]["message"]
        assert key not in content.decode()
    assert ask(twin, "/health", headers={})[0].status == 200


def test_a_browser_opens_the_page_with_the_key_in_its_address(twin: dict[str, Any]) -> None:
    """The page alone: its address is printed, and sent nowhere else."""
    response, _ = ask(twin, f"/?key={twin['key']}", headers={})
    assert response.status == 200
    assert response.headers["Referrer-Policy"] == "no-referrer"
    assert ask(twin, f"/v1/models?key={twin['key']}", headers={})[0].status == 401


def test_other_commands_of_the_same_user_find_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    """`moebox twin` in one terminal, `moebox verify URL` in another; the file is its owner's and ends with the twin."""
    with running(*WORDS, *SETTINGS) as reported:
        (path,) = (state.state_dir() / "keys").iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert main(["bench", reported["url"], "--requests", "2", "--input", "32", "--output", "8"]) == 0
        assert main(["connect", "curl", reported["url"], "--check"]) == 0
        shown = capsys.readouterr()
        assert "$MOEBOX_TWIN_KEY" in shown.out
        assert reported["key"] not in shown.out + shown.err
        assert find_key("", reported["url"]) == reported["key"]
        for other in ("localhost", "[::1]", "127.0.0.2", "example.org"):  # where another user's server could be
            assert find_key("", reported["url"].replace("127.0.0.1", other)) is None
    assert find_key("", reported["url"]) is None


def test_a_twin_takes_a_key_that_is_given_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """--key-env reads it and prints nothing; --open asks for none; both at once, or an empty variable, is one line."""
    monkeypatch.setenv("THE_KEY", "quite-a-secret-key")
    with running(*WORDS, *SETTINGS, "--key-env", "THE_KEY") as reported:
        assert "quite-a-secret-key" not in str(reported)
        assert ask(reported, "/v1/models", headers={})[0].status == 401
        assert ask(reported, "/v1/models", headers={"Authorization": "Bearer quite-a-secret-key"})[0].status == 200
    with running(*WORDS, *SETTINGS, "--open") as reported:
        assert ask(reported, "/v1/models", headers={})[0].status == 200
    assert main(["twin", *WORDS, *SETTINGS, "--open", "--key-env", "THE_KEY"]) == 2
    assert main(["twin", *WORDS, *SETTINGS, "--key-env", "NO_SUCH_KEY"]) == 2


def test_people_are_shown_the_key_or_that_there_is_none() -> None:
    """In the terminal, as an export for clients and as the page's address."""
    for words, wanted in (
        ([], r"export MOEBOX_TWIN_KEY=([\w-]{22,})\nhttp://127.0.0.1:\d+/\?key=\1\n"),
        (["--open"], "open: "),
    ):
        command = [sys.executable, "-c", CODE, "twin", *WORDS, *SETTINGS, "--port", "0", *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            text = ""
            while not re.search(wanted, text):
                line = process.stderr.readline()
                assert line, text
                text += line
            process.terminate()
