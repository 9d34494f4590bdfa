"""Rendered files read back by the rules of who will read them: what would be started, word by word."""

import functools
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema
import yaml

from tests.serve.rendered import SCONTROL
from tests.serve.schemas import COMPOSE, KUBERNETES

HOME = "/home/someone"
PROGRAMS = ("vllm", "sglang", "llama-server", "docker", "podman", "pip", "pip3", "uv", "apt-get")
TOOLS = ("bash", "env", "realpath", "dirname", "head", "sed", "cat", "sh")
RECORD = '#!/bin/sh\nprintf "%s\\0" "${0##*/}" "$@" >>"$RECORD"\nprintf "\\001\\0" >>"$RECORD"\n'
# What docker would run inside: its own setup line, with the same stand-ins.
CONTAINER = r"""
previous=""; entry=""
for word in "$@"; do
  case "$previous" in --entrypoint) entry="$word" ;; esac
  previous="$word"
done
if [ "$entry" = bash ]; then
  while [ "$1" != -c ]; do shift; done
  exec bash "$@"
fi
"""


@functools.cache
def schema_check(kind: str) -> Callable[[Any], object]:
    """Raise for a document that its schema forbids; compiled when first asked for."""
    return fastjsonschema.compile({"compose": COMPOSE, **KUBERNETES}[kind])


def stand_ins(folder: Path) -> dict[str, str]:
    """Programs that write down how they were called; the environment in which nothing else is found."""
    folder.mkdir()
    for name in PROGRAMS:
        (folder / name).write_text(RECORD + (CONTAINER if name in ("docker", "podman") else ""))
    (folder / "python3").write_text(RECORD)
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    for name in os.listdir(folder):
        (folder / name).chmod(0o755)
    for name in TOOLS:
        (folder / name).symlink_to(f"/usr/bin/{name}")
    given = {"MASTER_ADDR": "10.0.0.1", "NODE_RANK": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "0"}
    return {"PATH": str(folder), "HOME": HOME, "HF_TOKEN": "the-token", "MY_KEY": "the-key", **given}


def run_script(text: str, folder: Path, env: dict[str, str]) -> list[list[str]]:
    """Run a script and return the calls it made; bash must be able to parse it."""
    script, record = folder / "script.sh", folder / "record"
    script.write_text(text)
    record.write_bytes(b"")
    parsed = subprocess.run(["/usr/bin/bash", "-n", script], capture_output=True, text=True, check=False)
    assert parsed.returncode == 0, parsed.stderr
    subprocess.run(
        ["/usr/bin/bash", script],
        env={**env, "RECORD": str(record)},
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    calls: list[list[str]] = [[]]
    for word in record.read_bytes().decode("utf-8", "surrogateescape").split("\0"):
        if word == "\x01":
            calls.append([])
        else:
            calls[-1].append(word)
    return calls[:-1]


def compose(text: str) -> list[str]:
    """The words that Compose would start, after its interpolation."""
    document = yaml.safe_load(text)
    schema_check("compose")(document)
    (service,) = document["services"].values()
    for value in (*service.get("environment", {}).values(), *service["volumes"], *service.get("ports", ())):
        interpolated(value)
    return [interpolated(word) for word in (*service.get("entrypoint", ()), *service["command"])]


def interpolated(text: str) -> str:
    """As Compose does it without any variable set; an AssertionError for a dollar that is not ours."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return re.sub(r"\$\$", "$", match["default"] or "")

    pattern = r"\$\$|\$\{(?:[A-Z0-9_]+):-(?P<default>[^{}]*)\}|\$\{[A-Za-z0-9_]+:\?holds the API key\}"
    assert "$" not in re.sub(pattern, "", text), text
    return re.sub(pattern, value, text)


def kubernetes(text: str) -> list[str]:
    """The words that the kubelet would start in the first container, after its expansion."""
    documents = list(yaml.safe_load_all(text))
    kinds = [document["kind"] for document in documents]
    assert sum(kind in ("Deployment", "LeaderWorkerSet") for kind in kinds) == 1
    assert kinds.count("Service") == 1
    assert len(set(kinds)) == len(kinds)
    for document in documents:
        schema_check(document["kind"])(document)
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", document["metadata"]["name"])
    spec = next(document["spec"] for document in documents if document["kind"] in ("Deployment", "LeaderWorkerSet"))
    pod = spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["leaderTemplate"]
    (container,) = pod["spec"]["containers"]
    for variable in container["env"]:
        assert re.fullmatch(r"[A-Za-z_]\w*", variable["name"], re.ASCII)
        expanded(variable.get("value", ""))
    return [expanded(word) for word in (*container.get("command", ()), *container["args"])]


def expanded(text: str) -> str:
    """As the kubelet does it; an AssertionError for a variable that is not the group's own."""

    def value(match: re.Match[str]) -> str:
        assert match[0] == "$$" or match["name"].startswith("LWS_"), match[0]
        return "$" if match[0] == "$$" else match[0]

    return re.sub(r"\$\$|\$\((?P<name>[^)]*)\)", value, text)


KEYS = {
    "Unit": {"Description", "Wants", "After", "Requires"},
    "Service": {
        "Type", "Environment", "EnvironmentFile", "ExecStartPre", "ExecStart", "ExecStop", "Restart", "RestartSec",
        "TimeoutStartSec", "TimeoutStopSec", "KillMode", "LimitMEMLOCK", "LimitNOFILE",
    },
    "Install": {"WantedBy"},
}  # fmt: skip


def unit(text: str) -> list[str]:
    """The words of ExecStart, after systemd's unquoting, specifiers and variables."""
    section, start, variables, starts = "", "", {}, 0
    for line in _lines(text):
        if line.startswith("["):
            section = line.strip("[]")
            assert section in KEYS, line
            continue
        key, _, value = line.partition("=")
        assert key in KEYS[section], line
        if key == "Environment":
            (pair,) = words(value)
            name, _, default = pair.partition("=")
            assert re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII), line
            variables[name] = specified(default)
        elif key == "ExecStart":
            start, starts = value, starts + 1
        elif key == "ExecStartPre":
            assert re.fullmatch(r"-/usr/bin/env (docker|podman) rm -f [a-z0-9-]+", value), value
    assert starts == 1
    return [substituted(specified(word), variables) for word in words(start)]


def _lines(text: str) -> list[str]:
    """Logical lines: comments are left out, also between continued lines."""
    found, current = [], ""
    for line in text.split("\n"):
        if line.lstrip()[:1] in ("#", ";"):
            continue
        current += line
        if current.endswith("\\"):
            current = current[:-1] + " "
            continue
        if current.strip():
            found.append(current)
        current = ""
    assert not current
    return found


def words(text: str) -> list[str]:
    """systemd's own splitting: quotes of both kinds, C escapes; a lone semicolon would begin another command."""
    found: list[str] = []
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        assert not re.match(r";(\s|$)", text[place:]), "another command begins"
        word, quote = "", ""
        while place < len(text) and (quote or not text[place].isspace()):
            mark = text[place]
            if mark == "\\":
                place += 1
                assert text[place] in '\\"', text  # the only escapes that are written
                word += text[place]
            elif quote and mark == quote:
                quote = ""
            elif not quote and mark in "\"'":
                quote = mark
            else:
                word += mark
            place += 1
        assert not quote, text
        found.append(word)
    return found


def specified(text: str) -> str:
    """Specifiers: %% and the home folder are all that is meant."""
    assert not re.search(r"%[^%h]|%$", text.replace("%%", "")), text
    return re.sub(r"%%|%h", lambda match: "%" if match[0] == "%%" else HOME, text)


def substituted(text: str, variables: dict[str, str]) -> str:
    """${NAME} of the unit's own variables; $$ is a dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables[match["name"]]

    pattern = r"\$\$|\$\{(?P<name>[A-Z0-9_]+)\}"
    assert "$" not in re.sub(pattern, "", text), text
    return re.sub(pattern, value, text)


def as_any(value: Any) -> Any:
    """Unchecked."""
    return value
