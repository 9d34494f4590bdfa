"""Recipes and fleets that are no settings files at all: one line and exit code 2 from every command."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moebox.cli import main
from tests.hangs import no_longer_than
from tests.sampling import one_in

FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a folder": Path.mkdir,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "brackets": lambda path: path.write_text("a = " + "[" * 100_000),
    "tables in tables": lambda path: path.write_text("a = " + "{b = " * 100_000),
    "a key of a million parts": lambda path: path.write_text("a" + ".a" * 1_000_000 + " = 1"),
    "a spaced key of many parts": lambda path: path.write_text("a" + " . 'a'" * 100_000 + " = 1"),
    "a table of many parts": lambda path: path.write_text("[a" + ".a" * 100_000 + "]"),
    "a number of many digits": lambda path: path.write_text("max_seqs = " + "9" * 100_000),
    "a date that is none": lambda path: path.write_text("name = 9999-99-99T99:99:99Z"),
    "half a file": lambda path: path.write_text('name = "x"\nengine = "vll'),
    "a list of everything": lambda path: path.write_text("name = [1, 'a', {}, []]\nengine = {}\n"),
    "not a number": lambda path: path.write_text('name = "x"\nengine = "vllm"\nmemory_utilization = nan\n'),
}
COMMANDS = (
    ("up", "--dry-run"),
    ("render",),
    ("forecast",),
    ("climb",),
    ("rehearse",),
    ("run", "--yes", "--until", "plan", "--recipe"),
    ("fleet", "render"),
    ("fleet", "up"),
    ("compare", "phantom"),
)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(600):
        yield


@pytest.mark.parametrize("name", one_in(2, FILES))
def test_a_file_that_is_none_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every command that takes one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.toml"
    FILES[name](path)
    for command in COMMANDS:
        assert main([*command, str(path)]) == 2, command
        said = capsys.readouterr()
        assert said.err.count("error:") == 1, (command, said.err)
        assert "Traceback" not in said.err, command
        assert len(said.err) < 2000, command
