"""Attacks by another user of the same machine on everything of moebox that listens: none reads or changes anything.

The owner's servers are real processes in a folder that every user may enter; each attack runs under another uid.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from moebox import files
from moebox.cli import main
from moebox.serve import state
from moebox.store import Run, calibrations
from tests.driving import environment
from tests.planner.test_measured import calibration
from tests.report.making import a_run
from tests.sampling import one_in
from tests.sandbox.test_sandbox import interpreter_for_nobody

OTHER = 65534  # nobody
TWIN = ["kimi-k2.6", "--box", "8x-rtx-pro-6000-server", "--set", "engine=vllm", "--set", "context=8192"]
PRELUDE = """
import json, os, re, socket, sys, urllib.error, urllib.request
known = json.loads(sys.argv[1])
def ask(url, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as reply:
            return reply.status, reply.read(100000).decode(errors="replace")
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode(errors="replace")
def got(reply):
    status, text = reply
    if status < 400:
        print("GOT IN:", status, text[:200])
def change(path, fields, **headers):
    got(ask(known["ui"] + path, fields, Origin=known["ui"].rstrip("/"), Content_Type="application/json", **headers))
def read(*paths):
    for path in paths:
        try:
            print("GOT IN:", open(path, "rb").read(200))
        except OSError:
            pass
"""
RECIPE = '{"recipe": known["recipe"], "until": "up"}'
ATTACKS = {
    "the page": 'got(ask(known["ui"]))',
    "the page by another name": 'got(ask(known["ui"].replace("127.0.0.1", "localhost")))',
    "the list of runs": 'got(ask(known["ui"] + "runs"))',
    "a run's prompts and answers": 'got(ask(known["ui"] + "runs/" + known["run"]))',
    "a run as it goes on": 'got(ask(known["ui"] + "runs/" + known["run"] + "/events"))',
    "a plan for scripts": 'got(ask(known["ui"] + "plan.json"))',
    "engines": 'got(ask(known["ui"] + "engines"))',
    "an engine's watch page": 'got(ask(known["ui"] + "engines/x/watch"))',
    "an engine's watch events": 'got(ask(known["ui"] + "engines/x/watch/events"))',
    "the owner's recipes": 'got(ask(known["ui"] + "recipes"))',
    "the scripts": 'got(ask(known["ui"] + "ui.js")); got(ask(known["ui"] + "page.js"))',
    "tokens that are guessed": (
        'for word in ("", "x", "null", "0" * 32): got(ask(known["ui"] + "?token=" + word)); '
        'got(ask(known["ui"], Cookie="moebox-token=" + word))'
    ),
    "a recipe whose program is the attacker's": f'change("runs", {RECIPE})',
    "such a recipe with a token of the page": (
        'found = re.findall(r"[\\w-]{24}", ask(known["ui"] + "runs")[1])\n'
        f'for word in ["", *found]: change("runs", {RECIPE}, X_Moebox_Page=word)'
    ),
    "such a recipe with the token in the address": f'change("runs?token=x", {RECIPE})',
    "a recipe that is kept": 'change("recipes", {"name": "mine", "text": "engine = 1"})',
    "a run that is stopped": 'change("runs/" + known["run"] + "/stop", {})',
    "a chat with the owner's engine": 'change("chat", {"engine": "x", "messages": "[]"})',
    "the token in a command line or an environment": (
        'read(*[f"/proc/{pid}/environ" for pid in known["pids"]])\n'
        'for pid in known["pids"]:\n'
        '    line = open(f"/proc/{pid}/cmdline").read()\n'
        '    if any(word in line for word in ("token", "key=")): print("GOT IN:", line)'
    ),
    "the socket": (
        'with socket.socket(socket.AF_UNIX) as door:\n'
        '    try: door.connect(known["socket"]); print("GOT IN")\n'
        '    except PermissionError: pass'
    ),
    "the twin's model": 'got(ask(known["twin"] + "/v1/models"))',
    "a chat with the twin": (
        'body = {"model": "x", "messages": [{"role": "user", "content": "x"}]}\n'
        'for key in ("", "dummy", "none"):\n'
        '    got(ask(known["twin"] + "/v1/chat/completions", body, Authorization="Bearer " + key))\n'
        '    got(ask(known["twin"] + "/v1/messages", body, X_Api_Key=key))'
    ),
    "the twin's figures": 'for path in ("/metrics", "/", "/?key=", "/tokenize"): got(ask(known["twin"] + path))',
    "keys in the state folder": (
        'read(*known["keys"])\n'
        'for folder in {os.path.dirname(path) for path in known["keys"]}:\n'
        '    try: print("GOT IN:", os.listdir(folder))\n'
        '    except PermissionError: pass'
    ),
    "files of runs, state and calibrations": (
        'for place in known["private"]:\n'
        '    for folder, _, names in os.walk(place):\n'
        '        read(*[os.path.join(folder, name) for name in names])'
    ),
    "a known file of a run": 'read(*[os.path.join(known["runs"], known["run"], name) for name in known["names"]])',
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What the owner started, and what every user of the machine may know of it."""

    known: dict[str, object]
    address: str  # with the token
    home: Path


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    """A page on loopback, one on a socket, and a twin."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    home = Path(tempfile.mkdtemp(prefix="moebox-shared-", dir="/tmp"))
    home.chmod(0o755)
    entry = home / "entry"
    entry.write_text(f"#!/bin/sh\nid > {home}/ran\n")
    entry.chmod(0o755)
    recipe = home / "evil.toml"
    recipe.write_text(
        'name = "evil"\nengine = "llama.cpp"\nmodel = "phantom"\ncheckpoint = "q8"\nserved_name = "m"\n'
        f'[runtime]\nentry = "{entry}"\n'
    )
    env = {**os.environ, "MOEBOX_STATE": str(home / "state"), "MOEBOX_RUNS": str(home / "runs")}
    with ExitStack() as stack:
        stack.callback(files.remove_tree, home)
        stack.callback(os.umask, os.umask(0o022))
        run = a_run(home / "runs")
        stack.enter_context(environment({"XDG_DATA_HOME": str(home / "data"), "MOEBOX_CALIBRATIONS": ""}))
        calibrations.store_calibration(calibration())

        def start(*words: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-m", "moebox", *words]
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        page, on_socket = start("ui", "--port", "0"), start("ui", "--socket", str(home / "ui.sock"))
        twin = start("twin", *TWIN, "--port", "0", "--json")
        assert page.stdout
        assert on_socket.stdout
        assert twin.stdout
        address = page.stdout.readline().strip()
        assert on_socket.stdout.readline().startswith("unix:")
        text = ""
        while not text.rstrip().endswith("}"):
            text += twin.stdout.readline()
        ready = json.loads(text)
        keys = [str(path) for path in (home / "state" / "keys").iterdir()]
        assert ready["key"] in Path(keys[0]).read_text()
        known: dict[str, object] = {
            "ui": address.partition("?")[0],
            "twin": ready["url"].removesuffix("/v1"),
            "run": run.id,
            "recipe": str(recipe),
            "socket": str(home / "ui.sock"),
            "keys": keys,
            "pids": [page.pid, on_socket.pid, twin.pid],
            "private": [str(home / name) for name in ("runs", "state", "data")],
            "runs": str(home / "runs"),
            "names": [path.name for path in run.path.iterdir() if path.is_file()],
        }
        yield Owner(known=known, address=address, home=home)


@pytest.mark.parametrize("name", one_in(2, ATTACKS))
def test_another_user_gets_nothing(name: str, owner: Owner) -> None:
    """Each attack ends without a page, a start, a change or a key; nothing of the attacker's runs as the owner."""
    program = f"{PRELUDE}\n{ATTACKS[name]}\nprint('THE END as', os.getuid())"
    done = subprocess.run(
        [interpreter_for_nobody(), "-I", "-c", program, json.dumps(owner.known)],
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        env={},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout == f"THE END as {OTHER}\n", done.stderr[-2000:]
    assert not (owner.home / "ran").exists()
    assert [path.name for path in (owner.home / "runs").iterdir()] == [owner.known["run"]]


def test_the_owner_gets_the_page(owner: Owner) -> None:
    """The doors are shut, not walled up."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(owner.address) as reply:
        assert reply.status == 200
    with opener.open(f"{owner.known['ui']}runs") as reply:
        assert str(owner.known["run"]) in reply.read().decode()


def test_a_key_is_not_written_into_a_folder_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who owns the folder could read the key or replace it: one line, and no twin."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    monkeypatch.setenv("MOEBOX_STATE", str(tmp_path / "state"))
    (tmp_path / "state" / "keys").mkdir(parents=True)
    os.chown(tmp_path / "state" / "keys", OTHER, OTHER)

    assert main(["twin", *TWIN, "--port", "0"]) == 2
    assert "belongs to another user" in capsys.readouterr().err
    assert list((tmp_path / "state" / "keys").iterdir()) == []


def test_what_was_open_is_closed_on_use_and_the_doctor_names_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of an earlier version, made 0755: data and state become private when used, old runs are counted."""
    for name, folder in (("MOEBOX_STATE", "state"), ("MOEBOX_RUNS", "runs"), ("XDG_DATA_HOME", "data")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("MOEBOX_CALIBRATIONS", "")
    tmp_path.chmod(0o755)
    used, old = a_run(tmp_path / "runs"), a_run(tmp_path / "runs", name="old")
    for folder in (used.path, old.path, tmp_path / "runs", tmp_path / "data" / "moebox", tmp_path / "state" / "leases"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)

    Run.resume(used.id).release_lock()
    calibrations.store_calibration(calibration())
    state.Lease("port-1", "x")
    closed = (used.path, tmp_path / "data" / "moebox", tmp_path / "state" / "leases")
    assert [oct(folder.stat().st_mode & 0o777) for folder in closed] == ["0o700"] * 3
    main(["doctor", "box", "--json"])
    checks = [check for check in json.loads(capsys.readouterr().out)["checks"] if check["name"] == "privacy"]
    assert [check["verdict"] for check in checks] == ["warn", "pass", "pass"]
    assert "other users may read 1 of the 2" in checks[0]["found"]
    old.path.chmod(0o700)
    main(["doctor", "box", "--json"])
    assert "may read" not in capsys.readouterr().out
