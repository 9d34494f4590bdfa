"""Every way a launch goes wrong gets a line of its own, found with a real child process."""

import dataclasses
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core.engine_event import EngineStopped
from moebox.core.recipe import Recipe, Runtime
from moebox.errors import BadInput, ExternalError
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import engine_session, launch_engine, prepare_launch
from moebox.store import Run
from moebox.store.log import log_pieces
from tests.serve.conftest import QUICK, marked

Acting = Callable[..., Recipe]
LOGS = Path(__file__).parents[1] / "logs"
MOEBOX = [sys.executable, "-c", "import sys; from moebox.cli import main; sys.exit(main())"]


def refused(recipe: Recipe, run: Run, *, patience_s: float = 30.0) -> LaunchFailed:
    """The failure of a launch that must not become ready; nothing of it may be left."""
    with (
        pytest.raises(LaunchFailed) as caught,
        engine_session(deploy(recipe), run, patience_s=patience_s, stop_signals=QUICK),
    ):
        pass
    assert caught.value.exit_code == 3
    assert not marked(run.id)
    assert "attempt.failed" in [event.kind for event in run.read_events()]
    return caught.value


def test_a_port_that_another_program_has_is_refused_before_anything_starts(acting: Acting, run: Run) -> None:
    """The message names the port; the engine is never executed."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        recipe = acting("good")
        recipe = dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=other.getsockname()[1]))
        with pytest.raises(ExternalError, match=r"port \d+ on 127\.0\.0\.1 is taken by another program") as caught:
            launch_engine(prepare_launch(deploy(recipe)), run)
    assert caught.value.exit_code == 3
    assert not (run.path / "engine.log").exists()


def test_an_engine_that_is_not_installed_is_reported_with_how_to_get_it(acting: Acting, run: Run) -> None:
    """No traceback of exec: which program, and what to install."""
    recipe = acting("good", runtime=Runtime(entry="no-such-engine serve"))
    with pytest.raises(ExternalError, match="vllm is not installed here: no-such-engine is not on PATH") as caught:
        launch_engine(prepare_launch(deploy(recipe)), run)
    assert "`moebox engines install vllm==" in str(caught.value.hint)
    assert "pip install vllm" in str(caught.value.hint)


def test_an_engine_that_cannot_be_executed_is_reported(acting: Acting, run: Run, tmp_path: Path) -> None:
    """A file with the right to run and nothing to run in it ends in one line, not in a hang."""
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    failure = refused(acting("good", runtime=Runtime(entry=str(broken))), run)
    assert failure.fault == "unstartable"
    assert "Exec format error" in failure.message


def test_an_engine_that_cannot_be_given_its_settings_is_reported(
    acting: Acting, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locale that lacks the characters of a recipe ends in one line, not in a traceback in the engine's log."""
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    failure = refused(acting("good", env={"GREETING": "日本"}), run)

    assert failure.fault == "unstartable"
    assert "cannot be started: an argument or variable cannot be passed on ('ascii' codec" in failure.message
    assert not (run.path / "guard.log").exists()
    assert not (run.path / "engine.log").read_text()


@pytest.mark.parametrize("version", ["9999 (abcdef)", "0.2.0-dev (build 9999, commit abcdef)"])
def test_a_wrong_version_is_refused_before_anything_starts(
    embedded: Recipe, run: Run, tmp_path: Path, version: str
) -> None:
    """A recipe that names a version does not run on another one; llama.cpp prints its number in two ways."""
    server = tmp_path / "llama-server"
    server.write_text(f"#!/bin/sh\necho 'version: {version}' >&2\n")
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    recipe = dataclasses.replace(embedded, engine_version="b11669", runtime=Runtime(entry=str(server)))
    with pytest.raises(ExternalError, match=r"wants llama\.cpp b11669, this machine has b9999"):
        launch_engine(prepare_launch(deploy(recipe)), run)


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere.gguf"])
def test_a_checkpoint_that_is_not_there_is_refused_before_anything_starts(acting: Acting, run: Run, name: str) -> None:
    """A path that does not exist is not left for the engine to find out."""
    with pytest.raises(ExternalError, match=f"checkpoint {name} not found"):
        launch_engine(prepare_launch(deploy(acting("good", checkpoint=name))), run)


def test_an_incomplete_checkpoint_is_refused_by_its_index(acting: Acting, run: Run, tmp_path: Path) -> None:
    """The shards that the index names are compared with those on disk; empty ones count as missing."""
    (tmp_path / "config.json").write_text("{}")
    table = {f"layer{n}": f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    (tmp_path / "model-00001-of-00003.safetensors").write_bytes(b"x")
    (tmp_path / "model-00002-of-00003.safetensors").write_bytes(b"")
    wanted = "2 of 3 shards are missing or empty, the first is model-00002-of-00003.safetensors"
    with pytest.raises(BadInput, match=wanted):
        launch_engine(prepare_launch(deploy(acting("good", checkpoint=str(tmp_path)))), run)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(BadInput, match="not a safetensors index"):
        launch_engine(prepare_launch(deploy(acting("good", checkpoint=str(tmp_path)))), run)


def test_a_split_gguf_needs_all_its_parts(embedded: Recipe, run: Run, tmp_path: Path) -> None:
    """The first part says how many there are."""
    first = tmp_path / "kimi-00001-of-00002.gguf"
    first.write_bytes(b"GGUF")
    with pytest.raises(BadInput, match=r"1 of 2 parts are missing, the first is kimi-00002-of-00002\.gguf"):
        launch_engine(prepare_launch(deploy(dataclasses.replace(embedded, checkpoint=str(first)))), run)


def test_an_engine_that_stands_still_at_99_percent_is_given_up(acting: Acting, run: Run) -> None:
    """It prints on, but nothing new: patience runs out and the phase is named."""
    failure = refused(acting("hangs-at-99"), run, patience_s=1.5)
    assert failure.fault == "stuck"
    assert re.search(r"made no progress for \d+ s while loading weights \(99 of 100\)", failure.message)


def test_an_engine_that_compiles_without_a_line_is_waited_for(acting: Acting, run: Run) -> None:
    """A compiler among its processes is progress, and the phase says so; nothing else was printed for two patiences."""
    with engine_session(deploy(acting("compiles")), run, patience_s=2.0, stop_signals=QUICK) as session:
        assert "compiling" in [phase for phase, _ in session.watch.summary.phases]


def test_an_engine_that_ends_well_without_serving_is_a_failure(acting: Acting, run: Run) -> None:
    """Exit code 0 is no success without any answer."""
    failure = refused(acting("quits"), run)
    assert failure.fault == "quit"
    assert failure.message == "vllm ended with code 0 without ever serving"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("broken-chat", "HTTP 500: the model produced nothing"), ("empty-chat", "an empty answer")],
)
def test_health_without_a_chat_is_a_failure(acting: Acting, run: Run, mode: str, reason: str) -> None:
    """A server that says it is well must answer a real chat before it counts as ready."""
    failure = refused(acting(mode), run)
    assert failure.fault == "mute"
    assert f"answers /health but no chat ({reason})" in failure.message


def test_a_chat_that_is_never_answered_is_a_failure(acting: Acting, run: Run) -> None:
    """The chat may take long, as long as the engine shows progress; this one does not."""
    failure = refused(acting("silent-chat"), run, patience_s=2.0)
    assert failure.fault == "mute"
    assert "answers /health but left a chat unanswered for" in failure.message


def test_an_engine_that_dies_after_it_was_ready_is_reported(acting: Acting, run: Run) -> None:
    """Its exit code is in the line."""
    with engine_session(deploy(acting("dies-after-ready")), run, patience_s=30, stop_signals=QUICK) as session:
        with pytest.raises(LaunchFailed, match="vllm ended with code 7 after it was ready") as caught:
            session.wait_until_exit()
        assert caught.value.fault == "died"
        assert not session.is_alive


@pytest.mark.parametrize(
    ("log", "symptom", "change"),
    [
        ("vllm-0.32-kv-too-small.log", "oom-context-too-long", {"context": 155328}),
        ("vllm-0.32-moe-backend-unsupported-on-device.log", "moe-backend-unsupported", {}),
        ("vllm-0.32-bad-tool-parser.log", "start-bad-tool-parser", {}),
        ("vllm-0.32-worker-oom-killed-engine-dead.log", "oom-host-killer", {}),
    ],
)
def test_a_failed_start_names_the_first_cause(acting: Acting, run: Run, log: str, symptom: str, change: object) -> None:
    """Recorded failures of vLLM 0.32, printed by a real process: the first failure is named, not the last traceback."""
    failure = refused(acting(str(LOGS / log)), run)
    assert failure.fault == "exited"
    assert failure.finding is not None
    assert failure.finding.symptom == symptom
    assert failure.finding.change == change


def test_a_gigabyte_of_log_stays_bounded_on_disk_and_in_memory(acting: Acting, run: Run) -> None:
    """The beginning and the end are kept, the middle goes, and neither moebox nor the guard grows."""
    size = 10**9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with engine_session(
        deploy(acting("flood", env={"FLOOD_BYTES": str(size)})), run, patience_s=60, stop_signals=QUICK
    ) as session:
        guard = Path(f"/proc/{session.guard.pid}/status").read_text()
    stopped = next(event for event in run.read_events() if isinstance(event, EngineStopped))
    assert (stopped.log_bytes or 0) > 0.99 * size
    kept = sum(path.stat().st_size for path in log_pieces(run.path / "engine.log"))
    assert kept < 200 * 2**20
    peak = int(next(line for line in guard.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak < 200 * 1024  # KiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_a_full_disk_does_not_stop_an_engine_and_is_reported(acting: Acting, tmp_path: Path) -> None:
    """Log that cannot be written is lost and said to be; the engine becomes ready all the same."""
    recipe = tmp_path / "flood.toml"
    recipe.write_text(codec.to_toml(acting("flood", env={"FLOOD_BYTES": "4000000"})))
    command = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *MOEBOX, "up", str(recipe), "--detach", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot be written (File too large): the engine runs on, its log is lost" in " ".join(done.stderr.split())
    ready = json.loads(done.stdout)
    listed = subprocess.run([*MOEBOX, "ps", "--json"], capture_output=True, text=True, timeout=30, check=True)
    row = next(row for row in json.loads(listed.stdout)["engines"] if row["id"] == ready["id"])
    assert row["lost_log_bytes"] > 1_000_000
