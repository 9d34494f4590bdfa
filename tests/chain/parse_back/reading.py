"""The state of parsing a command line: recipe settings found so far, and parsers that several engines share."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moebox.core import catalogue, families
from moebox.core.recipe import Flag
from moebox.engines.flags import Argument

Setting = Flag | list[int] | list[list[int]] | dict[str, str]


@dataclass(slots=True, kw_only=True)
class Reading:
    """Settings by the dotted path of the recipe's field, and what has no field."""

    settings: dict[str, Setting] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)  # of docker or podman
    mounts: dict[str, str] = field(default_factory=dict)
    in_container: bool = False
    published: bool = False  # a port was published, so the engine's own host and port are inside

    def put(self, path: str, value: Setting) -> bool:
        """Set a field. Return True, so that a parser can end with it."""
        self.settings[path] = value
        return True

    def text(self, path: str) -> str:
        """A field's text, or ""."""
        return str(self.settings.get(path, ""))

    def count(self, path: str, default: int) -> int:
        """A field's whole number, or `default`."""
        value = self.settings.get(path)
        return value if isinstance(value, int) else default

    def document(self) -> dict[str, object]:
        """Everything as a recipe's tables."""
        tables: dict[str, object] = {"env": self.env, "flags": self.flags}
        parts: dict[str, Setting] = dict(self.settings)
        if self.in_container:
            parts |= {"runtime.options": self.options, "runtime.mounts": self.mounts}
        nested: dict[str, dict[str, Setting]] = {}
        for path, value in parts.items():
            table, dot, key = path.rpartition(".")
            if dot:
                nested.setdefault(table, {})[key] = value
            else:
                tables[key] = value
        return tables | nested


ValueParser = Callable[[str, Reading], bool]  # takes a flag's value; False if it is unknown


def parse_with(
    argument: Argument,
    name: str,
    reading: Reading,
    fixed: Mapping[Argument, tuple[str, Flag]],
    parsers: Mapping[str, ValueParser],
) -> bool:
    """Parse an argument that is in `fixed` as it is, or whose flag has a parser. Return False if it is unknown."""
    setting = fixed.get((name, *argument[1:]))
    if setting is not None:
        return reading.put(*setting)
    parser = parsers.get(name)
    return parser is not None and parser(argument[-1], reading)


def set_field(path: str) -> ValueParser:
    """Return a parser that sets one field to the flag's text."""
    return lambda value, reading: reading.put(path, value)


def parse_template_arguments(value: str, reading: Reading) -> bool:
    """Parse arguments of the chat template that only turn thinking off."""
    variants = [
        {"thinking": False},
        *(family.thinking_off for family in catalogue.table_rows(families.ModelFamily, "families", "family")),
    ]
    return json_object(value) in filter(None, variants) and reading.put("thinking", False)


def skip_value(value: str, reading: Reading) -> bool:
    """Accept a flag that follows from the recipe in any case."""
    return True


def note_absent(names: set[str], reading: Reading, *flags: str) -> None:
    """Turn off flags that every launch of moebox has if the command line does not have them."""
    for flag in flags:
        if flag not in names:
            reading.flags[flag.removeprefix("--")] = False


def json_object(text: str) -> Mapping[str, object]:
    """Parse a JSON object; anything else is under the key ""."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {"": text}
    return document if isinstance(document, dict) else {"": text}
