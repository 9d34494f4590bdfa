"""Run folders from anybody, through every command that reads one: no hang, no crash, no nonsense."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.cli import main
from moebox.store import Run
from tests.hangs import no_longer_than
from tests.sampling import one_in
from tests.siege.runs import RUNS, SECRET, VALUES, elsewhere, files, good, spoil

PATIENCE_S = 900  # for all commands on one folder, on a machine with thirty others at work: a hang, not a figure
FENCED = re.compile(r"^(`{3,})\n.*?^\1$", re.MULTILINE | re.DOTALL)  # code in Markdown, where markup is text
NONSENSE = re.compile(r"(?<![\w./\"'-])-?(nan|infinity|inf)(?![\w\"'-])|\d{25,}|e\+?(30|308)\b", re.IGNORECASE)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A hang is an error of this test, not of the suite."""
    with no_longer_than(PATIENCE_S):
        yield


def commands(run: Run, out: Path, *, printed: bool) -> list[list[str]]:
    """Everything that reads a run folder; `printed` has a browser print the report's page."""
    here = str(run.path)
    return [
        ["runs", "show", here],
        ["runs", "--runs", str(run.path.parent)],
        ["report", here, "--md", "-o", str(out / "report.html")],
        ["report", here, here, "--md", "-o", str(out / "two.html")],
        ["report", here],
        ["pack", here, "-o", str(out / "pack"), "--pdf" if printed else "--no-pdf"],
        ["run", "--resume", here, "--until", "plan", "--yes"],
    ]


def judged(words: list[str], capsys: pytest.CaptureFixture[str], out: Path) -> None:
    """An exit code that means something, and texts that a person may read."""
    code = main(words)
    shown = capsys.readouterr()
    made = "".join(path.read_text(errors="replace") for path in out.glob("*.md"))
    written = made + "".join(path.read_text(errors="replace") for path in out.rglob("*") if path.is_file())
    assert code in (0, 1, 2, 3), words
    assert SECRET not in shown.out + shown.err + written, words
    assert "<script>alert" not in "".join(path.read_text() for path in out.glob("*.html"))
    assert "Traceback" not in shown.err, words
    assert shown.err.count("error:") == (code in (2, 3)), shown.err
    assert "root:" not in shown.out + shown.err + made
    assert "\x1b" not in shown.out + shown.err + made
    assert "<script>alert" not in FENCED.sub("", made)
    for line in (shown.out + made).splitlines():
        assert not NONSENSE.search(line), (words, line)


def besiege(run: Run, capsys: pytest.CaptureFixture[str], out: Path, *, printed: bool = True) -> None:
    """Every command on one folder."""
    out.mkdir()
    theirs = elsewhere(run)
    before = {path: path.read_bytes() for path in theirs.iterdir()}
    for words in commands(run, out, printed=printed):
        judged(words, capsys, out)
    assert {path: path.read_bytes() for path in theirs.iterdir()} == before, "written to through a link"


def test_there_are_enough_of_them() -> None:
    """At least twenty."""
    assert len(RUNS) >= 20


def test_a_good_folder_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the others would prove nothing."""
    run = good(tmp_path / "runs")
    besiege(run, capsys, tmp_path / "out")

    assert (tmp_path / "out" / "report.md").read_text().count("tok/s") > 1


SOME = (
    "a journal of other shapes",
    "times beyond all calendars",
    "figures that are none",
    "counts that no float holds",
    "names that move the cursor",
    "folders for files",
    "a pipe for a lock",
    "links for folders",
    "names that break lines",
    "a link for a journal",
    "a link for a report",
)


@pytest.mark.parametrize("name", one_in(3, SOME))
def test_some_hostile_folders(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each sort; the browser prints what escapes were put into."""
    run = good(tmp_path / "runs")
    RUNS[name](run)
    besiege(run, capsys, tmp_path / "out", printed=name == "names that move the cursor")


@pytest.mark.siege
@pytest.mark.parametrize("name", [name for name in RUNS if name not in SOME])
def test_every_hostile_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All the others."""
    run = good(tmp_path / "runs")
    RUNS[name](run)
    besiege(run, capsys, tmp_path / "out")


@pytest.mark.parametrize("name", ["a pipe for a log", "a link for a log"])
def test_a_log_that_is_none_is_not_printed(
    name: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Neither waited for nor followed to where it leads."""
    run = good(tmp_path / "runs")
    RUNS[name](run)
    here = str(run.path)
    for words in (["logs", here], ["logs", here, "-n", "5"], ["doctor", "logs", here]):
        assert main(words) == 2
        said = capfdbinary.readouterr()
        assert said.out == b""
        assert said.err.count(b"error:") == 1


PLACES = st.tuples(st.integers(0, 99), st.integers(0, 999), st.sampled_from(VALUES))  # file, place, value


@pytest.mark.siege
@settings(max_examples=60)
@given(
    spoilt=st.lists(PLACES, min_size=1, max_size=3),
    which=st.integers(0, 6),
)
def test_any_value_anywhere(
    spoilt: list[tuple[int, int, object]], which: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file of ours with something else in one to three places, through one of the commands."""
    folder = tmp_path_factory.mktemp("spoilt")
    run, out = good(folder / "runs"), folder / "out"
    out.mkdir()
    for file, place, value in spoilt:
        known = files(run)
        spoil(known[file % len(known)], place, value)
    assert main(commands(run, out, printed=True)[which]) in (0, 1, 2, 3)
