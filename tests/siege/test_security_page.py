"""The threat model names a test for each line, and each of them is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.serve.rendered import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_the_page_names_is_there():
    """A line without its test would be a promise."""
    named = set(re.findall(r"`(tests/[\w/]+(?:\.py)?)`", PAGE))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    functions = set(re.findall(r"`(test_\w+)`", PAGE))
    known = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in sorted(functions) if f"def {name}(" not in known] == []


def test_every_line_of_the_tables_names_a_test():
    """Four columns, the last one with a test."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("|")]
    rows = [row for row in rows if row[-1].strip() not in ("test", "---")]
    assert len(rows) > 30
    assert [row for row in rows if "`test" not in row[-1] and not row[-1].strip().startswith("the same")] == []


def test_every_module_that_the_page_names_is_there():
    """Where the defence is."""
    folders = "core|render|store|bench|detect|verify|report|web|serve|twin|sandbox"
    for name in re.findall(
        rf"`((?:{folders})/\w+\.py|(?:escape|redact|files|codec|http|environment|site)\.py)`",
        PAGE,
    ):
        assert (ROOT / "src" / "moebox" / name).exists(), name


def test_no_command_asks_for_more_rights(tmp_path: Path):
    """Commands that look at the machine run no program that changes the user, even if one is first on PATH."""
    mark = tmp_path / "called"
    for name in ("sudo", "su", "doas", "pkexec", "setpriv"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    for words in (["ps"], ["doctor", "box"], ["box"]):
        done = subprocess.run([sys.executable, "-m", "moebox", *words], env={**os.environ, "PATH": path}, check=False)
        assert done.returncode in (0, 1)
    assert not mark.exists(), mark.read_text()
