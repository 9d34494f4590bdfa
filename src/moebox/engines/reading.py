"""A command line on its way back to a recipe: what its words have said so far."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moebox.core import families
from moebox.core.recipe import Flag
from moebox.engines.flags import Argument

Setting = Flag | list[int] | list[list[int]] | dict[str, str]
Foreign = Mapping[str, object]  # a JSON object that somebody else wrote


@dataclass(slots=True, kw_only=True)
class Reading:
    """Settings by the dotted path of the recipe's field, and what has no field."""

    settings: dict[str, Setting] = field(default_factory=dict)
    flags: dict[str, Flag] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)  # of docker or podman
    mounts: dict[str, str] = field(default_factory=dict)
    contained: bool = False
    published: bool = False  # a port was published, so the engine's own host and port are inside

    def put(self, path: str, value: Setting) -> None:
        """Set a field."""
        self.settings[path] = value

    def text(self, path: str) -> str:
        """A field's text; "" where it is not set."""
        return str(self.settings.get(path, ""))

    def count(self, path: str, otherwise: int) -> int:
        """A field's whole number; `otherwise` where it has none."""
        value = self.settings.get(path)
        return value if isinstance(value, int) else otherwise

    @property
    def document(self) -> dict[str, object]:
        """Everything as a recipe's tables."""
        tables: dict[str, object] = {"env": self.env, "flags": self.flags}
        parts: dict[str, Setting] = dict(self.settings)
        if self.contained:
            parts |= {"runtime.options": self.options, "runtime.mounts": self.mounts}
        nested: dict[str, dict[str, Setting]] = {}
        for path, value in parts.items():
            table, dot, key = path.rpartition(".")
            if dot:
                nested.setdefault(table, {})[key] = value
            else:
                tables[key] = value
        return tables | nested


Reader = Callable[[str, Reading], bool]  # takes a flag's value; False where it is nothing it knows


def taken(
    word: Argument, name: str, reading: Reading, said: Mapping[Argument, tuple[str, Flag]], by: Mapping[str, Reader]
) -> bool:
    """Read a word that stands in `said` as it is, or whose flag has a reader."""
    setting = said.get((name, *word[1:]))
    if setting is not None:
        reading.put(*setting)
        return True
    reader = by.get(name)
    return reader is not None and reader(word[-1], reading)


def template_arguments(value: str, reading: Reading) -> bool:
    """Arguments of the chat template that only turn thinking off."""
    if json_object(value) not in families.thinking_off_variants():
        return False
    reading.put("thinking", False)
    return True


def ignored(value: str, reading: Reading) -> bool:
    """A flag that follows from the recipe in any case."""
    return True


def note_absent(names: set[str], reading: Reading, *flags: str) -> None:
    """Flags that a launch of ours always carries, turned off in a recipe where the command line did without them."""
    for flag in flags:
        if flag not in names:
            reading.flags[flag.removeprefix("--")] = False


def json_object(text: str) -> Foreign:
    """A JSON object; anything else stands under the key ""."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {"": text}
    return document if isinstance(document, dict) else {"": text}
