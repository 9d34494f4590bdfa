"""Recipe settings to an engine's words and back, by a table of which field is which flag.

A word is one flag with its values. Words, unlike an argv, can still be told apart: renderers put one on a line
and a shell variable in place of a value.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moebox.core import families
from moebox.core.change import get_setting
from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.flags import Argument, FlagCatalogue, FlagSpec, is_flag


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNode:
    """Which of the machines this launch is for; texts are variables of a scheduler."""

    rank: int | str = 0
    master: str = "127.0.0.1"  # address of rank 0
    count: int | str | None = None  # None: what the recipe says
    follows: bool = False  # true on every rank but 0
    addresses: tuple[str, ...] = ()  # of all nodes by rank, where they are known

    @classmethod
    def with_rank(cls, rank: int, master: str, addresses: tuple[str, ...] = ()) -> "LaunchNode":
        """The node with this number."""
        return cls(rank=rank, master=master or "127.0.0.1", follows=rank > 0, addresses=addresses)


def flatten(words: Iterable[Argument]) -> tuple[str, ...]:
    """Words as an argv."""
    return tuple(part for word in words for part in word)


def field_arguments(
    recipe: Recipe, fields: Mapping[str, str], known: FlagCatalogue, *, host: str = ""
) -> list[Argument]:
    """A word for every field that says something else than the engine's own default; `host` stands for listen.host."""
    words: list[Argument] = []
    for flag, path in fields.items():
        value = host if host and path == "listen.host" else get_setting(recipe, path)
        if isinstance(value, bool):
            words += _switched(flag, path, value, known.find_spec(flag))
        elif not _unset(path, value):
            words.append((flag, str(value)))
    return words


def _unset(path: str, value: object) -> bool:
    """Whether a field leaves the engine's own default in place."""
    return value in (None, "", 0) or (path.startswith("parallel.") and value == 1)


def _switched(flag: str, path: str, value: bool, spec: FlagSpec | None) -> list[Argument]:
    """A field that is true or false; false is said only where the engine's own default may be true."""
    if value:
        return [(flag,)]
    return [(spec.off[0],)] if path == "prefix_caching" and spec and spec.off else []


def flag_arguments(flags: Mapping[str, Flag], known: FlagCatalogue) -> list[Argument]:
    """The recipe's own flags as words."""
    words: list[Argument] = []
    for key, value in flags.items():
        name = full_flag_name(key, known)
        words += _valued(name, value, known.find_spec(name))
    return words


def full_flag_name(key: str, known: FlagCatalogue) -> str:
    """The flag meant by a key of `[flags]`, which may leave the dashes out."""
    if key.startswith("-"):
        return key
    for name in (f"--{key}", f"-{key}"):
        if known.find_spec(name):
            return name
    return f"--{key}"


def _valued(name: str, value: Flag, spec: FlagSpec | None) -> list[Argument]:
    if isinstance(value, bool):
        return _yes_or_no(name, value, spec)
    if isinstance(value, list):
        together = spec is not None and spec.takes in ("+", "*", 2)
        return [(name, *map(str, value))] if together else [(name, str(each)) for each in value]
    return [(name, str(value))]


def _yes_or_no(name: str, value: bool, spec: FlagSpec | None) -> list[Argument]:
    """A switch of its own, with the one that turns it off; "true" or "false" where it takes a value."""
    if spec is None or spec.takes != 0 or spec.dotted_key(name):
        return [(name, str(value).lower())]
    if value:
        return [(name,)]
    return [(off,) for off in spec.off[:1]]


def merge_arguments(words: Sequence[Argument], more: Iterable[Argument], known: FlagCatalogue) -> list[Argument]:
    """`words` with `more`: a flag that is there already is replaced where it stands, the first time it comes."""
    merged = list(words)
    seen: set[str] = set()
    for word in more:
        name = canonical_name(word[0], known)
        places = [] if name in seen else _places(merged, name, known)
        if places:
            merged[places[0]] = word
            for place in reversed(places[1:]):
                del merged[place]
        else:
            merged.append(word)
        seen.add(name)
    return merged


def _places(words: Sequence[Argument], name: str, known: FlagCatalogue) -> list[int]:
    """Where a flag stands, however it is spelled."""
    return [place for place, word in enumerate(words) if is_flag(word[0]) and canonical_name(word[0], known) == name]


def drop_disabled(words: Sequence[Argument], flags: Mapping[str, Flag], known: FlagCatalogue) -> list[Argument]:
    """`words` less those that the recipe switches off by `flag = false`."""
    off = {canonical_name(full_flag_name(key, known), known) for key, value in flags.items() if value is False}
    return [word for word in words if not is_flag(word[0]) or canonical_name(word[0], known) not in off]


def canonical_name(name: str, known: FlagCatalogue) -> str:
    """One spelling for all of a flag's; a dotted key stays with it."""
    spec = known.find_spec(name)
    if spec is None:
        return name
    key = spec.dotted_key(name)
    return f"{spec.name}.{key}" if key else spec.name


def split_argv(argv: Sequence[str], known: FlagCatalogue) -> list[Argument]:
    """An argv as words, by how many values each flag takes; an unknown flag takes what is not a flag."""
    words: list[Argument] = []
    rest = list(argv)
    while rest:
        words.append(_next_word(rest, known))
    return words


def _next_word(rest: list[str], known: FlagCatalogue) -> Argument:
    head = rest.pop(0)
    if not is_flag(head):
        return (head,)
    if re.fullmatch(r"-O\d", head) and "--optimization-level" in known.specs:
        return ("--optimization-level", head[2:])  # vLLM's short form
    if head.startswith("--") and "=" in head:
        name, _, value = head.partition("=")
        return (name, value)
    return (head, *_take(rest, known.find_spec(head), head))


def _take(rest: list[str], spec: FlagSpec | None, name: str) -> list[str]:
    takes = _takes(spec, name)
    most = takes if isinstance(takes, int) else {"?": 1}.get(takes, len(rest))
    values = rest[:most]
    if not isinstance(takes, int):
        values = list(itertools.takewhile(lambda word: not is_flag(word), values))
    del rest[: len(values)]
    return values


def _takes(spec: FlagSpec | None, name: str) -> int | str:
    """How many values stand after `name`; an unknown flag takes one where there is one."""
    if spec is None:
        return 1 if "." in name else "?"
    if spec.dotted_key(name):
        return 1
    return 0 if name in spec.off else spec.takes


def parse_number(text: str) -> Flag:
    """`text` as the number it is, or as text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def thinking_off_json(deployment: Deployment) -> str:
    """The template's arguments that turn thinking off, as JSON."""
    return json.dumps(families.thinking_off_arguments(deployment.known_model), separators=(",", ":"))


def vision_arguments(deployment: Deployment, copied: Argument) -> list[Argument]:
    """What becomes of a vision tower; it is small, so a copy per GPU (`copied`) beats slicing it."""
    if not deployment.has_vision_tower:
        return []
    if not deployment.recipe.vision:
        return [("--language-model-only",)]
    return [copied] if deployment.recipe.parallel.tp > 1 else []
