"""What hostile code leaves behind costs itself only: it is limited, removed or reported, and the next run passes."""

import dataclasses
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox import files
from moebox.phantom.question import ModelReply
from moebox.sandbox import start as sandbox
from moebox.sandbox.start import SandboxLevel, SandboxLimits
from tests.hangs import no_longer_than
from tests.sampling import one_in
from tests.siege.test_hostile_ui import without_rights
from tests.verify.oracle.app import serving
from tests.verify.oracle.faults import Fault
from tests.verify.oracle.rates import ALL

PATIENCE_S = 300  # a hang, not a figure
UNHURRIED = SandboxLimits(time_s=100, cpu_s=50, entries=600)  # so that the quota ends it on a slow disk too
NESTED = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
# What code does in its folder, and what the quota says of it ("": nothing, it ends or fails by itself).
HOSTILE_CODE = {
    "3,000 nested folders": (NESTED, "inside each other"),
    "nested folders that its owner may not read": (
        "import os, time\nos.umask(0o777 & ~0o300)\n" + NESTED + "time.sleep(5)",
        "inside each other",
    ),
    "too many files": (
        "import os, time\nfor n in range(900):\n    os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))\n",
        "files and folders|No space left",
    ),
    "too many folders side by side": ("import os\nfor n in range(900): os.mkdir(str(n))\n", "folders|No space left"),
    "many large files": (
        "import time\nfor n in range(60):\n    open(str(n), 'wb').write(bytes(2**20))\ntime.sleep(2)\n",
        "bytes|No space left",
    ),
    "odd names": (
        "import os\nfor name in (b'\\xff\\xfe', b'\\n', b' ', b'-rf', b'*', b'\\x1b[2J', '\\u202e'.encode()):\n"
        "    os.mkdir(name)\n    open(name + b'/' + name, 'w').close()\n",
        "",
    ),
    "a folder and a file without rights": (
        "import os\nos.mkdir('shut', 0)\nos.close(os.open('file', os.O_CREAT | os.O_WRONLY, 0))\n",
        "",
    ),
    "nested folders and files": (
        "import os\nfor n in range(3000):\n    os.mkdir('d')\n    open('f', 'w').close()\n    os.chdir('d')\n",
        "inside each other",
    ),
    "folders moved into each other": (
        "import os\nfor n in range(500):\n    os.mkdir('x')\n    os.rename('top', 'x/top') if n else None\n"
        "    os.rename('x', 'top')\nimport time\ntime.sleep(2)\n",
        "inside each other",
    ),
    "a link out and a pipe": (
        "import os\nfor make in (lambda: os.symlink('/etc', 'etc'), lambda: os.mkfifo('pipe')):\n"
        "    try: make()\n    except OSError: pass\n",
        "",
    ),
}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(PATIENCE_S):
        yield


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def is_healthy(level: SandboxLevel | None = None) -> bool:
    """Whether a plain function runs and is right."""
    return sandbox.run_code("def f(x): return x * x", "f", [[3]], level=level).values == (9,)


@pytest.mark.parametrize("level", ["namespaces", "landlock"])
@pytest.mark.parametrize("name", one_in(3, HOSTILE_CODE))
def test_code_that_fills_its_folder_is_stopped_and_leaves_nothing(
    name: str, level: SandboxLevel, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bytes, entries and depth are limited at both levels with files; as a program, and in the run after it."""
    source, excess = HOSTILE_CODE[name]
    for outcome in (
        sandbox.run_code(source, level=level, limits=UNHURRIED),
        sandbox.run_program({"go.py": source.encode()}, "go.py", level=level, limits=UNHURRIED),
    ):
        assert re.search(excess, outcome.error + outcome.output), outcome
        assert outcome.ok == (not excess), outcome
        assert list(temporary.iterdir()) == []
        assert is_healthy(level)
    assert "Traceback" not in capfd.readouterr().err


def nest(folder: Path, depth: int, mode: int = 0o777) -> None:
    """Make folders inside each other by descriptor: their path is longer than the kernel takes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.fchmod(here, mode)
        os.close(here)
        here = inner
    os.close(here)


def make_odd_names(folder: Path) -> None:
    """Names that no shell, terminal or decoder likes."""
    for name in (b"\xff\xfe", b"\n", b" ", b"-rf", b"*", b"\x1b[2J", "\u202e".encode(), b"n" * 255, b"..."):
        os.mkdir(os.fsencode(folder) + b"/" + name)
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name + b"/" + name)).touch()


def make_links(folder: Path) -> None:
    """Links to a folder and a file outside, to nowhere, to the folder itself, and a hard link."""
    outside = folder.parents[1] / "outside"
    for number, target in enumerate((outside, outside / "file", "/nowhere", folder, "..", "/")):
        (folder / f"link{number}").symlink_to(target)
    os.link(outside / "file", folder / "hard")
    (folder / "inner").mkdir()
    (folder / "inner" / "up").symlink_to(outside)


def make_pipes(folder: Path) -> None:
    """A FIFO, a socket and, as root, a device."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    if os.geteuid() == 0:
        os.mknod(folder / "null", 0o20666, os.makedev(1, 3))


def make_many(folder: Path) -> None:
    """Two thousand files in twenty folders."""
    for outer in range(20):
        (folder / str(outer)).mkdir()
        for inner in range(100):
            (folder / str(outer) / str(inner)).touch()


def shut(folder: Path) -> None:
    """Folders without any rights, with files in them."""
    for mode in (0o000, 0o100, 0o200, 0o400, 0o300):
        inner = folder / f"{mode:o}" / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch(mode=0)
        inner.chmod(mode)
        inner.parent.chmod(mode)


LEFTOVERS: dict[str, Callable[[Path], None]] = {
    "3,000 nested folders": lambda folder: nest(folder, 3000),
    "nested folders without rights": lambda folder: nest(folder, 1200, 0o000),
    "odd names": make_odd_names,
    "links out of the tree": make_links,
    "pipes, sockets, devices": make_pipes,
    "many files": make_many,
    "folders without rights": shut,
    "sticky and set-id bits": lambda folder: nest(folder, 50, 0o7000),
    "nothing": lambda folder: None,
}


def plant(temporary: Path, make: Callable[[Path], None]) -> Path:
    """A scratch folder of a process that is gone."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    (temporary.parent / "outside").mkdir(exist_ok=True)
    (temporary.parent / "outside" / "file").write_text("stays")
    folder = temporary / f"moebox-jail-{gone.pid}-abc"
    folder.mkdir()
    make(folder)
    return folder


@pytest.mark.parametrize("name", LEFTOVERS)
def test_leftovers_are_removed_before_the_next_run(
    name: str, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever a killed process left; nothing outside the folder is touched, and a healthy run passes."""
    folder = plant(temporary, LEFTOVERS[name])

    assert is_healthy()
    assert not folder.exists()
    assert (temporary.parent / "outside" / "file").read_text() == "stays"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", one_in(3, LEFTOVERS))
def test_leftovers_are_removed_by_a_user_whom_rights_bind(name: str, temporary: Path) -> None:
    """Root may read any folder; every other user must first make a folder readable that it owns."""
    folder = plant(temporary, LEFTOVERS[name])
    with without_rights():
        assert files.remove_tree(folder)


def test_a_folder_that_cannot_be_removed_is_one_warning(temporary: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that is immutable (chattr +i): said once in a process, and everything goes on."""
    folder = plant(temporary, lambda made: (made / "file").touch())
    (folder / "other").touch()
    if subprocess.run(["chattr", "+i", str(folder / "file")], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no immutable files, or this user may not make one")
    try:
        for _ in range(3):
            assert is_healthy()
        assert [path.name for path in folder.iterdir()] == ["file"]
        assert capfd.readouterr().err == f"warning: {folder} could not be removed; remove it by hand\n"
    finally:
        subprocess.run(["chattr", "-i", str(folder / "file")], check=True)
        files.remove_tree(folder)


def test_removal_ends_in_time_and_goes_on_later(temporary: Path) -> None:
    """No time at all: something is left, nothing raises; with time the rest goes."""
    folder = temporary / "tree"
    folder.mkdir()
    make_many(folder)

    assert not files.remove_tree(folder, within_s=0)
    assert files.remove_tree(folder)
    assert files.remove_tree(folder)  # there is none any more


def without_namespaces() -> list[str]:
    """The words that run a command where user namespaces are refused, as Ubuntu 24.04 does for most users."""
    refuse = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = ["unshare", "-Ur", "sh", "-c", refuse, "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces cannot be made here, so none can be made where they are refused")
    return words


def nesting(reply: ModelReply, body: object) -> ModelReply:
    """The right function, after code that makes 3,000 nested folders."""
    if "def " not in reply.content:
        return reply
    return dataclasses.replace(reply, content=reply.content.replace("def ", f"{NESTED}\ndef ", 1))


def test_one_reply_of_a_server_does_not_disable_the_commands_after_it(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding itself: `moebox verify` of a hostile server, then of a healthy one, without user namespaces."""
    monkeypatch.setitem(ALL, "nests-folders", Fault(check="code", reply=nesting))
    words = [*without_namespaces(), sys.executable, "-m", "moebox", "verify", "--only", "alive,code"]
    with serving() as url:
        ended = [
            subprocess.run([*words, f"{url}/{name}/v1"], capture_output=True, text=True, check=False)
            for name in ("nests-folders", "correct")
        ]
    hostile, healthy = ended

    assert hostile.returncode == 1, hostile.stderr
    assert "inside each other" in hostile.stdout + hostile.stderr
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert not any("Traceback" in done.stderr + done.stdout for done in ended)
    assert not [path for path in temporary.iterdir() if path.name.startswith("moebox-")]
