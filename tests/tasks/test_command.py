"""`moebox task` as a person meets it."""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from moebox.cli import main
from tests.serving import live

from .conftest import serving


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))


def test_it_prints_jobs_and_scores_that_fit_eighty_columns(server: str, capsys: pytest.CaptureFixture[str]):
    """A line a job, a table of families, the sum."""
    code = main(["task", server, "--model", "solve", "--jobs", "3", "--seed", "0"])
    out = capsys.readouterr().out

    assert code == 0
    assert "✓ errand-easy-0" in out
    assert "solved: 3 of 3 (44–100%)" in out
    assert max(map(len, out.splitlines())) <= 80


def test_nothing_solved_is_the_answer_no(server: str, capsys: pytest.CaptureFixture[str]):
    """With the step at which it went wrong."""
    code = main(["task", server, "--model", "lazy", "--jobs", "2", "--seed", "0", "--family", "repair"])
    out = capsys.readouterr().out

    assert code == 1
    assert "turn 1: reported done without writing anything" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_one_document(server: str, capsys: pytest.CaptureFixture[str]):
    """With the keys scripts rely on."""
    main(["task", server, "--model", "solve", "--jobs", "2", "--seed", "0", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert document["solved"]["passed"] == 2
    assert {"families", "left", "jobs", "url", "model", "agent", "run"} <= document.keys()
    assert document["jobs"][0]["turns"][0]["number"] == 1


def test_resume_finishes_a_run(server: str, capsys: pytest.CaptureFixture[str]):
    """And says what to type."""
    code = main(
        ["task", server, "--model", "slow", "--jobs", "3", "--family", "errand", "--seed", "0", "--budget", "1s"]
    )
    assert "jobs unfinished: moebox task --resume" in capsys.readouterr().out
    assert code == 1

    assert main(["task", "--resume", "latest"]) == 0
    assert "solved: 3 of 3" in capsys.readouterr().out


class _Refusing(BaseHTTPRequestHandler):
    """Notes where it was asked, and has no answer."""

    asked: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        self.asked.add(self.path)
        self.send_error(400)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def test_resume_asks_by_the_api_that_the_run_was_begun_with(server: str):
    """The default of `--api` replaced it without a word."""
    begun = ["--jobs", "3", "--family", "errand", "--seed", "0", "--budget", "1s", "--set", "api=anthropic"]
    main(["task", server, "--model", "slow", *begun])
    with live(ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)) as other:
        main(["task", f"http://127.0.0.1:{other.server_port}", "--model", "slow", "--resume", "latest"])

    assert _Refusing.asked == {"/v1/messages"}


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_an_outage_is_not_the_models_failure(words: list[str], server: str, capsys: pytest.CaptureFixture[str]):
    """Exit code 3, the jobs are left, and with the server back `--resume` does them all."""
    with serving() as dying:
        asked = ["--family", "errand", "--jobs", "2", "--seed", "0"]
        assert main(["task", dying, "--model", "dies", *asked, *words]) == 3
    reported = capsys.readouterr()
    assert "does not answer any more" in reported.err
    assert "resume with: moebox task --resume" in reported.err
    if words:
        assert json.loads(reported.out)["left"] == ["errand-easy-0", "errand-easy-1"]

    assert main(["task", server, "--model", "solve", "--resume", "latest"]) == 0
    assert "solved: 2 of 2" in capsys.readouterr().out


def test_a_side_that_goes_away_is_not_the_worse_one(server: str, capsys: pytest.CaptureFixture[str]):
    """A comparison by jobs ends with exit code 3 and no verdict."""
    with serving() as dying:
        models = ["--model", "solve", "--model-b", "dies"]
        words = [
            "compare",
            server,
            dying,
            "--by",
            "task",
            *models,
            "--set",
            "family=errand",
            "--set",
            "jobs=2",
            "--set",
            "seed=0",
        ]
        assert main([*words, "--json"]) == 3
    reported = capsys.readouterr()
    assert reported.out == ""
    assert "does not answer any more" in reported.err


def test_a_run_is_resumed_by_the_agent_that_began_it(server: str, capsys: pytest.CaptureFixture[str]):
    """One without jobs is an error."""
    main(["task", server, "--model", "solve", "--jobs", "1", "--seed", "0"])
    assert main(["task", "--resume", "latest", "--with", "unknown"]) == 2
    run = next(Path(os.environ["MOEBOX_RUNS"]).iterdir())
    (run / "tasks.json").unlink()
    assert main(["task", server, "--model", "solve", "--resume", "latest"]) == 2
    assert "has no jobs to resume" in capsys.readouterr().err


BAD = {
    "--family nonsense": "unknown family",
    "--jobs 0": "--jobs 0 is out of range",
    "--parallel 0": "--parallel 0 is out of range",
    "--budget soon": "soon",
    "--budget 0s": "must be more than 0",
    "--resume nosuchrun": "no run called",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words: str, server: str, capsys: pytest.CaptureFixture[str]):
    """What and how to fix it, exit code 2."""
    code = main(["task", server, "--model", "solve", *words.split()])
    err = capsys.readouterr().err

    assert code == 2
    assert BAD[words] in err
    assert "Traceback" not in err


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]):
    """Exit code 3 before any job is begun."""
    assert main(["task", "http://127.0.0.1:9/v1", "--jobs", "1"]) == 3
    assert "is the server up?" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Exit code 130; the interrupted job is done again, the finished one is not."""
    words = [sys.executable, "-m", "moebox", "task", server, "--model", "slow", "--jobs", "2", "--family", "errand"]
    process = subprocess.Popen([*words, "--seed", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert "errand-easy-0" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, reported = process.communicate(timeout=60)

    assert process.returncode == 130, reported
    assert "resume with: moebox task --resume" in reported
    assert main(["task", server, "--model", "slow", "--resume", "latest"]) == 0
    out = capsys.readouterr().out
    assert "errand-easy-1" in out
    assert "✓ errand-easy-0" not in out
