"""Text of servers, models and files made fit to be shown: nothing in it drives a terminal, Markdown or an encoder.

Everything that prints or writes such text does it through here; the consoles of cli/output.py do it for all they print.
"""

import json
import re
import unicodedata

MAX_REASON_CHARS = 300  # characters of a reason
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200d\ufe0f"  # inside emoji, where they do no harm
_MARKS = re.compile(r"([\\|*_<>`\[\]~#])")
_PLAIN = re.compile(r"[\x20-\x7e]*")


def escape_invisible(text: str, *, keep: str = "\n\t") -> str:
    """`text` with every character that does not show written as its number; lines stay lines."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(letter if letter in keep or _shows(letter) else _number(letter) for letter in text)


def clip_text(text: str, max_chars: int) -> str:
    """`text`; where it is longer than that, its beginning and an ellipsis."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def one_line(text: str, max_chars: int = MAX_REASON_CHARS) -> str:
    """`text` on one line, no longer than that, and visible."""
    shown = escape_invisible(" ".join(text.split())[: max_chars + 1], keep="")
    return clip_text(shown, max_chars)


def printable_line(text: str) -> str:
    """`text` on one line, whole, and visible."""
    return escape_invisible(" ".join(text.split()), keep="")


def escape_json(text: str) -> str:
    """A JSON document that says the same without a character that does not show; \u009b is JSON, and drives nothing."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(letter if letter == "\n" or _shows(letter) else json.dumps(letter)[1:-1] for letter in text)


def escape_markdown(text: str) -> str:
    """Text that stays text in Markdown, on one line."""
    return _MARKS.sub(r"\\\1", printable_line(text))


def code_block(text: str) -> list[str]:
    """Lines of a fenced block that nothing in the text can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, escape_invisible(text.strip("\n")), fence]


def _shows(letter: str) -> bool:
    return letter in _JOINERS or unicodedata.category(letter) not in _HIDDEN


def _number(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
