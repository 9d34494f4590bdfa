"""Words that a line must contain for a pattern to match it: looked for first, because that is fast.

A gigabyte of log is searched for a hundred patterns; nearly all of it contains none of their words.
"""

SHORTEST = 5  # characters; shorter words are in every log
_CLASSES = "dDwWsSbBAZ"
_OPTIONAL = "?*{"


def required(pattern: str) -> tuple[str, ...]:
    """For each way the pattern can match, a word it needs; empty when one of the ways needs none."""
    words = []
    for way in ways(pattern):
        longest = max(runs(way), key=len, default="")
        if len(longest) < SHORTEST:
            return ()
        words.append(longest)
    return tuple(words)


def ways(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top level."""
    found, depth, inside, start, at = [], 0, False, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif inside:
            inside = char != "]"
        elif char == "[":
            inside = True
            at += pattern[at + 1 : at + 2] in ("]", "^")
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]


def runs(way: str) -> list[str]:
    """Stretches of plain characters outside groups and classes that every match contains."""
    found, run, depth, at = [], "", 0, 0
    while at < len(way):
        char, following = way[at], way[at + 1 : at + 2]
        plain = ""
        if char == "\\":
            at += 1
            plain = "" if following in _CLASSES or following.isdigit() else following
        elif char == "[":
            at = way.index("]", at + 2)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char not in ".^$?*+{}":
            plain = char
        elif char == "{":
            at = way.index("}", at)
        following = way[at + 1 : at + 2]
        if plain and depth == 0 and (not following or following not in _OPTIONAL):
            run += plain
        else:
            found.append(run)
            run = ""
        at += 1
    return [*found, run]
