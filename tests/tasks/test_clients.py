"""Real clients' driver: a home and a folder of their own, the key in the environment alone, nothing left behind.

The clients here are small programs that print what the real ones print; `claude` 2.1.197 and `opencode` 1.18.33 were
driven by hand against the scripted model (docs/tasks.md).
"""

import json
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.tasks.agent import Bounds
from moebox.tasks.clients import RealClient, Setup
from moebox.tasks.families import make

CLAUDE = """#!{python}
import json, os, sys, time
print(json.dumps({{"type": "system", "home": os.environ["HOME"], "argv": sys.argv[1:], "cwd": os.getcwd()}}))
usage = {{"input_tokens": 100, "output_tokens": 7, "cache_read_input_tokens": 50}}
block = {{"type": "tool_use", "id": "t", "name": "Write", "input": {{}}}}
print(json.dumps({{"type": "assistant", "message": {{"content": [block], "usage": usage}}}}), flush=True)
{work}
print(json.dumps({{"type": "result", "is_error": False, "result": "done"}}))
"""
OPENCODE = """#!{python}
import json, os, sys
assert json.load(open(os.path.expanduser("~/.config/opencode/opencode.json")))["permission"]["bash"] == "deny"
{work}
part = {{"tool": "write", "state": {{"status": "completed"}}}}
print(json.dumps({{"type": "tool_use", "part": part}}))
print(json.dumps({{"type": "text", "part": {{"text": "done"}}}}))
print(json.dumps({{"type": "step_finish", "part": {{"tokens": {{"input": 9, "output": 3}}}}}}))
"""


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
    path.write_text(text.format(python=sys.executable, work=work))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def solving(name: str) -> str:
    job = make("errand", "easy", 0)
    return "\n".join(f"open({path!r}, 'w').write({text!r})" for path, text in job.solution.items())


@pytest.mark.parametrize(("name", "text"), [("claude", CLAUDE), ("opencode", OPENCODE)])
def test_a_client_does_a_job(
    name: str, text: str, server: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scored by the same hidden tests."""
    install(programs, name, text, solving(name))
    words = ["task", server, "--model", "solve", "--with", name, "--family", "errand", "--jobs", "1", "--seed", "0"]

    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["agent"] == name
    assert document["jobs"][0]["solved"]
    assert document["jobs"][0]["turns"][0]["calls"][0]["tool"].lower() == "write"


def test_a_client_that_is_missing_is_one_line(server: str, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and how to install it."""
    assert main(["task", server, "--model", "solve", "--with", "claude", "--jobs", "1"]) == 3
    assert capsys.readouterr().err.splitlines()[0] == "error: claude is not installed"


def test_the_key_is_in_the_environment_alone_and_the_home_is_its_own(programs: Path) -> None:
    """Neither arguments nor files nor the transcript hold it."""
    work = "open('seen', 'w').write(json.dumps([os.environ['ANTHROPIC_API_KEY'], os.environ['HOME'], sys.argv]))"
    install(programs, "claude", CLAUDE, work)
    setup = Setup(client="claude", model="m", environment={"ANTHROPIC_API_KEY": "the-secret"})
    done = RealClient(setup)(make("errand", "easy", 0), Bounds(until=time.monotonic() + 30), lambda turn: None)
    key, home, argv = json.loads(done.files["seen"])

    assert key == "the-secret"
    assert "the-secret" not in json.dumps(argv) + json.dumps(done.work.messages) + repr(setup)
    assert home != os.environ.get("HOME")
    assert not Path(home).exists()


@pytest.mark.parametrize(
    ("work", "end"),
    [("time.sleep(100)", "time"), ("sys.exit(3)", "client"), ("print('x\\n' * 5); sys.exit(1)", "client")],
)
def test_a_client_that_fails_ends_its_job(work: str, end: str, programs: Path) -> None:
    """Hanging, dying, complaining."""
    install(programs, "claude", CLAUDE, work)
    client = RealClient(Setup(client="claude", model="m", environment={}))
    done = client(make("errand", "easy", 0), Bounds(until=time.monotonic() + 3), lambda turn: None)

    assert done.work.end == end


def test_a_client_without_end_is_left_after_its_turns(programs: Path) -> None:
    """Turn after turn of the same."""
    work = "for _ in range(10**5): print(json.dumps({'type': 'assistant', 'message': {'content': []}}), flush=True)"
    install(programs, "claude", CLAUDE, work)
    client = RealClient(Setup(client="claude", model="m", environment={}))
    done = client(make("errand", "easy", 0), Bounds(until=time.monotonic() + 60), lambda turn: None)

    assert done.work.end == "turns"


def test_the_gadget_is_for_our_own_agent(server: str, programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a client that is not known is told."""
    assert main(["task", server, "--model", "solve", "--with", "claude", "--family", "gadget"]) == 2
    assert main(["task", server, "--model", "solve", "--with", "cursor"]) == 2
    assert "unknown client 'cursor'" in capsys.readouterr().err
