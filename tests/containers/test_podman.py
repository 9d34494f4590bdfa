"""Containers for real: up, mounts, logs, signals, down, and what `render` writes, run as it stands."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from moebox import phantom
from moebox.core.recipe import Recipe
from tests.containers.conftest import containers
from tests.driving import moebox, up, written

pytestmark = pytest.mark.engine
READY_S = 120


def answers(url: str) -> bool:
    """Whether /health says yes."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_for(url: str, process: "subprocess.Popen[str]") -> None:
    """Until it answers; the process's words when it ends before."""
    until = time.monotonic() + READY_S
    while not answers(url):
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < until, "no answer"
        time.sleep(0.5)


def test_up_answers_from_inside_and_down_leaves_nothing(recipe: Recipe, folders: Path) -> None:
    """The weights are mounted read-only, the log is the engine's, the container goes with `down`."""
    with up(written(recipe, folders)) as started:
        assert containers() == [f"moebox-{started['id']}"]
        document = moebox("verify", started["base_url"], "--only", "alive,plain", "--json").good().document
        assert document["verdict"] == "pass"
        log = moebox("logs", started["id"]).good().out
        assert "phantom-q8_0.gguf" in log
        inspected = json.loads(
            subprocess.run(["podman", "inspect", containers()[0]], capture_output=True, text=True, check=True).stdout
        )
        mount = next(one for one in inspected[0]["Mounts"] if one["Destination"] == str(phantom.gguf_path().parent))
        assert mount["RW"] is False
        assert "Devices" not in inspected[0]["HostConfig"] or not inspected[0]["HostConfig"]["Devices"]
    assert containers() == []
    assert "contained" not in moebox("ps", "--json").good().out


def test_ctrl_c_stops_the_container(recipe: Recipe, folders: Path) -> None:
    """`up` in the foreground, SIGINT as from a keyboard: exit code 130 and no container."""
    words = [sys.executable, "-m", "moebox", "up", str(written(recipe, folders)), "--json"]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(f"http://127.0.0.1:{recipe.listen.port}", command)
    time.sleep(1)
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert containers() == []


def test_a_container_that_is_killed_is_noticed(recipe: Recipe, folders: Path) -> None:
    """`podman kill` behind our back: `ps` does not list it as running, and nothing is left."""
    with up(written(recipe, folders)) as started:
        subprocess.run(["podman", "kill", f"moebox-{started['id']}"], check=True, capture_output=True)
        until = time.monotonic() + 30
        while containers() and time.monotonic() < until:
            time.sleep(0.5)
        assert containers() == []
        rows = json.loads(moebox("ps", "--json").good().out)
        assert not any(row.get("status") == "running" for row in rows.get("engines", rows.get("instances", [])))


def test_weights_in_a_hub_cache_are_found_inside(recipe: Recipe, folders: Path) -> None:
    """snapshots/REF/file is a link into blobs/: the whole models-- folder is mounted, and the shard's name stays."""
    hub = folders / "hub" / "models--moebox--phantom"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "abc123").mkdir(parents=True)
    blob = hub / "blobs" / "0123abcd"
    blob.write_bytes(phantom.gguf_path().read_bytes())
    link = hub / "snapshots" / "abc123" / "phantom-q8_0.gguf"
    link.symlink_to(Path("../../blobs/0123abcd"))
    cached = dataclasses.replace(recipe, name="cached", checkpoint=str(link))
    with up(written(cached, folders)) as started:
        assert "snapshots/abc123/phantom-q8_0.gguf" in moebox("logs", started["id"]).good().out


def test_an_image_that_is_not_there_is_one_line(recipe: Recipe, folders: Path) -> None:
    """No traceback, exit code 3."""
    missing = dataclasses.replace(
        recipe, name="missing", runtime=dataclasses.replace(recipe.runtime, image="localhost/missing/image:this")
    )
    done = moebox("up", written(missing, folders))
    assert done.code == 3
    assert "Traceback" not in done.err
    assert "localhost/missing/image:this" in done.err


def test_a_rendered_script_runs_as_it_stands(recipe: Recipe, folders: Path) -> None:
    """The script's podman command starts the same engine; SIGTERM to it ends the container."""
    script = folders / "serve.sh"
    moebox("render", written(recipe, folders), "--as", "podman", "-o", script).good()
    command = subprocess.Popen(
        ["bash", str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        wait_for(f"http://127.0.0.1:{recipe.listen.port}", command)
    finally:
        os.killpg(command.pid, signal.SIGTERM)
        command.wait(60)
        for name in containers():
            subprocess.run(["podman", "rm", "--force", name], check=True, capture_output=True)


def test_a_rendered_compose_file_is_taken_by_compose(recipe: Recipe, folders: Path) -> None:
    """podman-compose reads it, starts the service, and takes it down again. (1.0.3 cannot do `network_mode: host`.)"""
    project = folders / "project"
    project.mkdir()
    moebox("render", written(recipe, folders), "--as", "compose", "-o", project / "compose.yaml").good()
    words = [os.environ.get("MOEBOX_PODMAN_COMPOSE", "podman-compose"), "-f", str(project / "compose.yaml")]
    done = subprocess.run([*words, "up", "-d"], capture_output=True, text=True, check=False, cwd=project)
    try:
        assert done.returncode == 0, done.stderr[-3000:]
        until = time.monotonic() + READY_S
        while not answers(f"http://127.0.0.1:{recipe.listen.port}"):
            assert time.monotonic() < until, done.stderr[-3000:]
            time.sleep(0.5)
    finally:
        subprocess.run([*words, "down"], capture_output=True, check=False, cwd=project)
    assert containers() == []
