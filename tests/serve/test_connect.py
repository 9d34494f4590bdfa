"""Client configuration: complete, merged without loss, free of keys, and proved by a call to a real server."""

import dataclasses
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.endpoint import endpoint_from_url
from moebox.core.recipe import Listen, Recipe
from moebox.errors import AnswerIsNo, BadInput
from moebox.serve import jsonc
from moebox.serve.connect import CLIENTS, LiveModel, call_as_client, client_settings, write_settings
from moebox.serve.session import engine_session
from moebox.store import Run
from tests.serving import live

KEY = "s3cret-value"
# All that Lambda's guide to Kimi K2.6 sets for Claude Code.
GUIDE = (
    "ANTHROPIC_BASE_URL ANTHROPIC_API_KEY ANTHROPIC_MODEL ANTHROPIC_DEFAULT_SONNET_MODEL ANTHROPIC_DEFAULT_OPUS_MODEL "
    "ANTHROPIC_DEFAULT_HAIKU_MODEL ANTHROPIC_SMALL_FAST_MODEL ANTHROPIC_FAST_MODEL DISABLE_TELEMETRY "
    "ENABLE_PROMPT_CACHING_1H"
)


def reached(key_env: str = "") -> LiveModel:
    """A model somewhere."""
    found = endpoint_from_url("http://127.0.0.1:8001", "kimi-k2.6", key=KEY if key_env else None)
    return LiveModel(endpoint=found, key_env=key_env, context=131072)


class Server(ThreadingHTTPServer):
    """A server that streams a tool call in either protocol, or misbehaves on request."""

    way = "good"
    seen: list[tuple[str, dict[str, str], dict[str, Any]]]


class Handler(BaseHTTPRequestHandler):
    """Answers what the two protocols ask for."""

    server: Server

    def log_message(self, *_: object) -> None:
        """Stays quiet."""

    def do_GET(self) -> None:
        """The list of models, with the context length as vLLM gives it."""
        reported = {} if self.server.way == "silent" else {"max_model_len": 98304}
        self.reply(200, {"data": [{"id": "kimi-k2.6", **reported}]})

    def do_POST(self) -> None:
        """One streamed answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        way = self.server.way
        if way == "missing" and self.path == "/v1/messages":
            return self.reply(404, {"detail": "Not Found"})
        if way == "locked":
            return self.reply(401, {"error": "bad key"})
        messages = self.path == "/v1/messages"
        arguments = json.dumps({"file_path": "/etc/passwd" if way == "wrong" else "/srv/notes/shopping.txt"})
        events = anthropic(arguments, way) if messages else openai(arguments, way, "tools" in body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        return None

    def reply(self, status: int, document: dict[str, Any]) -> None:
        """A plain JSON answer."""
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def anthropic(arguments: str, way: str) -> list[Any]:
    """The events of a message with a tool call, its arguments in two parts."""
    if way == "talk":
        return [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "I would read it."}}]
    half = len(arguments) // 2
    block = {"type": "tool_use", "id": "1", "name": "Read", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in (arguments[:half], arguments[half:])]
    return [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        *(["no json"] if way == "torn" else []),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ]


def openai(arguments: str, way: str, tools: bool) -> list[Any]:
    """The chunks of a chat answer."""
    if not tools or way == "talk":
        return [{"choices": [{"delta": {"content": "Hello"}}]}, "[DONE]"]
    call = {"index": 0, "id": "1", "function": {"name": "read_file", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": arguments}}
    return [{"choices": [{"delta": {"tool_calls": [part]}}]} for part in (call, more)] + [{"choices": []}, "[DONE]"]


@pytest.fixture
def server() -> Iterator[Server]:
    """A live server on a free port."""
    with live(Server(("127.0.0.1", 0), Handler)) as found:
        found.seen = []
        yield found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_claude_code_gets_every_variable_of_the_guide():
    """The exports can be sourced, and say what the guide says."""
    shown = client_settings("claude-code", reached()).text.removesuffix("claude")
    env = subprocess.run(["bash", "-c", f"{shown}\nenv"], capture_output=True, text=True, check=True, env={}).stdout
    found = dict(line.split("=", 1) for line in env.splitlines() if "=" in line)

    assert set(GUIDE.split()) <= set(found)
    assert found["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8001"
    assert {found[name] for name in GUIDE.split() if name.endswith("_MODEL")} == {"kimi-k2.6"}


@pytest.mark.parametrize("client", CLIENTS)
def test_no_client_is_given_the_key_itself(client: Any):
    """Only the name of the variable that holds it is printed or written."""
    wanted = client_settings(client, reached("MY_KEY"))
    everything = wanted.text + json.dumps(wanted.changes) + " ".join(wanted.notes)

    assert KEY not in everything
    assert "MY_KEY" in everything


def test_curl_is_a_command_that_works(server: Server):
    """Pasted into bash it reaches the server with the key, which no process list shows."""
    found = endpoint_from_url(f"http://127.0.0.1:{server.server_port}", "kimi-k2.6", key=KEY)
    shown = client_settings("curl", LiveModel(endpoint=found, key_env="MY_KEY")).text
    subprocess.run(["bash", "-c", shown], check=True, capture_output=True, env=os.environ | {"MY_KEY": KEY})

    _, headers, body = server.seen[0]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "kimi-k2.6"
    assert not any(KEY in word for word in shlex.split(shown))


def test_writing_keeps_what_is_there(home: Path):
    """Comments, order, other providers and the file's mode survive; what it was lies beside it."""
    path = home / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    before = (
        '// my settings\n{\n  "theme": "One Dark", // dark\n  "language_models": {\n    "ollama": {"a": 1},\n  },\n}\n'
    )
    path.write_text(before)
    path.chmod(0o640)
    written, backup = write_settings(client_settings("zed", reached()))

    after = path.read_text()
    assert written == path
    assert backup is not None
    assert backup.read_text() == before
    assert "// my settings" in after
    assert "// dark" in after
    assert '"ollama": {"a": 1}' in after
    assert '"moebox"' in after
    assert path.stat().st_mode & 0o777 == 0o640
    assert write_settings(client_settings("zed", reached())) == (path, None)  # a second time changes nothing


def test_writing_updates_only_what_is_moeboxs(home: Path):
    """Claude Code's other variables and settings stay."""
    path = home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text('{"permissions": {"allow": ["Bash(ls)"]}, "env": {"MINE": "1", "ANTHROPIC_MODEL": "old"}}')
    write_settings(client_settings("claude-code", reached("MY_KEY")))
    now = json.loads(path.read_text())

    assert now["permissions"] == {"allow": ["Bash(ls)"]}
    assert now["env"]["MINE"] == "1"
    assert now["env"]["ANTHROPIC_MODEL"] == "kimi-k2.6"
    assert now["apiKeyHelper"] == "printenv MY_KEY"
    assert "ANTHROPIC_API_KEY" not in now["env"]


def test_a_new_file_is_private(home: Path):
    """Nobody else reads a settings file that moebox made."""
    path, backup = write_settings(client_settings("opencode", reached()))

    assert backup is None
    assert path == home / ".config" / "opencode" / "opencode.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["provider"]["moebox"]["options"] == {"baseURL": "http://127.0.0.1:8001/v1"}


def test_opencode_knows_of_images():
    """It strips them for a custom model that does not say so: `--vision` was ignored."""
    seeing = client_settings("opencode", dataclasses.replace(reached(), vision=True)).text
    blind = client_settings("opencode", reached()).text

    assert json.loads(seeing)["provider"]["moebox"]["models"]["kimi-k2.6"]["modalities"]["input"] == ["text", "image"]
    assert "modalities" not in blind


@pytest.mark.parametrize(
    "text", ['{"env": [1]}', "[1, 2]", '{"env": {', '{"a" 1}', "nonsense", '{"a": 1} x', r'{"\x": 1}']
)
def test_a_file_that_cannot_be_merged_is_left_alone(home: Path, text: str):
    """One line reports it; the file is as it was."""
    path = home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(BadInput, match=str(path)):
        write_settings(client_settings("claude-code", reached()))
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.sampled_from([None, 1, 2]))
def test_merging_changes_nothing_else(document: dict[str, Any], indent: int | None):
    """Whatever the file holds, the merged one holds the same and the new values."""
    changes = {"env": {"A": "1", "B": ["x"]}, "deep": {"er": {"est": True}}}
    document.pop("env", None)
    document.pop("deep", None)
    after = json.loads(jsonc.merge_changes(json.dumps(document, indent=indent), changes, "file"))

    assert after == changes | document


@given(st.text(max_size=40))
def test_any_text_is_merged_or_refused(text: str):
    """The reader never fails otherwise than by saying that the file is no JSON."""
    try:
        merged = jsonc.merge_changes(text, {"a": 1}, "file")
    except BadInput:
        return
    assert '"a": 1' in merged


@pytest.mark.parametrize("client", CLIENTS)
def test_check_makes_the_clients_own_call(client: str, server: Server, capsys: pytest.CaptureFixture[str]):
    """Claude Code speaks Anthropic's protocol with tools; editors OpenAI's with tools; the rest plain chat."""
    url = f"http://127.0.0.1:{server.server_port}"

    assert main(["connect", client, "--url", url, "--check", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    path, _, body = server.seen[-1]
    assert path == ("/v1/messages" if client == "claude-code" else "/v1/chat/completions")
    assert ("tools" in body) == (client in ("claude-code", "zed", "opencode"))
    assert body["stream"] is True
    assert reported["check"]["events"] >= 1


@pytest.mark.parametrize(
    ("way", "code"), [("missing", 1), ("locked", 1), ("talk", 1), ("wrong", 1), ("torn", 1), ("good", 0)]
)
def test_check_says_what_is_wrong(way: str, code: int, server: Server, capsys: pytest.CaptureFixture[str]):
    """A server that lacks the protocol, wants a key, does not call the tool, or breaks off."""
    server.way = way
    url = f"http://127.0.0.1:{server.server_port}"

    assert main(["connect", "claude-code", "--url", url, "--model", "kimi-k2.6", "--check"]) == code
    error = capsys.readouterr().err
    assert error.count("error:") == code


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]):
    """Printing needs no server; a check does."""
    given_url = ["connect", "openai", "--url", "http://127.0.0.1:9", "--model", "m"]

    assert main(given_url) == 0
    reported = capsys.readouterr().err
    assert "warning: http://127.0.0.1:9/v1: " in reported
    assert "the server does not answer, so its context is not known; 65,536 is assumed" in reported
    assert main([*given_url, "--check"]) == 3
    assert main([*given_url, "--write"]) == 2
    assert "is the server up?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--context", "32k"]])
def test_no_client_is_pointed_at_an_engine_that_is_dead(
    words: list[str], embedded: Recipe, run: Run, home: Path, capsys: pytest.CaptureFixture[str]
):
    """kill -9 of one that `moebox ps` lists: exit code 3, and the client's settings stay as they are."""
    with engine_session(deploy(embedded), run) as live_engine:
        name = live_engine.instance.id
        os.kill(live_engine.instance.guard_state.engine, signal.SIGKILL)
        live_engine.guard.wait()
        before = sorted(home.rglob("*.json"))
        assert main(["connect", "opencode", name, "--write", *words]) == 3
        reported = capsys.readouterr().err
        assert "Nothing was written" in reported
        assert "written:" not in reported
        assert sorted(home.rglob("*.json")) == before


def test_the_served_context_reaches_the_client(server: Server, capsys: pytest.CaptureFixture[str]):
    """What /v1/models says of the model ends up in the editor's limit."""
    assert main(["connect", "opencode", "--url", f"127.0.0.1:{server.server_port}", "--json"]) == 0
    limit = json.loads(capsys.readouterr().out)["settings"]["provider"]["moebox"]["models"]["kimi-k2.6"]["limit"]
    assert limit == {"context": 98304, "output": 32768}


def test_what_the_server_contradicts_is_said(server: Server, capsys: pytest.CaptureFixture[str]):
    """A name that it does not list, a context beyond its own: written as asked, with a note."""
    url = f"http://127.0.0.1:{server.server_port}"
    assert main(["connect", "zed", url, "--model", "nosuch", "--context", "9999999"]) == 0
    notes = " ".join(capsys.readouterr().err.split())
    assert "may refuse `nosuch`" in notes
    assert "the server refuses more than 98,304 tokens (max_model_len of /v1/models)" in notes


def test_a_real_server_is_called_in_both_protocols(embedded: Recipe, run: Run):
    """llama.cpp answers Anthropic's and OpenAI's calls; a model without knowledge streams, and calls no tool."""
    with engine_session(deploy(embedded), run) as session:
        seen = call_as_client("openai", session.endpoint)
        with pytest.raises(AnswerIsNo, match="without calling the tool"):
            call_as_client("claude-code", session.endpoint)

    assert seen.protocol == "openai chat"
    assert seen.events > 2


def test_every_client_gets_what_the_real_server_has(embedded: Recipe, run: Run, capsys: pytest.CaptureFixture[str]):
    """llama.cpp's own context, 2,048 tokens here, and not a guess of 65,536 or 200,000."""
    small = dataclasses.replace(embedded, context=2048)
    shown = {}
    with engine_session(deploy(small), run) as session:
        for client in CLIENTS:
            assert main(["connect", client, "--url", session.endpoint.base_url, "--json"]) == 0
            shown[client] = json.loads(capsys.readouterr().out)

    assert {document["context"] for document in shown.values()} == {2048}
    assert {document["output"] for document in shown.values()} == {1024}
    zed = shown["zed"]["settings"]["language_models"]["openai_compatible"]["moebox"]["available_models"][0]
    assert (zed["max_tokens"], zed["max_output_tokens"]) == (2048, 1024)
    claude = shown["claude-code"]["settings"]["env"]
    assert claude["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "1024"
    assert claude["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "2048"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_warned_of_the_routes_that_it_uses(
    client: str, embedded: Recipe, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """opencode sends chat completions: what llama.cpp does at /v1/messages and /v1/responses is not its concern."""
    recipe = tmp_path / "recipe.toml"
    local = dataclasses.replace(embedded, served_name="kimi-k2.6", listen=Listen(port=server.server_port))
    recipe.write_text(codec.to_toml(local))
    assert main(["connect", client, str(recipe)]) == 0
    notes = capsys.readouterr().err
    assert "tool_choice none" in notes
    assert ("/v1/messages" in notes) is (client == "claude-code")
    assert ("/v1/responses" in notes) is (client == "openai")


def test_claude_code_compacts_before_the_context_is_full():
    """A large window as it is; of one below what Claude Code takes, a share."""
    large = client_settings("claude-code", reached()).changes["env"]
    assert large["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "131072"
    assert "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE" not in large
    small = client_settings("claude-code", dataclasses.replace(reached(), context=65536)).changes["env"]
    window, share = int(small["CLAUDE_CODE_AUTO_COMPACT_WINDOW"]), int(small["CLAUDE_AUTOCOMPACT_PCT_OVERRIDE"])
    assert window * share / 100 < 65536
    assert window * share / 100 > 0.7 * 65536


def test_a_server_that_does_not_say_is_a_guess_that_is_reported(server: Server, capsys: pytest.CaptureFixture[str]):
    """And `--context` sets it."""
    server.way = "silent"
    given_url = ["connect", "zed", "--url", f"127.0.0.1:{server.server_port}", "--model", "kimi-k2.6"]
    assert main(given_url) == 0
    assert "65,536 is assumed" in capsys.readouterr().err
    assert main([*given_url, "--context", "32k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["context"] == 32768
