"""The quoting rules of each target. No text of a recipe reaches a file except through one of these functions.

A scheduler's variable (the rank of a node, the address of the first) stands between two NULs in a text. A recipe holds
no control characters, so none of its texts can be mistaken for one.
"""

import re
import shlex

PLAIN = r"[\w./:@,+=-]*"  # needs no quoting anywhere in bash
_SLOT = re.compile("\0([A-Z_]+)\0")
_UNIT = str.maketrans({"%": "%%", '"': '\\"', "\\": "\\\\"})


def variable_slot(name: str) -> str:
    """Mark a place in a text for the scheduler's variable `name`."""
    return f"\0{name}\0"


HOME = variable_slot("HOME")  # of the user who runs the file


def quote_bash(text: str) -> str:
    parts = _SLOT.split(text)  # text, name, text, name, …
    words = [f'"${part}"' if place % 2 else shlex.quote(part) for place, part in enumerate(parts) if part]
    return "".join(words) or "''"


def escape_bash(text: str) -> str:
    """Escape a text for the inside of double quotes in bash."""
    return re.sub(r'([\\"$`])', r"\\\1", str(text))


def bash_default(name: str, default: str) -> str:
    """Return a line of bash that gives `name` its default unless it has a value."""
    # bash fails on a lone quote inside "${…}", so a text that needs quoting is quoted by itself
    if re.fullmatch(PLAIN, default):
        return f'{name}="${{{name}:-{default}}}"'
    return f"{name}=${{{name}:-{quote_bash(default)}}}"


def quote_yaml(value: object) -> str:
    """Quote a value as a double-quoted scalar, with every character that does not print escaped."""

    def escape(mark: str) -> str:
        if mark in '"\\':
            return f"\\{mark}"
        if mark.isprintable():
            return mark
        return f"\\u{ord(mark):04x}" if ord(mark) < 0x10000 else f"\\U{ord(mark):08x}"

    return '"' + "".join(map(escape, str(value))) + '"'


def escape_compose(text: str) -> str:
    """Escape a text so that Compose interpolates nothing in it."""
    return text.replace("$", "$$")


def escape_kubernetes(text: str) -> str:
    """Escape a text so that the kubelet expands only the scheduler's variables: $(HF_TOKEN) would print a secret."""
    return _SLOT.sub(r"$(\1)", text.replace("$", "$$"))


def escape_unit_value(text: object) -> str:
    """Escape a text for the quotes of a unit's Environment=, where only specifiers are expanded."""
    return str(text).translate(_UNIT).replace(HOME, "%h")


def quote_unit_word(text: str) -> str:
    """Quote a text as one word of ExecStart=, without anything for systemd to expand."""
    return quote_unit(text.replace("%", "%%").replace("$", "$$"))


def quote_unit(text: str) -> str:
    """Quote a word of a unit if systemd would split or unescape it, or read its line as a comment."""
    if text and not re.search(r"[\s\"'\\;#]", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def make_slug(text: str) -> str:
    """Make a name that Kubernetes, Compose and file systems accept: a DNS label that begins with a letter."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    name = f"r-{name}" if name[:1].isdigit() else name
    return name[:63].strip("-") or "engine"
