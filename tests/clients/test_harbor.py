"""A real Harbor with podman: a job written for it is done by its own agent against the scripted model, and scored."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import CONTAINERS, STORAGE
from tests.driving import environment, moebox

pytestmark = pytest.mark.engine
IMAGE = "docker.io/library/python:3.12-slim"  # which a written task builds on


@pytest.fixture(scope="module")
def podman(folders: Path) -> Iterator[None]:
    """With storage of the suite's own, and the image that `make test-clients` made from Debian's packages."""
    archive = Path(os.environ["MOEBOX_CLIENTS"]).parent / "rootfs.tar"
    for name in ("harbor", "podman", "podman-compose"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    if not archive.exists():
        pytest.skip("no image for Harbor's tasks: apt-get install debootstrap")
    (folders / "containers.conf").write_text(f'{CONTAINERS}netns = "host"\n')
    (folders / "storage.conf").write_text(STORAGE.format(home=folders))
    own = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    with environment({name: str(folders / file) for name, file in own.items()}):
        subprocess.run(["podman", "import", str(archive), IMAGE], check=True, capture_output=True)
        yield


@pytest.mark.usefixtures("podman")
def test_a_written_job_is_done_in_harbor_and_comes_back_as_the_job_it_is(server: str, tmp_path: Path) -> None:
    """Its tests give the reward; tokens are those that Harbor's agent counted; no container is left."""
    moebox("task", "--write", tmp_path / "tasks", "--family", "errand", "--jobs", "1", "--seed", "0").good()
    words = ("--harbor", tmp_path / "tasks", "--jobs", "1", "--budget", "5m", "--json")
    document = moebox("task", server, "--model", "terminus", *words).good().document
    (job,) = document["jobs"]

    assert (job["family"], job["level"], job["seed"], job["solved"]) == ("errand", "easy", 0, True)
    assert document["agent"] == "harbor"
    assert job["turns"][0]["completion_tokens"] > 0
    assert subprocess.run(["podman", "ps", "-aq"], capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.usefixtures("podman")
def test_a_job_that_is_not_done_is_not_solved(server: str, tmp_path: Path) -> None:
    """The very same task, and a model that only says so."""
    moebox("task", "--write", tmp_path / "tasks", "--family", "errand", "--jobs", "1", "--seed", "0").good()
    words = ("--harbor", tmp_path / "tasks", "--jobs", "1", "--budget", "5m", "--json")
    done = moebox("task", server, "--model", "terminus-lazy", *words)

    assert done.code == 1
    assert not done.document["jobs"][0]["solved"]
