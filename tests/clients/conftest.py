"""The programs that `make test-clients` installed, folders of the suite's own, and a home that must not change."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driving import environment, suite_folders
from tests.tasks.conftest import server

__all__ = ["server"]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a user who has settings."""
    home = tmp_path_factory.mktemp("home")
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text('{"model": "of-the-user"}')
    (home / ".config" / "opencode").mkdir(parents=True)
    (home / ".config" / "opencode" / "opencode.json").write_text('{"model": "of/the-user"}')
    return home


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Path]:
    """State, runs and programs of this suite's own."""
    programs = os.environ.get("MOEBOX_CLIENTS", "")
    assert programs, "`make test-clients` installs the clients and names their folder in MOEBOX_CLIENTS"
    place = tmp_path_factory.mktemp("clients")
    own = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "SECRET_OF_MINE": "a-secret-key"}
    with environment(suite_folders(place) | own):
        yield place


@pytest.fixture(autouse=True)
def own_folders(folders: Path) -> None:
    """The suite's folders instead of a test's."""
