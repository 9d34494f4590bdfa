"""One atomic write for every file moebox leaves behind."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from moebox import files


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path):
    """A folder that takes no new file: the reader goes on seeing what was there."""
    target = tmp_path / "state.json"
    files.write_atomic(target, "old")
    blocked = tmp_path / f".state.json.{os.getpid()}.part"
    blocked.mkdir()  # at the path of the part

    with pytest.raises(OSError, match="directory"):
        files.write_atomic(target, "new")

    assert target.read_text() == "old"


def test_a_writer_killed_in_the_middle_never_shows_half_a_file(tmp_path: Path):
    """SIGKILL while a large file is written: what stands under the name is the whole old text."""
    target = tmp_path / "big.json"
    target.write_text("old")
    program = (
        "import os, sys, pathlib\nfrom moebox import files\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), 9)\n"
        "files.write_atomic(pathlib.Path(sys.argv[1]), 'x' * 5_000_000, sync=True)"
    )

    ended = subprocess.run([sys.executable, "-c", program, str(target)], check=False)

    assert ended.returncode == -9
    assert target.read_text() == "old"


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path):
    """A launch script stays executable and a client's settings stay private under any umask."""
    before = os.umask(0o077)
    try:
        script = files.write_atomic(tmp_path / "run.sh", "true\n", mode=0o755)
        secret = files.write_atomic(tmp_path / "settings.json", "{}", mode=0o600)
    finally:
        os.umask(before)

    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_device_takes_the_text_and_stays_a_device():
    """`-o /dev/null` must not replace /dev/null by a file."""
    files.write_atomic(Path("/dev/null"), "gone")

    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", ["/dev/fd/1", "link"])
def test_standard_output_stays_what_it_is_if_it_leads_into_a_file(name: str, tmp_path: Path):
    """`-o /dev/stdout > file`: no file takes the place of the device, and what was printed before stays."""
    (tmp_path / "link").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    command = [sys.executable, "-m", "moebox", "render", "kimi-k26-vllm", "--as", "script", "-o", str(tmp_path / name)]
    with (tmp_path / "file").open("w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run(command, stdout=file, check=True)

    assert (tmp_path / "file").read_text().startswith("before\n#!/")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    assert (tmp_path / "link").is_symlink()


def test_what_a_killed_process_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Scratch folders of processes that are gone go; those of the living, and what only looks alike, stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    for name in (f"moebox-jail-{gone.pid}-abc", f"moebox-jail-{os.getpid()}-abc", "moebox-mine", "other-1-x"):
        (tmp_path / name / "inner").mkdir(parents=True)
    (tmp_path / f"moebox-pack-{gone.pid}-link").symlink_to(tmp_path / "moebox-mine")
    with files.scratch_folder("pack") as folder:
        there = {path.name for path in tmp_path.iterdir()}
        assert folder.name in there

    assert f"moebox-jail-{gone.pid}-abc" not in there
    assert {f"moebox-jail-{os.getpid()}-abc", "moebox-mine", "other-1-x"} <= there
    assert (tmp_path / "moebox-mine" / "inner").is_dir()
    assert not folder.exists()
