"""`moebox run` with names that do not exist: one line, exit code 2, and no run folder."""

from pathlib import Path

import pytest

from moebox.cli import main


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nosuch"], "unknown model 'nosuch'"),
        (["/no/such/folder"], "no such file"),
        (["--recipe", "nosuch"], "no recipe 'nosuch'"),
        (["--recipe", "nosuch.toml"], "no such file"),
        (["kimi-k2.6", "--box", "8x-nosuch"], "unknown GPU 'nosuch'"),
        (["kimi-k2.6", "--box", "8x-nosuch", "--twin"], "unknown GPU 'nosuch'"),
        (["nosuch", "--box", "8x-b200", "--twin"], "unknown model 'nosuch'"),
        (["kimi-k2.6", "--ram", "much"], "much"),
    ],
)
def test_a_name_that_does_not_exist_leaves_no_run_folder(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A typo is not a run: `moebox report latest` must still mean the run before it."""
    runs = tmp_path / "runs"
    assert main(["run", *words, "--runs", str(runs)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert says in captured.err
    assert not runs.exists() or not any(runs.iterdir())
