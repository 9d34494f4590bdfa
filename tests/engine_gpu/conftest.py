"""A GPU with an installed engine: `make test-gpu`, or one pytest command on a machine that has no network.

MOEBOX_GPU_ENGINE    vllm or sglang; whichever is installed when left out
MOEBOX_GPU_ENGINE_PYTHON   the interpreter or venv that has it; PATH when left out
MOEBOX_GPU_MODELS    a folder of model folders (config.json and tokenizer, no weights); only what needs one is skipped
"""

import dataclasses
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox import phantom
from moebox.core.recipe import Listen, Recipe, Runtime
from moebox.detect import nvml
from tests.conftest import GPUS
from tests.driving import environment, moebox, suite_folders, up, written

# SGLang takes its port + 10,000 as well, and no port above 55,535.
PORTS = range(21_000, 29_000)
FLAGS = {
    "vllm": {"enforce-eager": True, "exclude-tools-when-tool-choice-none": True},
    "sglang": {"attention-backend": "triton", "disable-cuda-graph": True},
}


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine to test, if there is a GPU for it."""
    if nvml.load_nvml() is None:
        pytest.skip("no NVIDIA driver on this machine")
    asked = os.environ.get("MOEBOX_GPU_ENGINE", "")
    python = os.environ.get("MOEBOX_GPU_ENGINE_PYTHON", "")
    there = [name for name in ("vllm", "sglang") if python or shutil.which(name)]
    if asked and asked not in there:
        pytest.skip(f"{asked} is not on PATH; MOEBOX_GPU_ENGINE_PYTHON names an interpreter that has it")
    if not there:
        pytest.skip("neither vllm nor sglang is on PATH; MOEBOX_GPU_ENGINE_PYTHON names an interpreter")
    return asked or there[0]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State, runs and calibrations of this suite's own."""
    home = tmp_path_factory.mktemp("gpu")
    with environment({**suite_folders(home), "CUDA_VISIBLE_DEVICES": GPUS or ""}):
        if GPUS is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        yield home


@pytest.fixture(autouse=True)
def own_folders(folders: Path) -> None:
    """The suite's folders instead of a test's: engines live longer than a test here."""


def recipe_for(engine: str, name: str, checkpoint: Path, **more: object) -> Recipe:
    """A recipe on one GPU that leaves memory for other programs."""
    usual = Recipe(
        name=name,
        engine=engine,  # type: ignore[arg-type]
        model=str(checkpoint),
        checkpoint=str(checkpoint),
        served_name=name,
        context=4096,
        max_seqs=16,
        memory_utilization=0.5,
        runtime=Runtime(python=os.environ.get("MOEBOX_GPU_ENGINE_PYTHON", "")),
        listen=Listen(port=random.choice(PORTS)),
        flags=dict(FLAGS[engine]),
    )
    return dataclasses.replace(usual, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def rehearsal(engine: str, folders: Path) -> Path:
    """The phantom with Kimi's parsers, as a recipe file."""
    made = recipe_for(engine, "phantom", phantom.hf_path(), tool_parser="kimi_k2", reasoning_parser="kimi_k2")
    return written(dataclasses.replace(made, model="phantom"), folders)


@pytest.fixture(scope="session")
def server(rehearsal: Path) -> Iterator[dict[str, object]]:
    """One engine with the phantom for all tests."""
    with up(rehearsal) as started:
        yield started


@pytest.fixture
def free_gpu(folders: Path) -> None:
    """No engine of this suite uses the GPU: for tests that start their own."""
    moebox("down", "--all")


@pytest.fixture(scope="session")
def cut(engine: str, folders: Path) -> Path:
    """A folder with the real shapes of Kimi in few layers: configuration and tokenizer, weights are dummies."""
    home = os.environ.get("MOEBOX_GPU_MODELS", "")
    source = Path(home) / "kimi"
    if not home or not (source / "config.json").is_file():
        pytest.skip("MOEBOX_GPU_MODELS names no folder with kimi/config.json")
    folder = folders / "kimi-4"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    return folder
