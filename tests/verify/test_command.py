"""`moebox verify` as users and scripts call it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from moebox.cli import main
from moebox.core import catalogue
from moebox.verify.checks import CHECKS
from moebox.verify.options import CHECK_NAMES

from ..flows.pipelines import until
from ..report.making import a_run
from .oracle.app import KEY, MODEL


def test_a_pass_is_exit_code_0_with_one_document(oracle: str, capsys: pytest.CaptureFixture[str]):
    """--json prints the results alone on stdout; the named evidence files exist."""
    words = [
        "verify",
        f"{oracle}/correct",
        "--json",
        "--only",
        "alive,arithmetic",
        "--only",
        "limits",
        "--set",
        "seed=1",
    ]

    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "pass"
    assert [check["name"] for check in document["rungs"]] == ["alive", "arithmetic", "limits"]
    assert all((Path(document["run"]) / check["evidence"]).is_file() for check in document["rungs"])
    assert not any(probe["evidence"] for check in document["rungs"] for probe in check["probes"])
    assert document["rungs"][1]["score"] == {
        "passed": 8,
        "trials": 8,
        "low": pytest.approx(0.676, abs=1e-3),
        "high": 1.0,
    }


def test_a_failure_is_exit_code_1_with_the_reason(oracle: str, capsys: pytest.CaptureFixture[str]):
    """The output has the check, the probe and the reason; the model's name is detected."""
    assert (
        main(["verify", f"{oracle}/forgets-usage", "--from", "streaming", "--only", "streaming", "--set", "seed=1"])
        == 1
    )
    shown = capsys.readouterr().out
    assert "✗ streaming" in shown
    assert "same words: the stream has no usage" in shown
    assert "fail: 0 of 1 checks passed, 1 failed" in shown


@pytest.mark.parametrize(("fault", "check"), [("arguments-cut", "tools"), ("blanks-collapse", "prompts")])
def test_the_request_that_failed_can_be_sent_again(
    fault: str, check: str, oracle: str, capsys: pytest.CaptureFixture[str]
):
    """The printed line works in a shell: a long request, or one with blanks in a row, is read from its file."""
    assert main(["verify", f"{oracle}/{fault}", "--only", check, "--set", "seed=1", "--set", "trials=4"]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("    reproduce"))
    command = line.partition("): ")[2]
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20, check=True).stdout

    assert len(command) <= 400
    assert f"-{check}.json" in command
    assert json.loads(printed)["object"] == "chat.completion"


def test_an_unreachable_server_is_a_verdict(capsys: pytest.CaptureFixture[str]):
    """Every check is listed."""
    assert main(["verify", "http://127.0.0.1:9", "--model", "m", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert "cannot connect" in document["rungs"][0]["reason"]
    assert [check["verdict"] for check in document["rungs"]] == ["fail"] + ["skip"] * (len(CHECK_NAMES) - 1)


@pytest.mark.parametrize("url", ["http://me:hunter2@127.0.0.1:9/v1", "me:hunter2@127.0.0.1:9"])
def test_a_password_in_a_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]):
    """It would end up in evidence and reports; the refusal does not repeat it."""
    assert main(["verify", url, "--model", "m"]) == 2
    message = capsys.readouterr().err
    assert "--key-env" in message
    assert "hunter2" not in message


def test_the_key_comes_from_the_environment(
    oracle: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """And is not in anything that is printed."""
    monkeypatch.setenv("MOEBOX_ORACLE_KEY", KEY)
    words = ["verify", f"{oracle}/keyed", "--only", "alive", "--set", "seed=1"]

    assert main([*words, "--key-env", "MOEBOX_ORACLE_KEY", "--json"]) == 0
    assert KEY not in capsys.readouterr().out
    assert main([*words, "--model", MODEL]) == 1


def test_junit_is_what_ci_reads(oracle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One suite for each check, one case for each probe."""
    path = tmp_path / "checks.xml"
    main(["verify", f"{oracle}/exclaims", "--junit", str(path), "--set", "seed=1"])
    suites = {suite.get("name"): suite for suite in ElementTree.parse(path).getroot()}  # noqa: S314  (ours)

    assert list(suites) == list(dict.fromkeys(suites))
    assert suites["alive"].get("failures") == "0"
    assert int(suites["plain"].get("failures") or 0) >= 2
    assert suites["tools"].find("testcase/skipped") is not None
    assert "words" in str(suites["plain"].find("testcase/failure").get("message"))  # type: ignore[union-attr]


def test_a_recipe_names_its_server(oracle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Host, port and served name come from the file."""
    path = tmp_path / "r.toml"
    path.write_text(
        'name = "r"\nengine = "vllm"\nmodel = "kimi-k2.6"\ncheckpoint = "x"\nserved_name = "m"\n[listen]\nport = 9\n'
    )

    assert main(["verify", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["url"], document["model"], document["engine"]) == ("http://127.0.0.1:9/v1", "m", "vllm")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_interrupted(number: signal.Signals, oracle: str, tmp_path: Path):
    """Exit code 130, and one line that names the run folder with the finished checks."""
    words = [sys.executable, "-m", "moebox", "verify", f"{oracle}/never-answers", "--model", MODEL]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: any((tmp_path / "runs").glob("*/events.jsonl")), "the first check begins")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    (run,) = (tmp_path / "runs").iterdir()
    assert errors.splitlines()[-1] == f"interrupted; the finished checks are in {run}"
    assert "Traceback" not in errors


def test_a_killed_one_is_not_shown_as_passed(oracle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`runs show` prints how many of the checks were done, and shows none as passed."""
    words = [sys.executable, "-m", "moebox", "verify", f"{oracle}/correct", "--only", "alive,arithmetic"]
    process = subprocess.Popen([*words, "--set", "trials=1000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert "alive" in process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)

    assert main(["runs", "show", "latest"]) == 0
    shown = capsys.readouterr().out
    assert "! right" in shown
    assert "interrupted: 1 of 2 checks done" in shown
    assert f"moebox verify {oracle}/correct/v1" in shown
    assert "✓" not in shown


def test_a_comparison_can_be_interrupted(oracle: str):
    """The message explains that a comparison cannot be resumed."""
    url = f"{oracle}/never-answers"
    words = [sys.executable, "-m", "moebox", "compare", url, url, "--model", MODEL]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert process.stderr.readline().startswith("run: ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors.startswith("interrupted; a comparison cannot be resumed")


def test_checks_are_kept_in_the_run_of_the_launch(
    oracle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up`, `verify --run`, `bench --run`: one report shows what was chosen, whether it is right and how fast it is."""
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path))
    run = a_run(tmp_path)
    assert main(["verify", f"{oracle}/correct", "--only", "alive", "--run", run.id]) == 2
    assert f"{run.id} is about kimi-k2.6, and" in capsys.readouterr().err
    recipe = run.path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('served_name = "kimi-k2.6"', f'served_name = "{MODEL}"'))
    assert main(["verify", f"{oracle}/correct", "--only", "alive", "--run", run.id]) == 0
    assert f"evidence: {run.path}" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} - {"state"} == {run.id}
    assert main(["runs", "show", run.id, "--all"]) == 0
    assert "pass  alive" in capsys.readouterr().out
    assert main(["verify", f"{oracle}/correct", "--only", "alive", "--run", "nosuch"]) == 2


def test_a_few_checks_are_not_a_full_pass(oracle: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Never shown as passed: what was left out could be broken."""
    assert main(["verify", f"{oracle}/correct", "--only", "alive"]) == 0
    capsys.readouterr()
    assert main(["runs", "show", "latest"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"! right 1 of 1 checks passed, {len(CHECK_NAMES) - 1} not made" in shown
    assert f"moebox bench {oracle}/correct/v1" in shown
    assert main(["runs"]) == 0
    assert " in part " in capsys.readouterr().out


def test_a_quick_run_names_what_it_left_out(oracle: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And what its few trials can miss; a normal run leaves out nothing of these checks."""
    words = ["verify", f"{oracle}/correct", "--only", "alive,cache,trends", "--set", "seed=1", "--effort"]

    assert main([*words, "quick"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "; left out: returning" in shown
    assert "trends not tried; left out: length, turns, streams, temperature" in shown
    assert "4 trials of the usual requests" in shown
    assert "a fault in 1 of 3 with 80%, 1 of 10 with 34%, 1 of 30 with 13%; none in what was left out" in shown
    assert main([*words, "normal"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "left out" not in shown
    assert "a fault in 1 of 3 with 96%" in shown


def test_the_probes_of_not_quick_exist():
    """A renamed probe would silently be made again."""
    probes = {check.name: set(check.probes) for check in CHECKS}
    for check, names in catalogue.load_table("check_requests")["not_quick"].items():
        assert set(names) <= probes[check]
