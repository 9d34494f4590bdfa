"""Why each flag of a launch is there, in one line: for rendered files and `plan --why`.

Tables, not code: `reasons.toml` here is by field of the recipe, the one in an engine's folder by its own flags.
"""

import dataclasses
import functools
import tomllib
from dataclasses import dataclass
from importlib import resources

from moebox import codec
from moebox.core import presets, registry
from moebox.core.deployment import Deployment
from moebox.engines import modules
from moebox.engines.arguments import canonical_name, full_flag_name
from moebox.engines.flags import Argument, FlagCatalogue, flag_catalogue, is_flag

FROM_RECIPE = "from [flags] of the recipe"
FROM_OPTIONS = "from runtime.options of the recipe"
FROM_ENVIRONMENT = "from [env] of the recipe"
TABLE = "reasons.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonTable:
    """One reasons.toml. A key of `flag` is a flag, or a flag and the value it speaks of."""

    extends: str = ""  # package whose table stands underneath
    field: dict[str, str] = dataclasses.field(default_factory=dict)
    flag: dict[str, str] = dataclasses.field(default_factory=dict)
    variable: dict[str, str] = dataclasses.field(default_factory=dict)
    container: dict[str, str] = dataclasses.field(default_factory=dict)


def flag_reason(deployment: Deployment, word: Argument) -> str:
    """Why `word` stands on the command line; "" where nobody wrote it down."""
    recipe = deployment.recipe
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    if not is_flag(word[0]):
        return _table(_package(recipe.engine)).flag.get("weights", "")
    text = _preset_reason(deployment, word, known) or _own_reason(recipe.engine, word, known)
    text = text or _field_reason(recipe.engine, word, known)
    if not text and any(_same(full_flag_name(key, known), word[0], known) for key in recipe.flags):
        return FROM_RECIPE
    return text.replace("{value}", f"{int(word[-1]):,}" if word[-1].isdecimal() else "several")


def variable_reason(deployment: Deployment, name: str) -> str:
    """Why the environment variable `name` is set."""
    for variable in presets.recipe_preset(deployment.recipe).variable:
        if variable.name == name:
            return variable.why
    if name in deployment.recipe.env:
        return FROM_ENVIRONMENT
    return _table(_package(deployment.recipe.engine)).variable.get(name, "")


def option_reason(option: str) -> str:
    """Why docker or podman is given `option`."""
    return _table("moebox.engines").container.get(option.partition("=")[0], FROM_OPTIONS)


def _preset_reason(deployment: Deployment, word: Argument, known: FlagCatalogue) -> str:
    for key, why in presets.recipe_preset(deployment.recipe).why.items():
        if _same(full_flag_name(key, known), word[0], known):
            return why
    return ""


def _own_reason(engine: str, word: Argument, known: FlagCatalogue) -> str:
    """By the engine's table: the flag with this value first, then the flag."""
    table = _table(_package(engine)).flag
    for key in (" ".join(word), word[0]):
        if key in table:
            return table[key]
    return next((why for key, why in table.items() if " " not in key and _same(key, word[0], known)), "")


def _field_reason(engine: str, word: Argument, known: FlagCatalogue) -> str:
    for flag, path in modules.argv_module(engine).READS.items():
        if _same(flag, word[0], known):
            return _table("moebox.engines").field.get(path, "")
    return ""


def _same(flag: str, other: str, known: FlagCatalogue) -> bool:
    """Whether two spellings mean one flag and turn it the same way; a dotted key is part of its flag's reason."""
    same = canonical_name(flag, known).partition(".")[0] == canonical_name(other, known).partition(".")[0]
    return same and _turns_off(flag, known) == _turns_off(other, known)


def _turns_off(flag: str, known: FlagCatalogue) -> bool:
    spec = known.find_spec(flag)
    return spec is not None and flag in spec.off


def _package(engine: str) -> str:
    return registry.find_engine(engine).package


@functools.cache
def _table(package: str) -> ReasonTable:
    """The table in `package` over the one it extends; empty where an engine of another package has none."""
    file = resources.files(package).joinpath(TABLE)
    if not file.is_file():
        return ReasonTable()
    own = codec.decode(ReasonTable, tomllib.loads(file.read_text(encoding="utf-8")), where=f"{package}/{TABLE}")
    below = _table(own.extends) if own.extends else ReasonTable()
    return dataclasses.replace(own, flag=below.flag | own.flag, variable=below.variable | own.variable)
