"""Real clients' driver: a home and a folder of their own, the key in the environment alone, nothing left behind.

The clients here are small programs that print what the real ones print; the real ones are in tests/clients.
"""

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.tasks.agent import WorkLimits
from moebox.tasks.clients import ClientName, RealClient
from moebox.tasks.families import make_job

HEAD = """#!{python}
import json, os, sys, time
if sys.argv[1:] == ["--version"]:
    sys.exit(print("{version}"))
def say(**event): print(json.dumps(event), flush=True)
"""
CLAUDE = (
    HEAD
    + """
def turn(name="Write", id="t", **usage):
    say(type="system", subtype="status", status="requesting")
    block = {{"type": "tool_use", "id": id, "name": name, "input": {{}}}}
    start = {{"usage": {{"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 50}}}}
    for event in (
        {{"type": "message_start", "message": start}},
        {{"type": "content_block_start", "index": 0, "content_block": {{"type": "text", "text": ""}}}},
        {{"type": "content_block_delta", "index": 0, "delta": {{"type": "text_delta", "text": "I see."}}}},
        {{"type": "content_block_start", "index": 1, "content_block": block}},
        {{"type": "content_block_delta", "index": 1, "delta": {{"type": "input_json_delta", "partial_json": "{{}}"}}}},
        {{"type": "message_delta", "delta": {{"stop_reason": "tool_use"}}, "usage": {{"output_tokens": 7}}}},
        {{"type": "message_stop"}},
    ):
        say(type="stream_event", event=event)
        if event["type"] == "content_block_delta":  # whole blocks come as messages of their own, counted as they began
            say(type="assistant", message={{"content": [block], **start}})
def answer(id, text, bad):
    block = {{"type": "tool_result", "tool_use_id": id, "is_error": bad, "content": text}}
    say(type="user", message={{"content": [block]}})
turn()
{work}
say(type="result", is_error=False, result="done")
"""
)
OPENCODE = (
    HEAD
    + """
assert json.load(open(os.path.expanduser("~/.config/opencode/opencode.json")))["permission"]["bash"] == "deny"
{work}
say(type="tool_use", part={{"tool": "write", "state": {{"status": "completed"}}}})
say(type="text", part={{"text": "done"}})
tokens = {{"input": 9, "output": 3, "reasoning": 1, "cache": {{"read": 5, "write": 2}}}}
say(type="step_finish", part={{"tokens": tokens}})
"""
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, and nothing else on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    return folder


def install(folder: Path, name: str, text: str, work: str) -> None:
    path = folder / name
    path.write_text(text.format(python=sys.executable, work=work, version="1.18.33"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def solving(name: str) -> str:
    job = make_job("errand", "easy", 0)
    return "\n".join(f"open({path!r}, 'w').write({text!r})" for path, text in job.solution.items())


@pytest.mark.parametrize(
    ("name", "text", "counts"), [("claude", CLAUDE, (150, 7, 50)), ("opencode", OPENCODE, (16, 4, 5))]
)
def test_a_client_does_a_job(
    name: str,
    text: str,
    counts: tuple[int, int, int],
    server: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scored by the same hidden tests; one reply is one turn, with the tokens that the server counted in the end."""
    install(programs, name, text, solving(name))
    words = ["task", server, "--model", "solve", "--with", name, "--family", "errand", "--jobs", "1", "--seed", "0"]

    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (turn,) = document["jobs"][0]["turns"]
    assert (document["agent"], document["agent_version"]) == (name, "1.18.33")
    assert document["jobs"][0]["solved"]
    assert [call["tool"].lower() for call in turn["calls"]] == ["write"]
    assert (turn["prompt_tokens"], turn["completion_tokens"], turn["cached_tokens"]) == counts


CLAUDES_CALLS = """
answer("t", "<tool_use_error>InputValidationError: Write failed", True)
turn("Write", "u")
answer("u", "File does not exist.", True)
turn("NoSuchTool", "v")
answer("v", "<tool_use_error>Error: No such tool available: NoSuchTool</tool_use_error>", True)
"""
OPENCODES_CALLS = """
read = {"status": "completed", "input": {"tool": "write", "error": "no"}}
say(type="tool_use", part={"tool": "invalid", "state": read})
say(type="tool_use", part={"tool": "write", "state": {"status": "error", "error": "File not found"}})
say(type="tool_use", part={"tool": "read", "state": {"status": "error", "error": "was called with invalid arguments"}})
"""


@pytest.mark.parametrize(
    ("name", "text", "work", "calls"),
    [
        ("claude", CLAUDE, CLAUDES_CALLS, [("Write", False), ("Write", True), ("NoSuchTool", False)]),
        ("opencode", OPENCODE, OPENCODES_CALLS, [("write", False), ("write", True), ("read", False), ("write", True)]),
    ],
)
def test_calls_that_were_none_are_reported(
    name: ClientName, text: str, work: str, calls: list[tuple[str, bool]], programs: Path
) -> None:
    """Those that do not fit their tool, or name none; one that its tool refused was one, and fixes the one before."""
    install(programs, name, text, work)
    files = {".config/opencode/opencode.json": json.dumps({"permission": {"bash": "deny"}})}
    client = RealClient(name, "m", {}, files)
    done = client(make_job("errand", "easy", 0), WorkLimits(ends_at=time.monotonic() + 60), lambda turn: None)
    seen = [call for turn in done.turns for call in turn.calls]

    assert [(call.tool, call.ok) for call in seen] == calls
    assert [call.repaired for call in seen][1]
    assert sum(call.repaired for call in seen) == 1


def test_a_client_that_does_not_start_is_one_line(
    server: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It solved no job of none: nothing was tried."""
    (programs / "opencode").write_text("\x7fELF of another machine\n")
    (programs / "opencode").chmod(0o755)

    assert main(["task", server, "--model", "solve", "--with", "opencode", "--jobs", "1"]) == 3
    assert capsys.readouterr().err.startswith("error: opencode does not start: ")


def test_a_client_that_is_missing_is_one_line(server: str, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and how to install it."""
    assert main(["task", server, "--model", "solve", "--with", "claude", "--jobs", "1"]) == 3
    assert capsys.readouterr().err.splitlines()[0] == "error: claude is not installed"


def test_the_key_is_in_the_environment_alone_and_the_home_is_its_own(programs: Path) -> None:
    """Neither arguments nor files nor the transcript hold it."""
    work = "open('seen', 'w').write(json.dumps([os.environ['ANTHROPIC_API_KEY'], os.environ['HOME'], sys.argv]))"
    install(programs, "claude", CLAUDE, work)
    client = RealClient("claude", "m", {"ANTHROPIC_API_KEY": "the-secret"})
    done = client(make_job("errand", "easy", 0), WorkLimits(ends_at=time.monotonic() + 30), lambda turn: None)
    key, home, argv = json.loads(done.files["seen"])

    assert key == "the-secret"
    assert "the-secret" not in json.dumps(argv) + json.dumps(done.messages) + repr(client)
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()


@pytest.mark.parametrize(
    ("work", "end"),
    [("time.sleep(100)", "time"), ("sys.exit(3)", "client"), ("print('x\\n' * 5); sys.exit(1)", "client")],
)
def test_a_client_that_fails_ends_its_job(work: str, end: str, programs: Path) -> None:
    """Hanging, dying, complaining."""
    install(programs, "claude", CLAUDE, work)
    client = RealClient("claude", "m", {})
    done = client(make_job("errand", "easy", 0), WorkLimits(ends_at=time.monotonic() + 3), lambda turn: None)

    assert done.end == end


def test_a_client_without_end_is_left_after_its_turns(programs: Path) -> None:
    """Turn after turn of the same."""
    work = "for _ in range(10**5): turn()"
    install(programs, "claude", CLAUDE, work)
    client = RealClient("claude", "m", {})
    done = client(make_job("errand", "easy", 0), WorkLimits(ends_at=time.monotonic() + 60), lambda turn: None)

    assert done.end == "turns"


def test_the_gadget_is_for_our_own_agent(server: str, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown client is an error."""
    assert main(["task", server, "--model", "solve", "--with", "claude", "--family", "gadget"]) == 2
    assert main(["task", server, "--model", "solve", "--with", "cursor"]) == 2
    assert "unknown client 'cursor'" in capsys.readouterr().err
