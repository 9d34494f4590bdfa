"""Jobs in Harbor's task format do what they do here, and Harbor's results are read into the same scores."""

import json
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from moebox.cli import main
from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.tasks.families import FAMILIES, make_job
from moebox.tasks.harbor import harbor_command, read_results, run_dataset, stop_harbor, write_task
from tests.sampling import one_in


def checked(task: Path, app: Path) -> subprocess.CompletedProcess[str]:
    """The verifier as test.sh calls it."""
    words = [sys.executable, "-I", str(task / "tests" / "check.py"), str(app)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("family", one_in(3, FAMILIES))
def test_a_task_has_every_file_and_its_checks_judge_as_ours(family: str, tmp_path: Path):
    """The reference passes, the start does not, and changed tests fail."""
    job = make_job(family, "easy", 2)
    task = write_task(job, tmp_path / "tasks")
    app = tmp_path / "app"
    shutil.copytree(task / "environment" / "files", app)

    settings = tomllib.loads((task / "task.toml").read_text())
    assert settings["version"] == "1.0"
    assert settings["verifier"]["timeout_sec"] > 0
    assert settings["agent"]["timeout_sec"] > 0
    assert (task / "instruction.md").read_text().strip()
    assert "WORKDIR /app" in (task / "environment" / "Dockerfile").read_text()
    assert (task / "tests" / "test.sh").stat().st_mode & stat.S_IXUSR
    assert "/logs/verifier/reward.txt" in (task / "tests" / "test.sh").read_text()
    assert checked(task, app).returncode == 1

    shutil.copytree(task / "solution" / "files", app, dirs_exist_ok=True)
    assert checked(task, app).returncode == 0, checked(task, app).stdout
    if job.protected:
        (app / job.protected[-1]).write_text("other")
        assert "must stay" in checked(task, app).stdout


def test_the_gadget_is_a_program_there(tmp_path: Path):
    """With its state in files."""
    task = write_task(make_job("gadget", "easy", 0), tmp_path)
    app = task / "environment" / "files"

    def send_line(line: str) -> str:
        words = [sys.executable, "gadget.py", line]
        return subprocess.run(words, cwd=app, capture_output=True, text=True, check=True).stdout

    assert send_line("?*").startswith("ok: A1")
    assert send_line("@A1") == "ok: at A1\n"
    thing = next(iter(json.loads((app / ".store.json").read_text())["A1"]))
    assert send_line(f"^2:{thing}") == f"ok: the trolley holds 2 {thing}\n"


def test_writing_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """No endpoint is needed for it."""
    assert main(["task", "--write", str(tmp_path / "out"), "--jobs", "2", "--seed", "0"]) == 0
    assert "2 tasks written" in capsys.readouterr().out
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert main(["task", "--write", str(tmp_path / "out"), "--jobs", "2", "--seed", "0", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 2


TRIAL = {
    "task_name": "fix-git",
    "trial_name": "fix-git__abc",
    "started_at": "2026-11-15T10:00:00Z",
    "finished_at": "2026-11-15T10:02:00Z",
    "agent_result": {"n_input_tokens": 900, "n_cache_tokens": 100, "n_output_tokens": 70},
    "verifier_result": {"rewards": {"reward": 1.0}},
    "exception_info": None,
}


def test_results_are_read(tmp_path: Path):
    """Solved, failed, timed out, and files that are none."""
    trials = [
        TRIAL,
        {**TRIAL, "trial_name": "b", "verifier_result": {"rewards": {"reward": 0.0}}},
        {
            **TRIAL,
            "trial_name": "c",
            "verifier_result": None,
            "exception_info": {"exception_type": "AgentTimeoutError", "exception_message": "late"},
        },
    ]
    for number, trial in enumerate(trials):
        (tmp_path / "job" / f"t{number}").mkdir(parents=True)
        (tmp_path / "job" / f"t{number}" / "result.json").write_text(json.dumps(trial))
    (tmp_path / "job" / "result.json").write_text('{"n_total_trials": 3}')
    (tmp_path / "job" / "t3").mkdir()
    (tmp_path / "job" / "t3" / "result.json").write_text("{")
    found = read_results(tmp_path, "terminal-bench@2.0")

    assert [result.solved for result in found] == [True, False, False]
    assert found[0].seconds == 120
    assert found[0].output_tokens == 70
    assert found[2].end == "time"
    assert {result.family for result in found} == {"terminal-bench@2.0"}
    assert "AgentTimeoutError: late" in found[2].wrong


def test_our_own_tasks_come_back_as_the_jobs_they_are(tmp_path: Path) -> None:
    names = ("errand-easy-7", "long-reply-hard-12", "errand-easy-x")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({**TRIAL, "task_name": name}))
    found = [(result.family, result.level, result.seed) for result in read_results(tmp_path, "tasks")]

    assert found == [("errand", "easy", 7), ("tasks", "hard", 1), ("long-reply", "hard", 12)]


HARBOR = """#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
folder = pathlib.Path(words[words.index("-o") + 1]) / "job" / "trial"
folder.mkdir(parents=True)
assert os.environ["OPENAI_API_KEY"] == "the-key"
assert "GITHUB_TOKEN" not in os.environ
(folder / "result.json").write_text(json.dumps({trial}))
print(words)
"""


def test_harbor_is_given_the_endpoint_and_its_results_are_ours(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The command as its documentation has it, the key by the environment alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("MOEBOX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("KEY", "the-key")
    monkeypatch.setenv("GITHUB_TOKEN", "another service's")
    words = ["task", server, "--model", "solve", "--harbor", "terminal-bench@2.0", "--key-env", "KEY"]
    assert main(words) == 3
    assert "harbor is not installed" in capsys.readouterr().err

    program(folder / "harbor", HARBOR.format(python=sys.executable, trial=repr(TRIAL)))
    assert main(words) == 3
    assert "docker is not installed" in capsys.readouterr().err
    program(folder / "docker", "#!/bin/sh\nexit 1\n")  # the client alone, without its daemon
    assert main(words) == 3
    assert "docker cannot be reached" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()  # nothing was begun
    program(folder / "podman", "#!/bin/sh\nexit 0\n")
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "terminal-bench@2.0" in out
    assert "solved: 1 of 1" in out
    (log,) = (tmp_path / "runs").rglob("harbor.log")
    text = log.read_text()
    assert "'-e', 'podman'" in text
    assert '"max_input_tokens": 131072' in text  # what the server has
    assert "the-key" not in text


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_command_is_as_harbors_documentation_has_it(tmp_path: Path) -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", model="m", key="k")
    whole = {"engine": "docker", "jobs": 3, "parallel": 2, "context": None}
    words = harbor_command("terminal-bench@2.0", endpoint, tmp_path, **whole)

    assert words[:8] == ["harbor", "run", "-d", "terminal-bench@2.0", "-e", "docker", "-a", "terminus-2"]
    assert "api_base=http://127.0.0.1:1/v1" in words
    assert "k" not in words
    small = harbor_command(str(tmp_path), endpoint, tmp_path, jobs=3, parallel=2, engine="podman", context=2048)
    assert small[2:6] == ["-p", str(tmp_path), "-e", "podman"]
    assert "proactive_summarization_threshold=512" in small


SLEEPER = """import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("containers removed")
    sys.exit(1)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
time.sleep(600)
"""


def test_harbor_is_interrupted_not_killed(tmp_path: Path) -> None:
    """It removes its containers then."""
    mark = tmp_path / "mark"
    harbor = subprocess.Popen([sys.executable, "-c", SLEEPER, str(mark)], stdout=subprocess.PIPE)
    with harbor:
        assert harbor.stdout
        assert harbor.stdout.readline() == b"ready\n"
        stop_harbor(harbor)
    assert mark.read_text() == "containers removed"


def test_a_budget_that_is_up_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "harbor", "#!/bin/sh\nexec /bin/sleep 600\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(ExternalError, match="left no results"):
        run_dataset("d", endpoint, tmp_path / "out", engine="podman", jobs=1, parallel=1, budget_s=0.2)
