"""Text of servers, models and files made fit to be shown: nothing in it drives a terminal, Markdown or an encoder.

Everything that prints or writes such text does it through here; the consoles of cli/output.py do it for all they print.
"""

import json
import re
import unicodedata

LONGEST = 300  # characters of a reason
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_JOINERS = "\u200d\ufe0f"  # inside emoji, where they do no harm
_MARKS = re.compile(r"([\\|*_<>`\[\]~#])")
_PLAIN = re.compile(r"[\x20-\x7e]*")


def visible(text: str, *, keep: str = "\n\t") -> str:
    """`text` with every character that does not show written as its number; lines stay lines."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(letter if letter in keep or _shows(letter) else _number(letter) for letter in text)


def clipped(text: str, longest: int) -> str:
    """`text`; where it is longer than that, its beginning and an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def one_line(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, no longer than that, and visible."""
    shown = visible(" ".join(text.split())[: longest + 1], keep="")
    return clipped(shown, longest)


def printable(text: str) -> str:
    """`text` on one line, whole, and visible."""
    return visible(" ".join(text.split()), keep="")


def json_text(text: str) -> str:
    """A JSON document that says the same without a character that does not show; \u009b is JSON, and drives nothing."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(letter if letter == "\n" or _shows(letter) else json.dumps(letter)[1:-1] for letter in text)


def markdown(text: str) -> str:
    """Text that stays text in Markdown, on one line."""
    return _MARKS.sub(r"\\\1", printable(text))


def code_block(text: str) -> list[str]:
    """Lines of a fenced block that nothing in the text can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, visible(text.strip("\n")), fence]


def _shows(letter: str) -> bool:
    return letter in _JOINERS or unicodedata.category(letter) not in _HIDDEN


def _number(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
