"""Recipe settings to an engine's words and back, by a table of which field is which flag.

A word is one flag with its values. Words, unlike an argv, can still be told apart: renderers put one on a line
and a shell variable in place of a value.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moebox.core import families
from moebox.core.change import setting
from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.flags import Catalogue, Spec, Word, is_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Which of the machines this launch is for; texts are variables of a scheduler."""

    rank: int | str = 0
    master: str = "127.0.0.1"  # address of rank 0
    count: int | str | None = None  # None: what the recipe says
    follows: bool = False  # true on every rank but 0
    addresses: tuple[str, ...] = ()  # of all nodes by rank, where they are known

    @classmethod
    def of(cls, rank: int, master: str, addresses: tuple[str, ...] = ()) -> "Node":
        """The node with this number."""
        return cls(rank=rank, master=master or "127.0.0.1", follows=rank > 0, addresses=addresses)


def flatten(words: Iterable[Word]) -> tuple[str, ...]:
    """Words as an argv."""
    return tuple(part for word in words for part in word)


def field_words(recipe: Recipe, fields: Mapping[str, str], known: Catalogue, *, host: str = "") -> list[Word]:
    """A word for every field that says something else than the engine's own default; `host` stands for listen.host."""
    words: list[Word] = []
    for flag, path in fields.items():
        value = host if host and path == "listen.host" else setting(recipe, path)
        if isinstance(value, bool):
            words += _switched(flag, path, value, known.find(flag))
        elif not _unset(path, value):
            words.append((flag, str(value)))
    return words


def _unset(path: str, value: object) -> bool:
    """Whether a field leaves the engine's own default in place."""
    return value in (None, "", 0) or (path.startswith("parallel.") and value == 1)


def _switched(flag: str, path: str, value: bool, spec: Spec | None) -> list[Word]:
    """A field that is true or false; false is said only where the engine's own default may be true."""
    if value:
        return [(flag,)]
    return [(spec.off[0],)] if path == "prefix_caching" and spec and spec.off else []


def flag_words(flags: Mapping[str, Flag], known: Catalogue) -> list[Word]:
    """The recipe's own flags as words."""
    words: list[Word] = []
    for key, value in flags.items():
        name = spelled(key, known)
        words += _valued(name, value, known.find(name))
    return words


def spelled(key: str, known: Catalogue) -> str:
    """The flag meant by a key of `[flags]`, which may leave the dashes out."""
    if key.startswith("-"):
        return key
    for name in (f"--{key}", f"-{key}"):
        if known.find(name):
            return name
    return f"--{key}"


def _valued(name: str, value: Flag, spec: Spec | None) -> list[Word]:
    bare = spec is not None and spec.takes == 0 and not spec.key(name)
    if isinstance(value, bool):
        if not bare:
            return [(name, str(value).lower())]
        if value:
            return [(name,)]
        return [(spec.off[0],)] if spec and spec.off else []
    if isinstance(value, list):
        together = spec is not None and spec.takes in ("+", "*", 2)
        return [(name, *map(str, value))] if together else [(name, str(one)) for one in value]
    return [(name, str(value))]


def merge(words: Sequence[Word], more: Iterable[Word], known: Catalogue) -> list[Word]:
    """`words` with `more`: a flag that is there already is replaced where it stands, the first time it comes."""
    merged = list(words)
    seen: set[str] = set()
    for word in more:
        name = canonical(word[0], known)
        places = [place for place, old in enumerate(merged) if is_flag(old[0]) and canonical(old[0], known) == name]
        if name not in seen and places:
            merged[places[0]] = word
            for place in reversed(places[1:]):
                del merged[place]
        else:
            merged.append(word)
        seen.add(name)
    return merged


def without(words: Sequence[Word], flags: Mapping[str, Flag], known: Catalogue) -> list[Word]:
    """`words` less those that the recipe switches off by `flag = false`."""
    off = {canonical(spelled(key, known), known) for key, value in flags.items() if value is False}
    return [word for word in words if not is_flag(word[0]) or canonical(word[0], known) not in off]


def canonical(name: str, known: Catalogue) -> str:
    """One spelling for all of a flag's; a dotted key stays with it."""
    spec = known.find(name)
    if spec is None:
        return name
    key = spec.key(name)
    return f"{spec.name}.{key}" if key else spec.name


def split(argv: Sequence[str], known: Catalogue) -> list[Word]:
    """An argv as words, by how many values each flag takes; an unknown flag takes what is not a flag."""
    words: list[Word] = []
    rest = list(argv)
    while rest:
        head = rest.pop(0)
        if not is_flag(head):
            words.append((head,))
            continue
        if re.fullmatch(r"-O\d", head) and "--optimization-level" in known.specs:
            words.append(("--optimization-level", head[2:]))  # vLLM's short form
            continue
        name, given, value = head.partition("=") if head.startswith("--") else (head, "", "")
        if given:
            words.append((name, value))
            continue
        words.append((name, *_take(rest, known.find(name), name)))
    return words


def _take(rest: list[str], spec: Spec | None, name: str) -> list[str]:
    takes: int | str = "?" if spec is None else spec.takes
    if spec is not None and name in spec.off:
        takes = 0
    if spec.key(name) if spec else "." in name:
        takes = 1
    most = {"?": 1, "+": len(rest), "*": len(rest)}.get(str(takes), takes)
    taken: list[str] = []
    while rest and len(taken) < int(most) and (isinstance(takes, int) or not is_flag(rest[0])):
        taken.append(rest.pop(0))
    return taken


def number(text: str) -> Flag:
    """`text` as the number it is, or as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def thinking_off(deployment: Deployment) -> str:
    """The template's arguments that turn thinking off, as JSON."""
    return json.dumps(families.thinking_off(deployment.found_model), separators=(",", ":"))
