"""An environment that holds a small router, and a fleet file of two simulated boxes in front of which it stands."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox.serve import state
from moebox.serve.stop import stop_instance
from moebox_fleet import up as fleet_up

PROGRAM = Path(__file__).with_name("router_program.py")


@pytest.fixture
def router_venv(tmp_path: Path) -> Callable[[str], Path]:
    """A virtual environment as far as moebox looks: bin/python that finds sglang_router in the version asked for."""

    def make(version: str) -> Path:
        folder = tmp_path / "venv"
        package = folder / "lib" / "sglang_router"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "launch_router.py").write_text(PROGRAM.read_text())
        reported = folder / "lib" / f"sglang_router-{version}.dist-info"
        reported.mkdir()
        (reported / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang-router\nVersion: {version}\n")
        python = folder / "bin" / "python"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "lib"}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return folder

    return make


@pytest.fixture
def fleet_file(tmp_path: Path, router_venv: Callable[[str], Path]) -> Callable[..., Path]:
    """A fleet of two members behind that router, on a free port."""

    def make(*, version: str = "0.3.2", members: str = "", python: str = "") -> Path:
        two = '[[member]]\nrecipe = "kimi-k26-vllm"\nbox = "8x-h200"\ncount = 2\n'
        where = python or str(router_venv(version))
        path = tmp_path / "fleet.toml"
        path.write_text(
            f'name = "pair"\n[router]\nport = 0\npolicy = "round-robin"\npython = "{where}"\n{members or two}'
        )
        return path

    return make


@pytest.fixture(autouse=True)
def nothing_left(own_folders: None) -> Iterator[None]:
    """Whatever a test started is gone after it; a test that left something fails."""
    yield
    left = [one.id for one in state.list_instances() if one.is_alive]
    strays = state.orphan_processes()
    for record in fleet_up.list_fleets():
        fleet_up.stop_fleet(record)
    for one in state.list_instances():
        stop_instance(one)
    assert not left
    assert not strays
