"""Documents that are true: links lead somewhere, commands exist with their options, made pages are current."""

import pkgutil
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from moebox.cli import COMMANDS
from moebox.cli.completion import command_options
from moebox.core import catalogue
from moebox.verify.options import CHECK_NAMES
from tests.sampling import one_in

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:    |\$ )(moebox [a-z][^#`|\n]*)", re.MULTILINE)
SHARED = {"--help", "--json", "--runs", "--debug", "--plain", "--version"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path):
    broken = [
        link
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not link.startswith("#") and not (page.parent / link.partition("#")[0]).exists()
    ]

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_anchor_is_a_heading(page: Path):
    """`page.md#a-heading` scrolls to it."""
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        file, mark, anchor = link.partition("#")
        target = page.parent / file if file else page
        if mark and "://" not in link and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(link)

    assert broken == []


def anchors(page: Path) -> set[str]:
    """Headings as the site's builder and GitHub name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_of_the_site_can_be_reached():
    """`make docs` builds what is in nav; a page that is not there, or links out of docs/, would be lost."""
    docs = ROOT / "docs"
    named = set(re.findall(r"^\s*- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    outside = [
        f"{page.name}: {link}"
        for page in docs.rglob("*.md")
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link.partition("#")[0]).resolve().is_relative_to(docs)
    ]

    assert named == pages
    assert outside == []


def test_every_picture_is_shown_and_they_are_small():
    """`make screenshots` takes them; a page shows each."""
    pictures = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    shown = {Path(link).name for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))}

    assert set(pictures) <= shown
    assert sum(pictures.values()) < 3_000_000


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
        known = {*command_options(name), *SHARED}
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        wrong += [f"{name} {option}" for option in given if option not in known]

    assert wrong == []


@pytest.mark.parametrize("script", ["reference.py", "what_runs_where.py"])
def test_made_pages_are_current(script: str):
    """`python scripts/SCRIPT` writes it again."""
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], cwd=ROOT, check=False)

    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("script", ["tutorial_output.py", "explain_pictures.py"])
def test_output_and_pictures_are_current(script: str):
    """`make pages` makes them again: each block of a tutorial is what its command prints."""
    words = [sys.executable, ROOT / "scripts" / script, "--check"]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("row", one_in(4, range(8)))
def test_the_readme_table_matches_the_planner(row: int, monkeypatch: pytest.MonkeyPatch):
    """`python scripts/readme_table.py --write` puts it right. Each row is a model."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import readme_table

    assert len(readme_table.MODELS) == 8
    assert readme_table.line(readme_table.MODELS[row]) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_counts_the_checks():
    """It named 20 when there were 22."""
    assert f"{len(CHECK_NAMES)} correctness checks" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_changelog_counts_the_support_matrix_once():
    """It named 327 and 358 reports."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rows = len(catalogue.load_table("support")["row"])

    assert re.findall(r"support matrix: (\d+) dated reports", text) == [str(rows)]
    assert not re.search(r"\d+ rows", "".join(line for line in text.splitlines() if "matrix" in line))


def test_every_command_named_in_a_message_exists_with_its_options():
    """Hints and help in the source name whole commands between backquotes."""
    wrong = []
    for path in (ROOT / "src" / "moebox").rglob("*.py"):
        for line in re.findall(r"`(moebox [a-z][^`{}\n]*)`", path.read_text(encoding="utf-8")):
            _, *words = line.split()
            name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
            known = {*(command_options(name) if name in COMMANDS else ()), *SHARED}
            given = [word.partition("=")[0] for word in words if word.startswith("--")]
            wrong += [f"{path.name}: {line}" for option in given if option not in known]

    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_dotted_name_of_moebox_exists(page: Path):
    """A reader imports `moebox.bench.samples.read_samples`; a name may be a group of entry points or a file too."""
    names = set(re.findall(r"(?<![\w/.-])moebox(?:_\w+)?(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8")))
    groups = entry_points().groups
    wrong = []
    for name in names - groups - {"moebox.sock", "moebox.toml"}:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            wrong.append(name)

    assert wrong == []


def test_links_of_what_runs_where_are_addresses() -> None:
    """Evidence that is no page (sources, our own boots) is named, not linked."""
    text = (ROOT / "docs" / "what-runs-where.md").read_text()
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not re.match(r"https://|[\w./#-]+$", link)] == []
