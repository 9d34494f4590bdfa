"""Each target's own rules of quoting. Nothing of a recipe reaches a file but through one of these.

A scheduler's variable (the rank of a node, the address of the first) stands in a text between two NULs. A recipe holds
no control characters, so none can be taken for one.
"""

import re
import shlex

PLAIN = r"[\w./:@,+=-]*"  # needs no quoting anywhere in bash
_SLOT = re.compile("\0([A-Z_]+)\0")
_UNIT = str.maketrans({"%": "%%", '"': '\\"', "\\": "\\\\"})


def variable_slot(name: str) -> str:
    """A place in a text where the scheduler's variable `name` goes."""
    return f"\0{name}\0"


def quote_bash(text: str) -> str:
    """One word of bash."""
    parts = _SLOT.split(text)  # text, name, text, name, …
    words = [f'"${part}"' if place % 2 else shlex.quote(part) for place, part in enumerate(parts) if part]
    return "".join(words) or "''"


def escape_bash(text: str) -> str:
    """`text` so that bash takes it as it is between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", str(text))


def bash_default(name: str, default: str) -> str:
    """A line of bash that gives `name` its default unless it has a value."""
    # bash trips over a lone quote inside "${…}", so a text that needs quoting brings its own
    if re.fullmatch(PLAIN, default):
        return f'{name}="${{{name}:-{default}}}"'
    return f"{name}=${{{name}:-{shlex.quote(default)}}}"


def quote_yaml(value: object) -> str:
    """A double-quoted scalar: every character that does not show is escaped, so that no parser breaks a line at it."""
    return '"' + "".join(map(_shown, str(value))) + '"'


def _shown(mark: str) -> str:
    if mark in '"\\':
        return f"\\{mark}"
    if mark.isprintable():
        return mark
    return f"\\u{ord(mark):04x}" if ord(mark) < 0x10000 else f"\\U{ord(mark):08x}"


def escape_compose(text: str) -> str:
    """A text in which Compose interpolates nothing."""
    return text.replace("$", "$$")


def escape_kubernetes(text: str) -> str:
    """A text in which the kubelet expands nothing but the scheduler's variables: $(HF_TOKEN) would print a secret."""
    return _SLOT.sub(r"$(\1)", text.replace("$", "$$"))


def escape_unit_value(text: object) -> str:
    """Between the quotes of a unit's Environment=, where only specifiers are expanded."""
    return str(text).translate(_UNIT)


def escape_unit_text(text: object) -> str:
    """In a Description=, which ends with its line."""
    return str(text).replace("\\", "\\\\").replace("%", "%%")


def quote_unit_word(text: str) -> str:
    """A word of ExecStart=, always one word; `${NAME}` of our own is put in afterwards."""
    return quote_unit(text.replace("%", "%%").replace("$", "$$"))


def quote_unit(text: str) -> str:
    """Quoted where systemd would split or unescape it, or take its line for a comment."""
    if text and not re.search(r"[\s\"'\\;#]", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def make_slug(text: str) -> str:
    """A name that Kubernetes, Compose and file systems take: a DNS label that begins with a letter."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    name = f"r-{name}" if name[:1].isdigit() else name
    return name[:63].strip("-") or "engine"
