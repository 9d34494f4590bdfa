"""Files that are asked for are tried before the work whose result they are to hold."""

from pathlib import Path

import pytest

from moebox.cli import main


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "http://127.0.0.1:9/v1", "--model", "m", "--junit"),
        ("climb", "phantom", "-o"),
    ],
)
def test_a_folder_is_no_place_for_a_file(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify --junit FOLDER` made every check and lost them; nothing is asked now, and no run is left behind."""
    assert main([*words, str(tmp_path)]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert f"{tmp_path}: cannot be written: Is a directory" in reported.err
    assert main(["runs", "--json"]) == 0
    assert "verify" not in capsys.readouterr().out
