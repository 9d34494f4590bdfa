"""An engine from start to stop: the embedded llama.cpp for real, and what is written down about it."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.checkpoint import deploy
from moebox.core.engine_event import AttemptReady, EngineStopped
from moebox.core.recipe import Recipe
from moebox.core.symptom import Finding
from moebox.engines.events import LogEvent
from moebox.errors import BadInput, ExternalError
from moebox.runs.reader import read_run
from moebox.serve import state
from moebox.serve.facts import compare_with_plan, planned_memory
from moebox.serve.session import engine_session, launch_engine, prepare_launch
from moebox.store import Run
from tests.checkpoint import tiny
from tests.checkpoint.test_safetensors import KIMI, PARTS
from tests.serve.conftest import QUICK, alive, gone_within, marked


def test_the_embedded_engine_answers_a_chat_and_is_gone_afterwards(embedded: Recipe, run: Run) -> None:
    """llama.cpp boots under supervision, speaks the OpenAI API on loopback, and leaves no process."""
    heard: list[LogEvent | Finding] = []
    with engine_session(deploy(embedded), run, patience_s=60, listener=heard.append) as session:
        assert session.is_alive
        assert session.endpoint.base_url.startswith("http://127.0.0.1:")
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        url = f"{session.endpoint.base_url}/chat/completions"
        request = urllib.request.Request(
            url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["usage"]["completion_tokens"] == 4
        pid = session.instance.guard_state.engine

    assert gone_within(lambda: alive(pid), 10) is False
    assert not state.list_instances()
    phases = [one.phase for one in heard if isinstance(one, LogEvent) and one.kind in ("phase", "ready")]
    assert phases[0] == "loading weights"
    assert phases[-1] == "ready"


def test_facts_of_the_engine_stand_beside_the_plan(embedded: Recipe, run: Run) -> None:
    """The cache that llama.cpp allocates for two slots of 2,048 tokens is the one that was planned."""
    with engine_session(deploy(embedded), run, patience_s=60) as session:
        rows = compare_with_plan(session.facts, planned_memory(session.prepared.deployment))

    by_name = {(row.what, row.device): row for row in rows}
    assert by_name[("cache", "")].real == by_name[("cache", "")].planned == 4096
    assert by_name[("kv", "ram")].relative_error == pytest.approx(0, abs=0.05)


def test_a_run_tells_its_pipeline(embedded: Recipe, run: Run) -> None:
    """Start, phases, readiness with facts, and the stop are in the journal; the recipe lies beside it."""
    with engine_session(deploy(embedded), run, patience_s=60):
        pass

    kinds = [event.kind for event in run.read_events()]
    assert kinds[0] == "attempt.started"
    assert kinds.index("attempt.ready") < kinds.index("engine.stopped")
    ready = next(event for event in run.read_events() if isinstance(event, AttemptReady))
    assert ready.facts.kv_tokens == 4096
    assert (run.path / "recipe.toml").exists()
    assert b"listening" in (run.path / "engine.log").read_bytes()


def test_two_on_one_port_are_refused_before_anything_starts(embedded: Recipe, run: Run, tmp_path: Path) -> None:
    """The second `up` names the first and leaves no trace of a process."""
    with engine_session(deploy(embedded), run, patience_s=60) as session:
        other = Run.create("second", runs=tmp_path / "runs")
        with pytest.raises(ExternalError, match=rf"port {session.recipe.listen.port} is in use by {run.id}"):
            launch_engine(prepare_launch(deploy(session.recipe)), other)
        assert "attempt.started" not in [event.kind for event in other.read_events()]
        assert not marked(other.id)


def test_two_on_one_card_are_refused_before_anything_starts(acting, run: Run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two recipes whose CUDA_VISIBLE_DEVICES overlap cannot both run, whatever their ports."""
    with engine_session(
        deploy(acting("good", env={"CUDA_VISIBLE_DEVICES": "0,1"})), run, patience_s=30, stop_signals=QUICK
    ):
        other = Run.create("second", runs=tmp_path / "runs")
        with pytest.raises(ExternalError, match="gpu 1 is in use by"):
            launch_engine(prepare_launch(deploy(acting("good", env={"CUDA_VISIBLE_DEVICES": "1,2"}))), other)
        with engine_session(
            deploy(acting("good", env={"CUDA_VISIBLE_DEVICES": "2"})), other, patience_s=30, stop_signals=QUICK
        ):
            assert len(state.list_instances()) == 2


def test_a_lease_ends_with_its_holder(acting, run: Run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """After an engine has gone, its port and cards are free again at once."""
    recipe = acting("good", env={"CUDA_VISIBLE_DEVICES": "5"})
    for name in ("first", "second"):
        with engine_session(
            deploy(recipe), Run.create(name, runs=tmp_path / "runs"), patience_s=30, stop_signals=QUICK
        ) as session:
            assert session.instance.gpus == (5,)


def test_a_stubborn_engine_is_killed_with_all_that_came_from_it(acting, run: Run) -> None:  # type: ignore[no-untyped-def]
    """SIGINT and SIGTERM are ignored, a grandchild sits in its own session: the checks ends all of them."""
    ladder = (("SIGINT", 0.3), ("SIGTERM", 0.3), ("SIGKILL", 5.0))
    with engine_session(deploy(acting("stubborn")), run, patience_s=30, stop_signals=ladder) as session:
        assert len(marked(session.instance.id)) == 3

    assert not marked(session.instance.id)
    stopped = next(event for event in run.read_events() if isinstance(event, EngineStopped))
    assert stopped.signals == ("SIGINT", "SIGTERM", "SIGKILL")
    assert (stopped.killed or 0) >= 2


def test_a_key_is_in_no_artefact_of_a_run(acting, run: Run, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """An engine that prints its own key, even in two pieces, does not get it into log, journal, state or any argv."""
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("MY_KEY", key)
    recipe = acting("leaks-key")
    recipe = Recipe(**{**_fields(recipe), "listen": type(recipe.listen)(port=recipe.listen.port, key_env="MY_KEY")})
    with engine_session(deploy(recipe), run, patience_s=30, stop_signals=QUICK) as session:
        assert session.endpoint.key == key
        assert key not in repr(session.endpoint)
        arguments = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(session.instance.id)]
        arguments.append(Path(f"/proc/{session.guard.pid}/cmdline").read_bytes())
        held = list((tmp_path / "state").rglob("*")) + list(run.path.rglob("*"))
        assert not [path for path in held if path.is_file() and key.encode() in path.read_bytes()]

    assert not any(key.encode() in words for words in arguments)
    assert not [path for path in run.path.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert (run.path / "engine.log").read_bytes().count(b"***") == 2


def test_an_engine_gets_no_key_of_another_service(
    acting: Callable[..., Recipe], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what it needs and what the recipe names; the guard, which outlives moebox, has no more than that."""
    for name in (
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "NVIDIA_API_KEY",
        "MY_PASSWORD",
        "WHATEVER",
    ):
        monkeypatch.setenv(name, "not-for-engines")
    needed = {"HF_TOKEN": "hub", "CUDA_VISIBLE_DEVICES": "", "NCCL_DEBUG": "INFO", "LC_TIME": "C", "https_proxy": "x"}
    for name, value in needed.items():
        monkeypatch.setenv(name, value)
    recipe = acting("good", env={"MY_SETTING": "7"})
    with engine_session(deploy(recipe), run, patience_s=30, stop_signals=QUICK) as session:
        pids = [session.guard.pid, *marked(session.instance.id)]
        blocks = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]

    assert len(blocks) > 1
    assert not [block for block in blocks if b"not-for-engines" in block]
    seen = dict(pair.split("=", 1) for pair in blocks[-1].decode().split("\0") if "=" in pair)
    assert {name: seen.get(name) for name in needed} == needed
    assert seen["MY_SETTING"] == "7"
    assert {"PATH", "HOME"} <= set(seen)


def test_a_key_that_is_not_there_is_reported(acting) -> None:  # type: ignore[no-untyped-def]
    """A recipe that takes its key from an unset variable is refused by name."""
    recipe = acting("good")
    recipe = Recipe(**{**_fields(recipe), "listen": type(recipe.listen)(port=1, key_env="NO_SUCH_KEY")})
    with pytest.raises(BadInput, match=r"\$NO_SUCH_KEY, which is not set"):
        prepare_launch(deploy(recipe))


def _fields(recipe: Recipe) -> dict[str, object]:
    import dataclasses

    return {field.name: getattr(recipe, field.name) for field in dataclasses.fields(recipe)}


def test_the_load_time_stands_beside_its_forecast(acting: Callable[..., Recipe], run: Run, tmp_path: Path) -> None:
    """Large weights on a local disk: its speed is measured before the start and kept with the real time."""
    folder = tiny.folder(tmp_path / "weights", KIMI)
    shard = tiny.shard(folder / "model.safetensors", {**PARTS, "w": ("U8", [600_000_000], 600_000_000)})
    with engine_session(deploy(acting("good", checkpoint=str(folder))), run, patience_s=60):
        pass

    (ready,) = [event for event in run.read_events() if isinstance(event, AttemptReady)]
    assert ready.weights_bytes == shard.stat().st_size
    assert ready.disk_rate > 0
    assert ready.load_text.startswith("600.0 MB of weights loaded and ready after ")
    assert "at the disk's " in ready.load_text
    (attempt,) = read_run(run).attempts
    assert attempt.reason == ready.load_text
