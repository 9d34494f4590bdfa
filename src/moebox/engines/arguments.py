"""Recipe settings to an engine's arguments, by a table of which field is which flag.

An argument is one flag with its values. Unlike the words of an argv, arguments can be distinguished: renderers put
each on a line and a shell variable in place of a value.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moebox.core import families
from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.flags import Argument, FlagCatalogue, is_flag
from moebox.errors import refuse_if
from moebox.loose import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNode:
    """Which of the nodes a launch is for; texts are variables of a scheduler."""

    rank: int | str = 0
    master: str = "127.0.0.1"  # address of rank 0
    count: int | str | None = None  # None: the recipe's
    follows: bool = False  # True on every rank but 0
    addresses: tuple[str, ...] = ()  # of all nodes by rank, if they are known


def flatten(arguments: Iterable[Argument]) -> tuple[str, ...]:
    return tuple(part for argument in arguments for part in argument)


def field_arguments(
    recipe: Recipe, fields: Mapping[str, str], known: FlagCatalogue, *, host: str = ""
) -> list[Argument]:
    """Return an argument for every field that differs from the engine's default; `host` replaces listen.host."""
    arguments: list[Argument] = []
    for flag, path in fields.items():
        value = host if host and path == "listen.host" else recipe.get(path)
        if value is True:
            arguments.append((flag,))
        elif value is False:
            spec = known.find_spec(flag)
            if path == "prefix_caching" and spec and spec.off:  # the engine's default may be on
                arguments.append((spec.off[0],))
        elif value not in (None, "", 0) and not (path.startswith("parallel.") and value == 1):
            arguments.append((flag, str(value)))
    return arguments


def hybrid_arguments(recipe: Recipe, fields: Mapping[str, str]) -> list[Argument]:
    """Return an argument for every field of [hybrid] that is set."""
    return [(flag, str(value)) for flag, path in fields.items() if (value := recipe.get(path)) is not None]


def flag_arguments(flags: Mapping[str, Flag], known: FlagCatalogue) -> list[Argument]:
    """Return the recipe's own flags as arguments; a switch is turned off by its own flag for that."""
    arguments: list[Argument] = []
    for key, value in flags.items():
        name = full_flag_name(key, known)
        spec = known.find_spec(name)
        if isinstance(value, bool):
            is_switch = spec is not None and spec.takes == 0 and not spec.dotted_key(name)
            dropped = not value and spec is not None and spec.takes != "?" and "false" not in spec.choices
            if spec is None or spec.dotted_key(name) or not (is_switch or dropped):
                arguments.append((name, str(value).lower()))
            elif is_switch:
                arguments += [(name,)] if value else [(off,) for off in spec.off[:1]]
        elif isinstance(value, list):
            if spec is not None and spec.dotted_key(name):
                arguments.append((name, json.dumps(value)))
                continue
            together = spec is not None and spec.takes in ("+", "*", 2)
            arguments += [(name, *map(str, value))] if together else [(name, str(each)) for each in value]
        else:
            arguments.append((name, str(value)))
    return arguments


def full_flag_name(key: str, known: FlagCatalogue) -> str:
    """Return the flag for a key of `[flags]`, which may omit the dashes."""
    if key.startswith("-"):
        return key
    return next((name for name in (f"--{key}", f"-{key}") if known.find_spec(name)), f"--{key}")


def canonical_name(name: str, known: FlagCatalogue) -> str:
    """Return one spelling for all of a flag's names; a dotted key stays."""
    spec = known.find_spec(name)
    if spec is None:
        return name
    key = spec.dotted_key(name)
    return f"{spec.name}.{key}" if key else spec.name


def add_recipe_flags(arguments: Sequence[Argument], flags: Mapping[str, Flag], known: FlagCatalogue) -> list[Argument]:
    """Return `arguments` with the recipe's flags: `flag = false` drops one, any other value replaces or adds one."""
    off = {canonical_name(full_flag_name(key, known), known) for key, value in flags.items() if value is False}
    kept = [each for each in arguments if not is_flag(each[0]) or canonical_name(each[0], known) not in off]
    return join_json(merge_arguments(kept, flag_arguments(flags, known), known), known)


def join_json(arguments: Sequence[Argument], known: FlagCatalogue) -> list[Argument]:
    """Return `arguments` with dotted keys made part of the same flag's JSON: of both vLLM would read the last alone."""
    joined = list(arguments)
    for argument in arguments:
        name, *values = argument
        spec = known.find_spec(name)
        key = spec.dotted_key(name) if spec else ""
        whole = [each for each in joined if spec and len(each) == 2 and canonical_name(each[0], known) == spec.name]
        if not key or len(values) != 1 or not whole or not isinstance(document := read_json(whole[0][1]), dict):
            continue
        *above, last = key.split(".")
        inner = document
        for step in above:
            inner = inner.setdefault(step, {})
            refuse_if(not isinstance(inner, dict), f"flags: {name} is below a value of {whole[0][0]}")
        inner[last] = read_json(values[0], values[0])
        joined[joined.index(whole[0])] = (whole[0][0], json.dumps(document, separators=(",", ":")))
        joined.remove(argument)
    return joined


def merge_arguments(arguments: Sequence[Argument], more: Iterable[Argument], known: FlagCatalogue) -> list[Argument]:
    """Return `arguments` with `more`; a flag that is already there is replaced in its place, the first time."""
    merged = list(arguments)
    seen: set[str] = set()
    for argument in more:
        name = canonical_name(argument[0], known)
        places = [
            place
            for place, each in enumerate(merged)
            if name not in seen and is_flag(each[0]) and canonical_name(each[0], known) == name
        ]
        if places:
            merged[places[0]] = argument
            for place in reversed(places[1:]):
                del merged[place]
        else:
            merged.append(argument)
        seen.add(name)
    return merged


def add_rank(arguments: Iterable[Argument], node: LaunchNode, recipe: Recipe) -> list[Argument]:
    """Return `arguments` for one of several nodes: all but the first serve no clients."""
    omitted = ("--nnodes", "--host", "--port") if node.follows else ("--nnodes",)
    kept = [argument for argument in arguments if argument[0] not in omitted]
    return [*kept, ("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]


def thinking_off_json(deployment: Deployment) -> str:
    """Return the template arguments that turn thinking off, as JSON; Kimi's for an unknown model."""
    family = families.find_family(deployment.known_model)
    arguments = family.thinking_off if family and family.thinking_off else {"thinking": False}
    return json.dumps(arguments, separators=(",", ":"))


def vision_arguments(deployment: Deployment, copied: Argument) -> list[Argument]:
    """Return the arguments for a vision tower; it is small, so a copy per GPU (`copied`) is faster than slicing it."""
    if not deployment.has_vision_tower:
        return []
    if not deployment.recipe.vision:
        return [("--language-model-only",)]
    return [copied] if deployment.recipe.parallel.tp > 1 else []
