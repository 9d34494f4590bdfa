"""The guard's parts that can be had without an engine: what it hides, and how its log is followed."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import http
from moebox.core.symptom import Finding
from moebox.engines.engine import load_engine
from moebox.engines.events import LogEvent
from moebox.serve import facts
from moebox.serve.guard import Guard, GuardConfig, list_descendants, spawn_engine
from moebox.serve.tail import LogTail
from moebox.serve.watch import LogSummary, LogWatch
from moebox.store.log import EngineLog

SECRET = b"sk-abab-abc"


def order(**given: Any) -> GuardConfig:
    """What a guard gets."""
    return GuardConfig(**{"mark": "x", "argv": ("true",), "env": {}, "log": "log", "state_path": "life.json", **given})


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    """A guard that has not started anything."""
    folder = tmp_path_factory.mktemp("guard")
    return Guard(
        order(state_path=str(folder / "life.json"), log=str(folder / "log"), secrets=(SECRET.decode(), "other-one"))
    )


@given(before=st.binary(max_size=20), after=st.binary(max_size=20), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_secret_is_hidden_however_the_pipe_cuts_it(
    guard: Guard, before: bytes, after: bytes, cuts: list[int]
) -> None:
    """Whatever stands around it and wherever it is torn, the log never holds it; everything else is kept."""
    data = before + SECRET + after
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    shown = b"".join(guard.redact_secrets(data[a:b]) for a, b in pairwise(places)) + guard.unflushed
    guard.unflushed = b""
    assert SECRET not in shown
    assert shown == data.replace(SECRET, b"***").replace(b"other-one", b"***")


def test_a_program_that_cannot_be_executed_is_an_error_of_the_caller() -> None:
    """exec's errno comes back through the fork, and no child is left."""
    before = list_descendants()
    with pytest.raises(FileNotFoundError):
        spawn_engine(order(argv=("/no/such/program",)))
    assert list_descendants() == before


@pytest.mark.parametrize(
    "given",
    [
        {"argv": ("true", "a\0b")},
        {"argv": ("true", "\ud800")},
        {"argv": ("tr\0ue",)},
        {"argv": ("",)},
        {"env": {"A": "a\0b"}},
        {"env": {"A=B": "c"}},
        {"cwd": "a\0b"},
    ],
)
def test_what_no_program_can_be_given_is_one_too(given: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """The fork printed a traceback, and went on where its parent was."""
    before = list_descendants()
    with pytest.raises(OSError, match=r"cannot be passed on|No such file"):
        spawn_engine(order(**given))
    assert list_descendants() == before
    assert capfd.readouterr() == ("", "")


def test_a_log_that_turns_over_is_followed(tmp_path: Path) -> None:
    """What is written before and after the turn comes once and in order."""
    log = EngineLog(tmp_path / "engine.log", limit=100)
    tail = LogTail(tmp_path / "engine.log")
    assert tail.read_new() == b""
    read = b""
    for number in range(30):
        log.write(b"line %02d\n" % number)
        read += tail.read_new()
    log.close()
    read += tail.read_new()
    tail.close()
    assert read == b"".join(b"line %02d\n" % number for number in range(30))


def test_repetition_is_no_progress_and_a_new_shard_is(tmp_path: Path) -> None:
    """The same line with other numbers does not move the deadline, unless the engine's adapter reads progress in it."""
    path = tmp_path / "engine.log"
    heard: list[LogEvent | Finding] = []
    watch = LogWatch(path, "vllm", listener=heard.append)
    moved = []
    shards = [f"Loading safetensors checkpoint shards:  {n}% Completed | {n}/9" for n in (1, 1, 2)]
    for line in ("still waiting 1 s", "still waiting 2 s", *shards):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        watch.progressed = 0.0
        watch.read_new_lines()
        moved.append(watch.progressed > 0)
    assert moved == [True, False, True, False, True]
    assert watch.summary.phase_text == "loading weights (2 of 9)"


def test_facts_come_from_metrics_and_props() -> None:
    """vLLM's info metric and llama.cpp's /props, as those servers print them; anything else tells nothing."""
    line = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="180191",kv_cache_max_concurrency="2.75"} 1.0'
    assert facts.parse_cache_metrics(f"# HELP x\n{line}\n") == {"kv_tokens": 180191.0, "max_concurrency": 2.75}
    assert facts.parse_props('{"total_slots": 2, "default_generation_settings": {"n_ctx": 2048}}')["kv_tokens"] == 4096
    assert facts.parse_props("<html>") == facts.parse_props("[" * 100_000) == {}
    assert facts.parse_props('{"total_slots": 1e999, "default_generation_settings": {"n_ctx": 1}}') == {}
    assert facts.parse_cache_metrics("\x00") == {}


@given(st.text(max_size=80))
def test_any_text_of_a_server_can_be_shown(text: str) -> None:
    """An error page, half a document, nothing: one line comes of it."""
    assert len(http.error_text(text)) <= 300


def test_an_engine_with_one_worker_is_held_against_the_plan_too() -> None:
    """Lines of vLLM 0.26 on one H200 name no worker: weights and cache are the first GPU's."""
    begin = "(EngineCore pid=9) INFO 11-15 16:18:25"
    lines = (
        f"{begin} [gpu_model_runner.py:5347] Model loading took 32.76 GiB memory and 1.2 seconds",
        f"{begin} [gpu_worker.py:560] Available KV cache memory: 88.32 GiB",
    )
    seen = LogSummary()
    for line in lines:
        event = load_engine("vllm").parse_log_line(line)
        assert event is not None
        seen.facts |= event.facts

    assert facts.by_device(seen)["gpu0"]["weights_bytes"] == pytest.approx(32.76 * 2**30)
