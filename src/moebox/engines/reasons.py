"""Why each flag of a launch is there, in one line: for rendered files and `plan --why`.

Tables, not code: `reasons.toml` here is by recipe field, the one in an engine's folder by its own flags.
"""

import dataclasses
import functools
from dataclasses import dataclass

from moebox.core import presets, registry
from moebox.core.catalogue import package_table
from moebox.core.deployment import Deployment
from moebox.engines.arguments import canonical_name, full_flag_name
from moebox.engines.engine import load_engine
from moebox.engines.flags import Argument, FlagCatalogue, flag_catalogue, is_flag

FROM_RECIPE = "from [flags] of the recipe"
FROM_OPTIONS = "from runtime.options of the recipe"
FROM_ENVIRONMENT = "from [env] of the recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonTable:
    """One reasons.toml. A key of `flag` is a flag, or a flag and the value it is about."""

    extends: str = ""  # package whose table this one extends
    field: dict[str, str] = dataclasses.field(default_factory=dict)
    flag: dict[str, str] = dataclasses.field(default_factory=dict)
    variable: dict[str, str] = dataclasses.field(default_factory=dict)
    container: dict[str, str] = dataclasses.field(default_factory=dict)


def flag_reason(deployment: Deployment, argument: Argument) -> str:
    """Return why an argument is on the command line, or "" if no table has it.

    The image preset's reasons come first, then the engine's (with the value, then the flag alone), then the field's.
    """
    recipe, name = deployment.recipe, argument[0]
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    table = _engine_table(recipe.engine)
    if not is_flag(name):
        return table.flag.get("weights", "")
    preset = presets.load_preset(recipe.runtime.preset).why
    text = next((why for key, why in preset.items() if _is_same(full_flag_name(key, known), name, known)), "")
    text = text or table.flag.get(" ".join(argument), "") or table.flag.get(name, "")
    if not text:
        own = (why for key, why in table.flag.items() if " " not in key and _is_same(key, name, known))
        text = next(own, "")
    if not text:
        engine = load_engine(recipe.engine)
        fields = {**engine.fields, **engine.hybrid_fields}
        path = next((path for flag, path in fields.items() if _is_same(flag, name, known)), "")
        text = _load_table("moebox.engines").field.get(path, "")
    if not text and any(_is_same(full_flag_name(key, known), name, known) for key in recipe.flags):
        return FROM_RECIPE
    return text.replace("{value}", f"{int(argument[-1]):,}" if argument[-1].isdecimal() else "several")


def variable_reason(deployment: Deployment, name: str) -> str:
    """Return why the environment variable `name` is set."""
    for variable in presets.load_preset(deployment.recipe.runtime.preset).variable:
        if variable.name == name:
            return variable.why
    if name in deployment.recipe.env:
        return FROM_ENVIRONMENT
    return _engine_table(deployment.recipe.engine).variable.get(name, "")


def option_reason(option: str) -> str:
    """Return why docker or podman gets `option`."""
    return _load_table("moebox.engines").container.get(option.partition("=")[0], FROM_OPTIONS)


def _is_same(flag: str, other: str, known: FlagCatalogue) -> bool:
    """True if two spellings mean one flag and turn it the same way; a dotted key shares its flag's reason."""
    if canonical_name(flag, known).partition(".")[0] != canonical_name(other, known).partition(".")[0]:
        return False
    specs = ((name, known.find_spec(name)) for name in (flag, other))
    turns_off = [spec is not None and name in spec.off for name, spec in specs]
    return turns_off[0] == turns_off[1]


def _engine_table(engine: str) -> ReasonTable:
    return _load_table(registry.find_engine(engine).package)


@functools.cache
def _load_table(package: str) -> ReasonTable:
    """Load the table in `package` over the one it extends; empty if an engine of another package has none."""
    own = package_table(ReasonTable, package, "reasons")
    below = _load_table(own.extends) if own.extends else ReasonTable()
    return dataclasses.replace(own, flag=below.flag | own.flag, variable=below.variable | own.variable)
