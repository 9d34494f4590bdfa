"""Documents that are true: links lead somewhere, commands exist with their options, made pages are current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from moebox.cli import COMMANDS
from moebox.cli.completion import options

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:    |\$ )(moebox [a-z][^#`|\n]*)", re.MULTILINE)
SHARED = {"--help", "--json", "--debug", "--plain", "--version"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path):
    broken = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not link.startswith("#") and not (page.parent / link.partition("#")[0]).exists()
    ]

    assert broken == []


def commands(page: Path) -> list[list[str]]:
    """Every `moebox …` line of a page, as words."""
    found = []
    for line in COMMAND.findall(page.read_text(encoding="utf-8")):
        found += [part.split() for part in line.split("&&") if part.split()[:1] == ["moebox"]]
    return found


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "reference" not in page.parts], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_shown_exists_with_its_options(page: Path):
    """A reader pastes them."""
    wrong = []
    for _, *words in commands(page):
        name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        if name not in COMMANDS and not any(each.startswith(f"{name} ") for each in COMMANDS):
            wrong.append(" ".join(words))
            continue
        if name not in COMMANDS:
            continue
        known = {*options(name), *SHARED}
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        wrong += [f"{name} {option}" for option in given if option not in known]

    assert wrong == []


@pytest.mark.parametrize("script", ["reference.py"])
def test_made_pages_are_current(script: str):
    """`python scripts/reference.py` writes it again."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], cwd=ROOT, check=False)

    assert done.returncode == 0


def test_the_readme_table_is_what_the_planner_says():
    """`python scripts/readme_table.py --write` puts it right."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import readme_table
    finally:
        sys.path.pop(0)
    text = (ROOT / "README.md").read_text(encoding="utf-8")

    assert readme_table.written(text) == text
