"""Run folders may be untrusted: links, pipes and devices in them are refused, and nothing hangs."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moebox.checkpoint import resolve_model
from moebox.codec import read_text
from moebox.errors import BadInput
from moebox.report.files import make_page, render_markdown
from moebox.runs.listing import list_summaries
from moebox.store import Run, plain

NAMES = ["run.json", "events.jsonl", "recipe.toml", "story.json", "measurements/x.json", "verdicts/x.json", "launch.sh"]


def link(path: Path) -> None:
    """To a file that everybody may read."""
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [link, os.mkfifo])
@pytest.mark.parametrize("name", NAMES)
def test_a_report_of_a_hostile_folder_shows_nothing_from_elsewhere(
    name: str, make: Callable[[Path], None], tmp_path: Path
):
    """Whatever file of the run is a link or a pipe: the report is made, at once, without its content."""
    run = Run.create("shared", runs=tmp_path)
    run.write_file("measurements/random-c1.json", '{"completed": 1, "output_throughput": 5.0, "max_concurrency": 1}')
    path = run.path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    make(path)
    run.release_lock()

    assert "root:" not in render_markdown(make_page([run]))
    assert [row.id for row in list_summaries(tmp_path)] == [run.id]


def test_only_plain_files_are_read(tmp_path: Path):
    """Each with its own line."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    (tmp_path / "large.json").write_bytes(bytes(20))
    for name, message in (("pipe.json", "not a plain file"), ("link.json", "is a link")):
        with pytest.raises(BadInput, match=message):
            plain.read_bytes(tmp_path / name)
    with pytest.raises(BadInput, match="more than moebox writes"):
        plain.read_bytes(tmp_path / "large.json", max_bytes=10)
    with pytest.raises(BadInput, match="is a pipe"):
        read_text(tmp_path / "pipe.json")


def test_a_pipe_for_a_model_is_refused_at_once(tmp_path: Path):
    """The page plans in a few threads; one that waits for a pipe for good would take them all."""
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(BadInput, match="is a pipe"):
        resolve_model(str(tmp_path / "model.gguf"))
