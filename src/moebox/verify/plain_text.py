"""Text of a server made fit to be shown: one line, no control characters, no half characters."""

import unicodedata

LONGEST = 300  # characters of a reason


def one_line(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, with whatever could drive a terminal or break an encoder written as an escape."""
    flat = " ".join(text.split())
    shown = "".join(letter if _harmless(letter) else _escape(letter) for letter in flat[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _harmless(letter: str) -> bool:
    return unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or letter in "\u200d\ufe0f"


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
