"""The threat model names a test for each line, and each of them is there."""

import re

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


def test_every_line_about_strangers_names_a_test():
    """Four columns, the last one filled."""
    table = PAGE.partition("## Not trusted")[2].partition("## What is not promised")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 12
    assert [row for row in rows if not row[-1].strip()] == []


def test_every_module_that_the_page_names_is_there():
    """Where the defence is."""
    folders = "core|render|store|bench|detect|verify|report|web|serve|twin|sandbox"
    for name in re.findall(
        rf"`((?:{folders})/\w+\.py|(?:escape|redact|files|codec|http|environment|site)\.py)`",
        PAGE,
    ):
        assert (ROOT / "src" / "moebox" / name).exists(), name
