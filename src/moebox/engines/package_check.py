"""Whether an engine's package has what moebox needs of it: what is missing, and what is optional and left out."""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from moebox.core import catalogue, registry
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.recipe import Listen, Recipe
from moebox.core.traits import Traits
from moebox.engines import flags
from moebox.engines.engine import OPTIONAL_MEMBERS, REQUIRED_MEMBERS, Engine
from moebox.engines.rules import check_recipe
from moebox.errors import IMPORT_ERRORS, MoeboxError, UnknownName

EXAMPLE_BOX = "8x-b200"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageCheck:
    """The result of one check of a package; "note" is an optional part that it leaves at its default."""

    name: str
    verdict: Literal["pass", "fail", "note"]
    found: str
    fix: str = ""


def check_package(name: str) -> list[PackageCheck]:
    """Check the package of the engine called `name`. Raise UnknownName if no package declares it."""
    loaded = registry.load_registry()
    problem = next((line for line in loaded.problems if line.startswith(f"engine {name!r} of ")), "")
    known = loaded.engines.get(name)
    if known is None and not problem:
        raise UnknownName("engine", name, registry.engine_names())
    if problem or known is None:
        return [PackageCheck(name="traits.py", verdict="fail", found=problem)]
    checks = [PackageCheck(name="traits.py", verdict="pass", found=f"{known.package}.traits.TRAITS")]
    try:
        engine = importlib.import_module(f"{known.package}.engine").ENGINE
    except IMPORT_ERRORS as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fix = f"it needs ENGINE, an object with {', '.join(REQUIRED_MEMBERS)}"
        return [*checks, PackageCheck(name="engine.py", verdict="fail", found=found, fix=fix)]
    fixes = dict.fromkeys(REQUIRED_MEMBERS, "required; docs/engines.md has its contents")
    fixes |= dict.fromkeys(OPTIONAL_MEMBERS, "inherit from moebox.engines.engine.Engine, which has a default")
    for member, fix in fixes.items():
        if not hasattr(engine, member):
            checks.append(PackageCheck(name=member, verdict="fail", found="missing", fix=fix))
        elif member in OPTIONAL_MEMBERS and getattr(type(engine), member, None) is getattr(Engine, member):
            checks.append(PackageCheck(name=member, verdict="note", found="optional, left at its default"))
        else:
            checks.append(PackageCheck(name=member, verdict="pass", found="present"))
    if versions := flags.known_versions(name):
        checks.append(PackageCheck(name="flags", verdict="pass", found=f"tables of {', '.join(versions)}"))
    else:
        fix = f"add flags/{name}-VERSION.json to the package; scripts/dump_flags.py writes one"
        checks.append(PackageCheck(name="flags", verdict="fail", found="no table of flags", fix=fix))
    if all(check.verdict != "fail" for check in checks):
        checks.append(check_example(engine, known.traits))
    return checks


def check_example(engine: Any, traits: Traits) -> PackageCheck:
    """Check the memory and the command line of one recipe for a model that the engine reads."""
    readable = (
        (model, checkpoint)
        for model in catalogue.models().values()
        for checkpoint in catalogue.published_checkpoints(model.name)
        if checkpoint.format in traits.formats and checkpoint.supports_engine(traits.name)
    )
    found = next(readable, None)
    if found is None:
        return PackageCheck(name="example", verdict="note", found="it reads no checkpoint of the catalogue")
    model, checkpoint = found
    recipe = Recipe(
        name="example",
        engine=traits.name,
        model=model.name,
        checkpoint=checkpoint.repo or checkpoint.name,
        served_name=model.name,
        context=4096,
        kv=traits.kv[0],
        listen=Listen(port=8000),
    )
    box = Box(name=EXAMPLE_BOX, gpus=(catalogue.find_gpu("b200"),) * 8)
    deployment = Deployment(recipe, model, checkpoint, box)
    step = "memory_budget"
    try:
        engine.memory_budget(deployment)
        step = "arguments"
        check_recipe(deployment)
        step = "entry_command"
        program = engine.entry_command(recipe)[0]
    except (*IMPORT_ERRORS, MoeboxError) as error:
        text = f"{step} failed for {model.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return PackageCheck(name="example", verdict="fail", found=text)
    text = f"{model.name} on {EXAMPLE_BOX}: memory is counted, and the command line of {program} is valid"
    return PackageCheck(name="example", verdict="pass", found=text)
