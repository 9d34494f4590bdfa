"""The real `claude` and `opencode` on jobs of ours, against the scripted model.

`make test-clients` installs them and names the folder of programs in MOEBOX_CLIENTS.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.driving import moebox

pytestmark = pytest.mark.engine
JOBS = ("--family", "errand,repair,implement", "--jobs", "3", "--seed", "0")
ERRAND = ("--family", "errand", "--jobs", "1", "--seed", "0")
ANSWERED = 20  # tokens of every reply, as the scripted model counts them on /v1/messages


def done(server: str, client: str, script: str, *words: str) -> dict[str, Any]:
    """What a client made of jobs that the model does by a script."""
    return moebox("task", server, "--model", script, "--with", client, *words, "--json").good().document


@pytest.mark.parametrize("client", ["claude", "opencode"])
def test_a_client_does_the_jobs(client: str, server: str) -> None:
    """Files are read and written, hidden tests pass, and what did it is named with its version."""
    document = done(server, client, client, *JOBS)

    assert [job["solved"] for job in document["jobs"]] == [True] * 3
    assert document["agent"] == client
    assert document["agent_version"][0].isdigit()
    assert all(call["ok"] for job in document["jobs"] for turn in job["turns"] for call in turn["calls"])


@pytest.mark.parametrize(("client", "turns", "reads"), [("claude", 3, "Read"), ("opencode", 2, "read")])
def test_a_reply_is_a_turn_and_calls_that_were_none_are_named(client: str, turns: int, reads: str, server: str) -> None:
    """Thought, talk and five calls in one reply: one turn; a file that is not there was a call, and three were none."""
    (job,) = done(server, client, f"{client}-clumsy", *ERRAND)["jobs"]
    calls = job["turns"][0]["calls"]

    assert job["solved"]
    assert len(job["turns"]) == turns
    assert sorted((call["tool"], call["ok"]) for call in calls if not call["ok"]) == sorted(
        [("NoSuchTool", False), (reads, False), (reads, False)]
    )
    assert sum(call["ok"] for call in calls) == 2


def test_tokens_are_those_the_server_counted_in_the_end(server: str) -> None:
    """Claude Code's own messages carry the usage of a reply's beginning."""
    (job,) = done(server, "claude", "claude-clumsy", *ERRAND)["jobs"]

    assert [turn["completion_tokens"] for turn in job["turns"]] == [ANSWERED] * 3
    assert all(turn["ttft_s"] is not None for turn in job["turns"])


@pytest.mark.parametrize("client", ["claude", "opencode"])
def test_nothing_of_the_user_is_read_or_written(client: str, server: str, home: Path) -> None:
    """Its home is a folder of its own, gone afterwards; the key is in no file of the run."""
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    words = ("--with", client, *ERRAND, "--key-env", "SECRET_OF_MINE", "--json")
    document = moebox("task", server, "--model", client, *words).good().document
    kept = b"".join(path.read_bytes() for path in Path(document["run"]).rglob("*") if path.is_file())

    assert {path: path.stat().st_mtime_ns for path in home.rglob("*")} == before
    assert b"a-secret-key" not in kept + json.dumps(document).encode()
