"""Words that a line must contain for a pattern to match it: looked for first, because that is fast.

A gigabyte of log is searched for a hundred patterns; nearly all of it contains none of their words.
"""

import re

MIN_WORD_CHARS = 5  # characters; shorter words are in every log
_PART = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\{[^}]*\}|.", re.DOTALL)  # an escape, a class, a count, or one character
_DEPTH = {"(": 1, ")": -1}
_SPECIAL = (".", "^", "$", "?", "*", "+", "(", ")", "[", "{", "}")
_OPTIONAL = ("?", "*", "{")  # what stands before one of these need not be there
_CLASSES = "dDwWsSbBAZ"


def required_words(pattern: str) -> tuple[str, ...]:
    """For each way the pattern can match, a word it needs; empty when one of the ways needs none."""
    words = []
    for way in alternatives(pattern):
        longest = max(literal_runs(way), key=len, default="")
        if len(longest) < MIN_WORD_CHARS:
            return ()
        words.append(longest)
    return tuple(words)


def alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top level."""
    found, depth = [""], 0
    for part in _PART.findall(pattern):
        depth += _DEPTH.get(part, 0)
        if part == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += part
    return found


def literal_runs(way: str) -> list[str]:
    """Stretches of plain characters outside groups and classes that every match contains."""
    found, depth, tokens = [""], 0, _PART.findall(way)
    for part, following in zip(tokens, [*tokens[1:], ""], strict=True):
        depth += _DEPTH.get(part, 0)
        plain = _plain(part)
        if plain and depth == 0 and not following.startswith(_OPTIONAL):
            found[-1] += plain
        else:
            found.append("")
    return found


def _plain(part: str) -> str:
    """The character that a part stands for; "" where that may be another, or none."""
    if part.startswith("\\"):
        return "" if part[1] in _CLASSES or part[1].isdigit() else part[1]
    return "" if part.startswith(_SPECIAL) else part
