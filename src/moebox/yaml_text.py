"""Plain values as YAML text in block style. Strings are quoted as JSON, which is YAML, unless they are plain words."""

import json
import re
from itertools import chain
from typing import Any

# Words that YAML 1.1 and 1.2 both read as the string they are.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?<![.])")
PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")  # JSON's way past 16 bits, which YAML does not have
WITHOUT_POINT = re.compile(r"^(-?\d+)e")
NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def dump_yaml(value: Any, *, indent: int = 0) -> str:
    """`value` (dicts, lists, strings, numbers, booleans, None) as YAML, ending in a newline."""
    return "\n".join(_lines(value, indent)) + "\n"


def dump_documents(values: list[Any]) -> str:
    """Several documents in one file."""
    return "---\n".join(map(dump_yaml, values))


def _lines(value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if not _nested(value):
        return [pad + scalar_yaml(value)]
    if isinstance(value, dict):
        return [
            *chain.from_iterable(_entry(f"{pad}{scalar_yaml(key)}:", inner, indent) for key, inner in value.items())
        ]
    return [*chain.from_iterable(_item(pad, inner, indent) for inner in value)]


def _nested(value: Any) -> bool:
    """Whether it takes lines of its own; an empty dict or list stands on its parent's."""
    return isinstance(value, dict | list | tuple) and bool(value)


def _entry(head: str, value: Any, indent: int) -> list[str]:
    if _nested(value):
        return [head, *_lines(value, indent + 2)]
    return [f"{head} {scalar_yaml(value)}"]


def _item(pad: str, value: Any, indent: int) -> list[str]:
    lines = _lines(value, indent + 2)
    return [f"{pad}- {lines[0].lstrip(' ')}", *lines[1:]]


def scalar_yaml(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, str):
        return _string(value)
    # YAML 1.1 reads 1e-05 as a word: a float has a point there.
    return WITHOUT_POINT.sub(r"\1.0e", json.dumps(value))


def _string(text: str) -> str:
    safe = PLAIN.fullmatch(text) and text.lower() not in NOT_TEXT
    return text if safe else PAIR.sub(_long, json.dumps(text, ensure_ascii=True))


def _long(pair: re.Match[str]) -> str:
    """Two surrogates as YAML's one escape."""
    point = 0x10000 + ((int(pair[1], 16) - 0xD800) << 10) + int(pair[2], 16) - 0xDC00
    return f"\\U{point:08x}"
