"""Make text of servers, models and files safe to show, so that it cannot control a terminal, Markdown or an encoder.

Everything that prints or writes such text calls this module; the consoles of cli/output.py do it for all they print.
"""

import codecs
import json
import re
import unicodedata
from collections.abc import Callable
from typing import TextIO

MAX_REASON_CHARS = 300
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # Unicode categories
_JOINERS = "\u200d\ufe0f"  # used inside emoji, harmless
_MARKDOWN = re.compile(r"([\\|*_<>`\[\]~#])")
_SIMILAR = {"✓": "+", "✗": "x", "×": "x", "–": "-", "—": "-", "…": "...", "·": ".", "→": "->", "±": "+-", "≥": ">="}
_SIMILAR |= dict.fromkeys("─━═╌╴╶", "-") | dict.fromkeys("│┃║", "|") | dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰•", "+")


def escape_invisible(text: str, *, keep: str = "\n\t") -> str:
    """Replace each invisible character that is not in `keep` by its escape, such as \\u009b."""
    return _replace_invisible(text, keep, lambda c: f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}")


def escape_json(text: str) -> str:
    """Return an equal JSON document without invisible characters; "\\u009b" is valid JSON and controls nothing."""
    return _replace_invisible(text, "\n", lambda c: json.dumps(c)[1:-1])


def _replace_invisible(text: str, keep: str, escape: Callable[[str], str]) -> str:
    if text.isascii() and text.isprintable():
        return text
    others = set(text).difference(keep, _JOINERS)
    return text.translate({ord(c): escape(c) for c in others if unicodedata.category(c) in _INVISIBLE})


def spell_out_unprintable(stream: TextIO) -> None:
    """Let a stream that lacks characters, such as an ASCII terminal, print them as similar ones or escapes."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure and codecs.lookup(stream.encoding or "ascii").name != "utf-8":
        codecs.register_error("moebox", _spell_out)
        reconfigure(errors="moebox")


def _spell_out(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    text = problem.object[problem.start : problem.end]
    return "".join(_SIMILAR.get(c) or json.dumps(c)[1:-1] for c in text), problem.end


def clip_text(text: str, max_chars: int) -> str:
    """Cut `text` to `max_chars`, the last of which is an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def one_line(text: str, max_chars: int = MAX_REASON_CHARS) -> str:
    """Return `text` on one line, escaped and clipped."""
    return clip_text(escape_invisible(" ".join(text.split())[: max_chars + 1], keep=""), max_chars)


def printable_line(text: str) -> str:
    """Return the whole `text` on one line, escaped."""
    return escape_invisible(" ".join(text.split()), keep="")


def escape_markdown(text: str) -> str:
    """Return `text` on one line with Markdown's special characters escaped."""
    return _MARKDOWN.sub(r"\\\1", printable_line(text))


def code_block(text: str) -> list[str]:
    """Return the lines of a fenced block that nothing in the text can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, escape_invisible(text.strip("\n")), fence]
