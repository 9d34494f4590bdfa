"""Images with settings of their own: what they are called, which flags and variables they want, and why each."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core.catalogue import table
from moebox.core.recipe import Flag, Recipe
from moebox.data import FOLDER
from moebox.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable and the reason for it."""

    name: str
    value: str
    why: str
    set: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """An image and what it is started with."""

    image: str
    entry: str = ""
    network: str = ""  # "host" shares the machine's network instead of publishing a port
    options: tuple[str, ...] = ()  # of docker and podman
    cache: str = ""  # folder in the image that a volume keeps between starts
    source: str = ""
    flags: dict[str, Flag] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # of each flag, one line
    speculate: dict[str, str] = field(default_factory=dict)  # keys added to the speculative configuration
    variable: tuple[Variable, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that are set."""
        return {variable.name: variable.value for variable in self.variable if variable.set}


NOTHING = Preset(image="")


@functools.cache
def names() -> tuple[str, ...]:
    """Presets that there are."""
    return tuple(sorted(file.stem for file in FOLDER.glob("presets/*.toml")))


@functools.cache
def preset(name: str) -> Preset:
    """The preset called `name`."""
    if name not in names():
        raise UnknownName("runtime.preset", name, names())
    return codec.decode(Preset, table(f"presets/{name}"), where=f"presets/{name}.toml")


def of(recipe: Recipe) -> Preset:
    """The recipe's preset; one that sets nothing where it names none."""
    return preset(recipe.runtime.preset) if recipe.runtime.preset else NOTHING
