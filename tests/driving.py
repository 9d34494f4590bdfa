"""The command line as a person uses it, in a process of its own: for suites with real engines."""

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moebox import codec
from moebox.cli import main
from moebox.core.quirks import unexpected_failure
from moebox.core.recipe import Recipe
from moebox.core.verdict import CheckVerdict

WAIT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What it printed with --json."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def good(self) -> "Done":
        """Itself, where it ended well."""
        assert self.code == 0, f"exit code {self.code}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return self


def moebox(*words: str | Path, wait_s: float = WAIT_S) -> Done:
    """Run a command to its end."""
    argv = [sys.executable, "-m", "moebox", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=wait_s, check=False)
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


def call_main(*words: str, stdin: str = "") -> Done:
    """Run a command to its end in this process, which takes a fraction of a start of Python."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (stdin.encode(), b"", b""))
    before, sys.stdin = sys.stdin, given
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words)
    finally:
        sys.stdin = before
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Done(code=code, out=texts[0], err=texts[1])


@functools.cache
def recipe_text(*words: str) -> str:
    """The recipe that `moebox plan` writes for a box of --box: planned once for all tests that begin with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.toml")
        call_main("plan", *words, "-o", str(path)).good()
        return path.read_text(encoding="utf-8")


def written(recipe: Recipe, folder: Path) -> Path:
    """The recipe in a file."""
    path = folder / f"{recipe.name}.toml"
    path.write_text(codec.to_toml(recipe))
    return path


@contextlib.contextmanager
def up(recipe: Path, *words: str) -> Iterator[dict[str, Any]]:
    """A detached engine for the length of a `with` block: its document; nothing is left afterwards."""
    started = moebox("up", recipe, "--detach", "--json", *words).good().document
    try:
        yield started
    finally:
        moebox("down", started["id"])


def suite_folders(home: Path) -> dict[str, str]:
    """State, data and cache of a suite's own, so that its engines never show up in the user's `moebox ps`."""
    names = {"MOEBOX_RUNS": "runs", "MOEBOX_STATE": "state", "MOEBOX_CALIBRATIONS": "calibrations"}
    names |= {"XDG_STATE_HOME": "xdg-state", "XDG_DATA_HOME": "xdg-data"}
    return {name: str(home / folder) for name, folder in names.items()}


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """The process's environment with `values`, as long as the block lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def failures_without_quirk(results: dict[str, Any]) -> dict[str, str]:
    """Return the checks of `verify --json` that failed without a known quirk of their engine, and why."""
    checks = [codec.decode(CheckVerdict, check, where="verify --json") for check in results["rungs"]]
    found = {check.name: unexpected_failure(results["engine"], check) for check in checks}
    return {name: reason for name, reason in found.items() if reason}
