"""Both llama.cpp servers, built from source by `make test-llama`, with the phantom; each as its own engine.

MOEBOX_LLAMA_BUILDS names the folder that scripts/llama-build.sh built into.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moebox import phantom
from moebox.core.recipe import EngineName, Hybrid, Listen, Recipe, Runtime
from moebox.serve.preflight import find_free_port
from tests.driving import environment, moebox, suite_folders, up, written

BUILDS: dict[EngineName, str] = {"llama.cpp": "llama", "ik_llama.cpp": "ik"}
THREADS = 1  # two threads that wait for each other by spinning are fifty times slower on a busy machine of two cores


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State, runs and calibrations of this suite's own."""
    home = tmp_path_factory.mktemp("llama")
    with environment(suite_folders(home)):
        yield home


@pytest.fixture(autouse=True)
def own_folders(folders: Path) -> None:
    """The suite's folders instead of a test's: engines live longer than a test here."""


def program(engine: EngineName) -> Path:
    """The llama-server of an engine."""
    home = os.environ.get("MOEBOX_LLAMA_BUILDS", "")
    assert home, "`make test-llama` builds both servers and names the folder in MOEBOX_LLAMA_BUILDS"
    path = Path(home) / BUILDS[engine] / "bin" / "llama-server"
    assert path.exists(), f"{path} is not there: scripts/llama-build.sh builds it"
    return path


def recipe_for(engine: EngineName, name: str, **more: Any) -> Recipe:
    """The phantom on the CPU."""
    usual = Recipe(
        name=name,
        engine=engine,
        model="phantom",
        checkpoint=str(phantom.latent_path()),
        served_name="phantom",
        context=2048,
        max_seqs=2,
        hybrid=Hybrid(threads=THREADS, gpu_layers=0),
        runtime=Runtime(entry=str(program(engine))),
        listen=Listen(port=find_free_port()),
        # Mainline of August 2026 aborts on repacked q8_0 weights of latent attention (symptom llama-repacked-…).
        flags={"repack": False} if engine == "llama.cpp" else {},
    )
    return dataclasses.replace(usual, **more)


@pytest.fixture(scope="module", params=list(BUILDS))
def engine(request: pytest.FixtureRequest) -> EngineName:
    """Each of both engines."""
    name: EngineName = request.param
    return name


@pytest.fixture(scope="module")
def recipe(engine: EngineName, folders: Path) -> Path:
    """The phantom on this engine, as a file."""
    return written(recipe_for(engine, f"phantom-{BUILDS[engine]}"), folders)


@pytest.fixture(scope="module")
def server(recipe: Path) -> Iterator[dict[str, Any]]:
    """One running engine for all tests."""
    with up(recipe) as started:
        yield started


@pytest.fixture(scope="module")
def check_results(server: dict[str, Any]) -> dict[str, Any]:
    """The results of every check, printed; slow on a busy machine."""
    results = moebox("verify", server["id"], "--effort", "quick", "--set", "time_s=40m", "--json", wait_s=3000).document
    for check in results["rungs"]:
        print(
            f"{check['verdict']:<4} {check['name']:<13} {check['seconds']:6.1f} s  {check['reason'][:160]}", flush=True
        )
    return results
