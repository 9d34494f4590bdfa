"""Recipes for the two engines of these tests: llama.cpp inside Python, and the stand-in of engine.py."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox.core.model import Mla, Model, Moe
from moebox.core.recipe import Hybrid, Listen, Recipe, Runtime
from moebox.serve import preflight, state
from moebox.serve.dummy import write_gguf
from moebox.serve.stop import stop_instance
from moebox.store import Run

ENGINE = Path(__file__).with_name("engine.py")
QUICK = (("SIGINT", 2.0), ("SIGTERM", 1.0), ("SIGKILL", 5.0))
TINY = Model(
    name="tiny",
    title="Tiny",
    architecture="DeepseekV3ForCausalLM",
    hidden=64,
    layers=2,
    dense_layers=1,
    dense_intermediate=128,
    vocab=512,
    context=8192,
    mla=Mla(heads=4, q_lora=32, kv_lora=32, nope=16, rope=16, v=16),
    moe=Moe(experts=8, used=2, intermediate=64, shared=1),
)


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Kimi-like GGUF without knowledge."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, TINY)
    return path


@pytest.fixture
def embedded(gguf: Path) -> Recipe:
    """llama.cpp inside a child process of moebox, on a free port."""
    return Recipe(
        name="tiny",
        engine="llama.cpp",
        model="tiny",
        checkpoint=str(gguf),
        served_name="tiny",
        context=2048,
        max_seqs=2,
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
        hybrid=Hybrid(threads=1),
    )


@pytest.fixture
def acting(tmp_path: Path) -> Callable[..., Recipe]:
    """A recipe whose engine is engine.py in the given mode."""

    def make(mode: str, **fields: object) -> Recipe:
        entry = shlex.join([sys.executable, str(ENGINE), mode])
        recipe = Recipe(
            name=mode.rpartition("/")[2],
            engine="vllm",
            model="kimi-k2.6",
            checkpoint="moonshotai/Kimi-K2.6",
            served_name="kimi",
            runtime=Runtime(entry=entry),
            listen=Listen(port=preflight.find_free_port()),
        )
        return dataclasses.replace(recipe, **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder."""
    return Run.create("test", runs=tmp_path / "runs")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a process behind, whether it fails or not."""
    yield
    for one in state.list_instances():
        stop_instance(one)
    assert not gone_within(lambda: state.orphan_processes(), 10.0)


def gone_within(left: Callable[[], object], wait_s: float) -> object:
    """What is still left after at most `wait_s`."""
    until = time.monotonic() + wait_s
    while left() and time.monotonic() < until:
        time.sleep(0.05)
    return left()


def alive(pid: int) -> bool:
    """A process that is there and no zombie."""
    return state.process_start_tick(pid) >= 0


def marked(name: str) -> list[int]:
    """Processes that carry an instance's mark."""
    return state.marked_processes().get(name, [])
