"""However moebox ends, its engines end with it or are found again: Ctrl-C, kill -9, detach, ps and down."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moebox import codec
from moebox.cli.target import find_endpoint
from moebox.core.recipe import Recipe
from moebox.serve import state
from tests.driving import call_main, moebox
from tests.serve.conftest import alive, gone_within, marked

Acting = Callable[..., Recipe]
MOEBOX = [sys.executable, "-c", "import sys; from moebox.cli import main; sys.exit(main())"]


@contextmanager
def up(recipe: Recipe, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`moebox up` in the foreground, until it has said that it is ready."""
    path = folder / "recipe.toml"
    path.write_text(codec.to_toml(recipe))
    with subprocess.Popen(
        [*MOEBOX, "up", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shown:
        assert shown.stdout
        first = shown.stdout.readline()
        assert first.startswith("ready after"), shown.stderr.read() if shown.stderr else ""
        try:
            yield shown
        finally:
            if shown.poll() is None:
                shown.kill()


def test_kill_9_of_moebox_leaves_no_orphan(acting: Acting, tmp_path: Path) -> None:
    """Workers in sessions of their own, deaf to signals, are gone soon after moebox is."""
    with up(acting("forks"), tmp_path) as shown:
        (instance,) = state.list_instances()
        assert len(marked(instance.id)) == 3
        shown.kill()
        assert not gone_within(lambda: marked(instance.id), 60)
    assert not gone_within(lambda: alive(instance.guard), 10)


def test_kill_9_of_the_guard_kills_the_engine_and_ps_names_what_is_left(acting: Acting, tmp_path: Path) -> None:
    """The engine itself dies with its guard; workers that hid are named by ps and cleared by down."""
    with up(acting("forks"), tmp_path) as shown:
        (instance,) = state.list_instances()
        engine = instance.guard_state.engine
        os.kill(instance.guard, signal.SIGKILL)
        assert not gone_within(lambda: alive(engine), 10)
        assert shown.wait(30) == 3
    left = {"id": instance.id, "status": "left behind"}
    (row,) = json.loads(call_main("ps", "--json").out)["engines"]
    assert {**row, **left} == row
    assert len(row["left"]) == 2
    done = call_main("down", instance.id)
    assert done.code == 0, done.err
    assert not gone_within(lambda: marked(instance.id), 10)  # the kernel ends a killed process in its own time
    assert call_main("ps").out.strip() == "nothing is running"


def test_ctrl_c_stops_the_engine_and_exits_130(acting: Acting, tmp_path: Path) -> None:
    """SIGINT to moebox is passed down the checks before it returns."""
    with up(acting("good"), tmp_path) as shown:
        (instance,) = state.list_instances()
        shown.send_signal(signal.SIGINT)
        assert shown.wait(60) == 130
        assert not marked(instance.id)
        assert not state.list_instances()


def test_sigterm_stops_the_engine_too(acting: Acting, tmp_path: Path) -> None:
    """A service manager's way of stopping moebox leaves nothing either."""
    with up(acting("good"), tmp_path) as shown:
        (instance,) = state.list_instances()
        shown.terminate()
        assert shown.wait(60) == 130
        assert not marked(instance.id)


def test_a_detached_engine_is_listed_followed_and_stopped(acting: Acting, tmp_path: Path) -> None:
    """up --detach returns, ps shows the engine, logs prints its words, down ends it."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting("good")))
    ready = moebox("up", path, "--detach", "--json").good().document  # this process would go on holding the run
    assert ready["facts"]["kv_tokens"] == 180_191

    (row,) = json.loads(call_main("ps", "--json").out)["engines"]
    assert (row["id"], row["status"], row["base_url"]) == (ready["id"], "ready", ready["base_url"])
    assert find_endpoint(str(path)).base_url == ready["base_url"]  # the recipe leaves the port to the start
    assert "moebox connect claude-code" in call_main("runs", "show", ready["id"]).out
    assert "Application startup complete" in call_main("logs", "-n", "3").out
    with subprocess.Popen([*MOEBOX, "logs", "-f", ready["id"]], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout
        assert "Initializing a V1 LLM engine" in following.stdout.readline()
        assert call_main("down").code == 0
        following.communicate(timeout=30)
    assert not marked(ready["id"])
    assert "moebox up " in call_main("runs", "show", ready["id"]).out


def test_the_run_of_a_detached_engine_is_not_deleted_under_it(acting: Acting, tmp_path: Path) -> None:
    """`runs` lists it as running, and `runs rm` says what to stop; with the engine down it may go."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting("good")))
    ready = moebox("up", path, "--detach", "--json").good().document
    (row,) = json.loads(call_main("runs", "--json").out)["runs"]
    refused = call_main("runs", "rm", row["id"], "--yes")
    assert call_main("down").code == 0

    assert row["live"]
    assert refused.code == 3
    assert f"stop it first: `moebox down {ready['id']}`" in refused.err
    (row,) = json.loads(call_main("runs", "--json").out)["runs"]
    assert not row["live"]
    assert call_main("runs", "rm", row["id"], "--yes").code == 0


def test_a_detached_engine_that_died_is_shown_with_its_code(acting: Acting, tmp_path: Path) -> None:
    """Without a watcher; ps shows it all the same, and down clears the record."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting("dies-after-ready")))
    ready = json.loads(call_main("up", str(path), "--detach", "--json").out)
    assert not gone_within(lambda: marked(ready["id"]), 30)
    (instance,) = state.list_instances()
    assert not gone_within(lambda: instance.is_alive, 10)
    assert "exited (7)" in call_main("ps").out
    assert call_main("down", ready["id"]).code == 0
    assert not state.list_instances()


def test_a_remedy_is_tried_once_and_journaled(acting: Acting, tmp_path: Path) -> None:
    """The context that vLLM's own message allows is set, tried, and both attempts stand in one run."""
    log = Path(__file__).parents[1] / "logs" / "vllm-0.32-kv-too-small.log"
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting(str(log), context=262144)))
    done = call_main("up", str(path), "--apply-remedy")
    assert done.code == 3
    assert "trying the remedy: context = 155328" in done.err
    (folder,) = (tmp_path / "runs").iterdir()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds.count("attempt.started") == kinds.count("attempt.failed") == 2
    applied = next(event["data"] for event in events if event["kind"] == "remedy.applied")
    assert applied == {"symptom": "oom-context-too-long", "change": {"context": 155328}}
    assert "context = 155328" in (folder / "recipe.toml").read_text()


@pytest.mark.parametrize("key", ["", "MY_KEY"])
def test_up_says_who_may_use_an_engine_without_a_key(
    key: str, acting: Acting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine on loopback that asks for no key answers every user of the machine; one with a key does not."""
    monkeypatch.setenv("MY_KEY", "sk-secret-1234567890")
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting("good")).replace('key_env = ""', f'key_env = "{key}"'))
    done = call_main("up", str(path), "--detach")
    assert done.code == 0, done.err
    assert call_main("down").code == 0
    assert ("every user of this machine may use it (listen.key_env in the recipe)" in done.err) == (not key)


def test_a_dry_run_prints_what_would_be_run(acting: Acting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command can be pasted, and a key stands in it as the variable it comes from."""
    monkeypatch.setenv("MY_KEY", "sk-secret-1234567890")
    recipe = acting("good")
    path = tmp_path / "recipe.toml"
    text = codec.to_toml(recipe).replace('key_env = ""', 'key_env = "MY_KEY"')
    path.write_text(text)
    done = call_main("up", str(path), "--dry-run")
    assert done.code == 0, done.err
    assert 'VLLM_API_KEY="$MY_KEY"' in done.out
    assert "sk-secret" not in done.out + done.err


@pytest.mark.parametrize(
    "words", [("logs", "unknown"), ("down", "unknown"), ("logs", "-n", "-1"), ("up", "no-such-recipe")]
)
def test_what_is_not_there_is_one_line(words: tuple[str, ...]) -> None:
    """Unknown names are bad input, one line each."""
    done = call_main(*words)
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_waiting_for_nothing_is_reported() -> None:
    """`moebox down` with nothing running reports it."""
    done = call_main("down")
    assert (done.code, "nothing is running" in done.err) == (3, True)


DROPPING = """
import os, signal, sys, time
from moebox.cli import main
from moebox.serve.session import EngineSession

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

def catch_up(self, once=[Dropped()], was=EngineSession.read_log):
    if self.instance.status == "ready":
        once.clear()
    return was(self)

EngineSession.read_log = catch_up
sys.exit(main())
"""


def test_an_interrupt_that_python_dropped_still_stops_the_engine(acting: Acting, tmp_path: Path) -> None:
    """Python forgets an interrupt that comes while an object is finalized; moebox raises it again."""
    path = tmp_path / "recipe.toml"
    path.write_text(codec.to_toml(acting("good")))
    words = [sys.executable, "-c", DROPPING, "up", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)

    assert done.stderr.endswith("interrupted\n")
    assert done.returncode == 130
    assert not state.list_instances()
