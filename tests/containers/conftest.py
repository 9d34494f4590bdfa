"""podman with an image made from files of this machine: the real llama-server, its libraries, and nothing else.

`make test-containers` builds the server first and names the folder in MOEBOX_LLAMA_BUILDS. Storage and settings are
the suite's own; nothing is pulled from a registry.
"""

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moebox import phantom
from moebox.core.recipe import EngineName, Hybrid, Listen, Recipe, Runtime
from moebox.serve.preflight import find_free_port
from tests.driving import environment, suite_folders

IMAGE = "localhost/moebox-suite/llama.cpp:local"
CONTAINERS = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""
STORAGE = """[storage]
driver = "vfs"
graphroot = "{home}/storage"
runroot = "{home}/run"
"""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """State, runs and podman's storage of this suite's own."""
    home = tmp_path_factory.mktemp("containers")
    (home / "containers.conf").write_text(CONTAINERS)
    (home / "storage.conf").write_text(STORAGE.format(home=home))
    own = {"CONTAINERS_CONF": str(home / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(home / "storage.conf")}
    with environment(suite_folders(home) | own):
        yield home


@pytest.fixture(autouse=True)
def own_folders(folders: Path) -> None:
    """The suite's folders instead of a test's."""


@pytest.fixture(scope="session")
def engine() -> EngineName:
    """Whichever of the two servers is built, mainline first."""
    there: list[EngineName] = [name for name in ("llama.cpp", "ik_llama.cpp") if built(name).exists()]
    assert there, "`make test-containers` builds llama-server and names the folder in MOEBOX_LLAMA_BUILDS"
    return there[0]


def built(engine: EngineName) -> Path:
    """Where an engine's server is, once it is built."""
    folder = {"llama.cpp": "llama", "ik_llama.cpp": "ik"}[engine]
    return Path(os.environ.get("MOEBOX_LLAMA_BUILDS", "")) / folder / "bin" / "llama-server"


@pytest.fixture(scope="session")
def image(folders: Path, engine: EngineName) -> str:
    """An image from scratch: the server where the official image has it, the libraries it is linked to, a shell."""
    assert shutil.which("podman"), "podman is not installed: apt-get install podman runc"
    root, server = folders / "rootfs", built(engine)
    for place in ("app", "tmp", "root", "bin"):
        (root / place).mkdir(parents=True, exist_ok=True)
    shutil.copy2(server, root / "app" / "llama-server")
    for library in linked(server):
        inside = root / str(library).lstrip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), inside)
    archive = folders / "rootfs.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(archive), "."], check=True)
    entry = 'ENTRYPOINT ["/app/llama-server"]'
    done = subprocess.run(
        ["podman", "import", "--change", entry, str(archive), IMAGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    archive.unlink()
    return IMAGE


def linked(program: Path) -> list[Path]:
    """Shared libraries of a program, its loader included."""
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return sorted({Path(word) for word in re.findall(r"(/\S+)", done)})


@pytest.fixture
def recipe(image: str, engine: EngineName) -> Recipe:
    """The phantom in a container, without GPUs, on the machine's own network."""
    return Recipe(
        name="contained",
        engine=engine,
        model="phantom",
        checkpoint=str(phantom.gguf_path()),
        served_name="phantom",
        context=4096,
        max_seqs=2,
        hybrid=Hybrid(threads=1, gpu_layers=0),
        runtime=Runtime(kind="podman", image=image, options=("--network=host",)),
        listen=Listen(port=find_free_port()),
        flags={"repack": False} if engine == "llama.cpp" else {},
    )


def containers() -> list[str]:
    """Names of the containers there are, running or not."""
    done = subprocess.run(
        ["podman", "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def with_port(recipe: Recipe) -> Recipe:
    """The same on another port."""
    return dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=find_free_port()))
