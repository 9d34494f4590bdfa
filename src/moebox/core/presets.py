"""Container images that need certain flags and variables, with the reason for each."""

import functools
from dataclasses import dataclass, field

from moebox import codec
from moebox.core.catalogue import load_table
from moebox.core.recipe import Flag
from moebox.data import FOLDER
from moebox.errors import require_known


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetVariable:
    name: str
    value: str
    why: str
    set: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePreset:
    image: str
    entry: str = ""
    network: str = ""  # "host" shares the machine's network instead of publishing a port
    options: tuple[str, ...] = ()  # of docker and podman
    cache: str = ""  # folder in the image that is kept in a volume between starts
    source: str = ""
    flags: dict[str, Flag] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # of each flag, one line
    speculate: dict[str, str] = field(default_factory=dict)  # keys added to the speculative configuration
    variable: tuple[PresetVariable, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        return {variable.name: variable.value for variable in self.variable if variable.set}


NO_PRESET = ImagePreset(image="")


@functools.cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in FOLDER.glob("presets/*.toml")))


@functools.cache
def load_preset(name: str) -> ImagePreset:
    """The preset of that name; one without settings for ""."""
    if not name:
        return NO_PRESET
    require_known("runtime.preset", name, preset_names())
    return codec.decode(ImagePreset, load_table(f"presets/{name}"), where=f"presets/{name}.toml")
