"""Texts outside ASCII, or with blanks and marks that matter, and what servers make of them when they go wrong."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import quote

TEXTS = (
    "naïve café Ünïcödé",  # Latin-1
    "e\u0301 a\u0308 n\u0303",  # combining marks
    "東京 大阪 한국어",  # CJK
    "🦜🚀 👩\u200d🔬",  # emoji, one of them joined: surrogate pairs in UTF-16
    "𝒳𝒴 𠮷",  # letters beyond the basic plane
    "привет שלום مرحبا",  # other scripts, two of them from right to left
    "“quotes” – and…",  # typographic marks, which some servers straighten
    'if  a < b && c > d:  "x"',  # marks that pages escape, and blanks that matter in code
    "well , then ! it 's ( so )",  # blanks that a tokenizer's clean-up takes away
    r'C:\new\table "q" \u00e9 {x}',  # what another round of unescaping would change
    "def f():\n    if x:\n\treturn 1\n\n# end",  # line ends, indentation, a tab
    "so:\n```python\nx = 1\n```\nend",  # a fence, which filters for JSON take away
)


# What matters to the letter in arguments and JSON: blanks at both ends, commas, quotes, marks that parsers use.
EXACT = (
    "    return a, b  # \"x\", 'y'\n",
    '<p class="x">y</p> <function=f> <parameter=p> </parameter> </function> <arg_value>'
    " ann@example.com 10.0.0.7 +1 555 0100 https://a.example/b?c=%20d",  # and what filters for secrets take away
)
# Added where every text is to have some: three and four bytes, which a tokenizer cuts in pieces, and a page's marks.
WIDE = "東🦜 <b> & c"
LAYOUT = tuple(text for text in TEXTS if "\n" in text or "  " in text)  # where a blank or a line end matters


def garbling(want: str, got: str) -> str:
    """ "" or how `got` came of `want`: a change that servers make and models do not."""
    heard = got.strip()
    if heard == want.strip():
        return ""
    for name, changed in _changes(want):
        if changed != want and changed.strip() == heard:
            return f"{want!r} came back as {heard!r}: {name}"
    return f"{want!r} came back as {heard!r}: half characters" if _halved(want, heard) else ""


def _halved(want: str, heard: str) -> bool:
    """Whether `heard` is `want` but for halves of characters: a model that says something else may stop in one."""
    at = 0
    for part in heard.split("\ufffd"):
        found = want.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return "\ufffd" in heard


def _changes(want: str) -> Iterator[tuple[str, str]]:
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield f"normalised ({form})", unicodedata.normalize(form, want)
    for name, change in _WAYS.items():
        yield name, change(want)


def _mojibake(codec: str) -> Callable[[str], str]:
    return lambda text: text.encode().decode(codec, errors="replace")


def _escaped(text: str) -> str:
    pairs = text.encode("utf-16-be")
    units = [int.from_bytes(pairs[at : at + 2]) for at in range(0, len(pairs), 2)]
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


def _unaccented(text: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter))


_ESCAPES = {"n": "\n", "t": "\t", "u00e9": "é"}
_WAYS: dict[str, Callable[[str], str]] = {
    "UTF-8 read as Latin-1": _mojibake("latin-1"),
    "UTF-8 read as Windows-1252": _mojibake("cp1252"),
    "everything outside ASCII lost": lambda text: text.encode("ascii", "ignore").decode(),
    "question marks instead": lambda text: text.encode("ascii", "replace").decode(),
    "everything outside Latin-1 lost": lambda text: text.encode("latin-1", "ignore").decode("latin-1"),
    "question marks outside Latin-1": lambda text: text.encode("latin-1", "replace").decode("latin-1"),
    "everything beyond the basic plane lost": lambda text: "".join(c for c in text if ord(c) < 0x10000),
    "JSON escapes left in the text": _escaped,
    "Python escapes left in the text": lambda text: text.encode("ascii", "backslashreplace").decode(),
    "HTML escapes left in the text": lambda text: text.encode("ascii", "xmlcharrefreplace").decode(),
    "HTML entities left in the text": html.escape,
    "percent escapes left in the text": quote,
    "accents lost": _unaccented,
    "joiners lost": lambda text: text.replace("\u200d", "").replace("\ufe0f", ""),
    "turned around": lambda text: text[::-1],
    "lower case": str.lower,
    "upper case": str.upper,
    "escapes read once more": lambda text: re.sub(r"\\(u00e9|n|t)", lambda found: _ESCAPES[found[1]], text),
    "line ends and tabs read once more": lambda text: text.replace(r"\n", "\n").replace(r"\t", "\t"),
    "backslashes lost": lambda text: text.replace("\\", ""),
    "backslashes doubled": lambda text: text.replace("\\", "\\\\"),
    "quotes escaped": lambda text: text.replace('"', '\\"'),
    "blanks run together": lambda text: re.sub(" {2,}", " ", text),
    "white space made one blank": lambda text: " ".join(text.split()),
    "line ends lost": lambda text: text.replace("\n", ""),
    "line ends changed": lambda text: text.replace("\n", "\r\n"),
    "tabs made blanks": lambda text: text.replace("\t", "    "),
    "tabs made one blank": lambda text: text.replace("\t", " "),
    "blank lines lost": lambda text: re.sub(r"\n{2,}", "\n", text),
    "fences lost": lambda text: re.sub(r"```\w*\n?", "", text),
    "indentation lost": lambda text: re.sub(r"\n[ \t]+", "\n", text),
    "blanks before marks lost": lambda text: re.sub(r" ([.,!?')])", r"\1", text),
    "blanks lost": lambda text: text.replace(" ", ""),
    "marks escaped for pages": lambda text: html.escape(text, quote=False),
    "straightened marks": lambda text: text.translate(str.maketrans("“”–…", '""-.')),
}
