"""A service keeps its engine up: deaths and hangs are restarted with evidence, and it is started once."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moebox import codec
from moebox.checkpoint import deploy
from moebox.cli import main
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.errors import ExternalError
from moebox.flows.service import Service, install_unit
from moebox.serve import preflight, state
from moebox.serve.faults import LaunchFailed
from moebox.serve.session import EngineSession, send_to_guard
from moebox.serve.where import ServiceSettings
from moebox.store import Run
from tests.hangs import no_longer_than

ENGINE = Path(__file__).parents[1] / "serve" / "engine.py"
QUICK = (("SIGTERM", 0.5), ("SIGKILL", 5.0))
HASTY = ServiceSettings(canary_every_s=0.2, canary_s=1.0, stall_s=2.0, pause_s=0.1, min_free_gib=0.0)


def acting(mode: str) -> Recipe:
    return Recipe(
        name=f"service-{mode}",
        engine="vllm",
        model="kimi-k2.6",
        checkpoint="moonshotai/Kimi-K2.6",
        served_name="kimi",
        runtime=Runtime(entry=shlex.join([sys.executable, str(ENGINE), mode])),
        listen=Listen(port=preflight.find_free_port()),
    )


@contextmanager
def service_of(mode: str, tmp_path: Path, settings: ServiceSettings = HASTY) -> Iterator[Service]:
    run = Run.create("service", runs=tmp_path)
    with no_longer_than(60):
        yield Service(deploy(acting(mode)), run, settings, report=lambda line: None, stop_signals=QUICK)


def keep_up_with(service: Service, fault: Callable[[EngineSession], None]) -> list[dict[str, object]]:
    """Run the service, do `fault` to its first engine, stop at the second; return the incidents."""
    starts = []

    def on_ready(session: EngineSession) -> None:
        starts.append(session.instance.guard_state.engine)
        if len(starts) == 1:
            fault(session)
        else:
            service.stop.set()

    service.keep_up(patience_s=30, on_ready=on_ready)
    assert len(set(starts)) == 2
    return [json.loads(path.read_text()) for path in sorted(service.run.path.glob("incidents/*.json"))]


def test_an_engine_that_is_killed_is_restarted(tmp_path: Path):
    """kill -9: a second engine answers, and the reason is kept."""
    with service_of("good", tmp_path) as service:
        (incident,) = keep_up_with(service, lambda s: os.kill(s.instance.guard_state.engine, signal.SIGKILL))

    assert incident["reason"] == "vllm ended"


def test_an_engine_that_is_stopped_is_restarted(tmp_path: Path):
    """SIGSTOP: nothing moves, so it is replaced; the evidence names the stopped process."""
    with service_of("good", tmp_path, ServiceSettings(stall_s=1.5, pause_s=0.1, min_free_gib=0.0)) as service:
        (incident,) = keep_up_with(service, lambda s: os.kill(s.instance.guard_state.engine, signal.SIGSTOP))

    assert "is stopped (SIGSTOP)" in str(incident["reason"])
    assert [process["status"] for process in incident["processes"]] == ["stopped"]  # type: ignore[attr-defined]


def test_a_hang_with_a_good_health_is_noticed_by_the_canary(tmp_path: Path):
    """/health is 200 and chats hang after the first one."""
    with service_of("hangs-after-ready", tmp_path) as service:
        (incident,) = keep_up_with(service, lambda s: None)

    assert "no token came out" in str(incident["reason"])
    assert incident["health"] == 200
    assert any("startup complete" in line for line in incident["log"])  # type: ignore[attr-defined]


def test_moebox_down_stops_the_service_too(tmp_path: Path):
    """An engine that was asked to stop is not restarted."""
    with service_of("good", tmp_path) as service:
        service.keep_up(patience_s=30, on_ready=lambda session: send_to_guard(session.guard, b"stop\n"))
    assert service.restarts == 0


@pytest.mark.parametrize("words", [["service-good"], []])
def test_moebox_down_stops_a_service_between_two_starts(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The engine was killed, and the service waits before it starts another one."""
    path = tmp_path / "service-good.toml"
    path.write_text(codec.to_toml(acting("good")))
    start = ["up", str(path), "--service", "--set", "service.pause_s=600", "--set", "service.min_free_gib=0"]
    env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "nobody")}
    with no_longer_than(60), subprocess.Popen([sys.executable, "-m", "moebox", *start], env=env) as child:
        while not (live := [each for each in state.list_instances() if each.ready]):
            time.sleep(0.05)
        os.kill(live[0].guard_state.engine, signal.SIGKILL)
        while any(each.is_alive for each in state.list_instances()):
            time.sleep(0.05)
        assert main(["down", *words]) == 0
        assert "service-good: a service between two starts, now stopped" in capsys.readouterr().out
        assert child.wait() in (0, 130, 143, -signal.SIGTERM)
    assert not state.held_services()


def test_an_engine_that_never_starts_is_given_up(tmp_path: Path):
    """After some failed starts in a row the failure is the service's."""
    settings = ServiceSettings(pause_s=0.05, failed_starts=2, min_free_gib=0.0)
    with service_of("quits", tmp_path, settings) as service, pytest.raises(LaunchFailed):
        service.keep_up(patience_s=30, on_ready=lambda session: None)
    assert service.restarts == 1


def test_a_service_started_twice_is_one_line(tmp_path: Path):
    """The second one names the process that holds it."""
    with service_of("good", tmp_path) as service:

        def on_ready(session: EngineSession) -> None:
            other = Service(service.deployment, service.run, HASTY, report=lambda line: None)
            with pytest.raises(ExternalError, match=rf"service-good runs already \(process {os.getpid()}\)"):
                other.keep_up(patience_s=5, on_ready=lambda session: None)
            service.stop.set()

        service.keep_up(patience_s=30, on_ready=on_ready)


def test_a_full_disk_refuses_the_start_in_one_line(tmp_path: Path):
    """Old incidents are removed first."""
    with service_of("good", tmp_path, ServiceSettings(min_free_gib=1e9)) as service:
        (service.run.path / "incidents").mkdir()
        (service.run.path / "incidents" / "1.json").write_text("{}")
        with pytest.raises(ExternalError, match="are free on the disk"):
            service.keep_up(patience_s=5, on_ready=lambda session: None)
        assert not list(service.run.path.glob("incidents/*"))


def test_the_unit_is_accepted_by_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user's unit, with readiness by notification and restart rules."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    path, commands = install_unit(deploy(acting("good")), "kimi-k26-vllm", ["context=4096"])

    text = path.read_text()
    assert "Type=notify" in text
    assert "up kimi-k26-vllm --service --set context=4096" in text
    assert commands[1] == "systemctl --user enable --now moebox-service-good"
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False
        )
        assert not [line for line in done.stderr.splitlines() if path.name in line], done.stderr
