"""Untrusted text is shown, not obeyed: by terminals, Markdown, and readers of our JSON."""

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox import escape
from moebox.cli import main
from moebox.cli.output import make_console

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\u202e\u2028[bold]x[/]\r\ud800"


def drives(text: str) -> list[str]:
    """Characters that a terminal may obey."""
    return [letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_is_shown_drives_anything(text: str):
    """Any text, half characters included: it can be encoded, and contains no control character but line breaks."""
    assert not drives(escape.printable_line(text).replace("\u200d", ""))
    assert not drives(escape.escape_invisible(text).replace("\n", "").replace("\t", "").replace("\u200d", ""))
    escape.escape_invisible(text).encode()
    assert len(escape.one_line(text)) <= escape.MAX_REASON_CHARS


@given(st.text())
def test_a_block_of_code_cannot_be_left(text: str):
    """With any number of backticks."""
    first, body, last = escape.code_block(text)
    assert first == last
    assert first not in body


def test_a_console_obeys_only_moebox():
    """Rich lets escape sequences through; ours does not, and keeps its own colours."""
    ours = make_console()
    ours.file, ours._force_terminal, ours._color_system = io.StringIO(), True, None
    ours.print(EVIL, markup=False)
    ours.print("[bold]ours[/]")
    shown = ours.file.getvalue()

    assert not drives(shown.replace("\n", "").replace("\x1b[1m", "").replace("\x1b[0m", ""))
    assert "\\u001b]0;owned" in shown


def test_an_error_shows_what_was_given_without_obeying_it(capsys: pytest.CaptureFixture[str]):
    """A name with an escape sequence in it comes back as text, in JSON too."""
    assert main(["runs", "show", "x\x1b]0;owned\x07\x9b31m"]) == 2
    assert not drives(capsys.readouterr().err.replace("\n", ""))


def test_json_is_text_for_a_terminal_too(capsys: pytest.CaptureFixture[str]):
    """What JSON leaves as it is, such as U+009B, is written as a number; the document means the same."""
    from moebox.cli.output import print_json

    text = EVIL.replace("\ud800", "") + "\U000e0041 😀"
    print_json({"text": text})
    out = capsys.readouterr().out
    assert not drives(out.replace("\n", ""))
    assert json.loads(out) == {"text": text}
