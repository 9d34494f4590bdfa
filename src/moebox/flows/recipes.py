"""Find a recipe by name: a file, a saved or shipped recipe, or the phantom (the rehearsal model).

The phantom runs on the embedded engine, and is small enough for any machine.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from moebox.checkpoint import ResolvedModel, look_up_model, resolve_model
from moebox.core import catalogue, registry, validation
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import Climb, Listen, Recipe, Runtime
from moebox.core.setting import apply_settings, split_setting
from moebox.detect import host
from moebox.errors import BadInput, UnknownName
from moebox.flows import boxes
from moebox.flows.settings import with_setting
from moebox.phantom import gguf_path
from moebox.serve import recipes

PHANTOM = "phantom"
CONTEXT = 2048  # per slot; it was trained for 8,192, which take a CPU half a minute
SLOTS = 4
THREADS = "MOEBOX_THREADS"  # variable with the number of the phantom's threads
MOST_THREADS = 4  # so small a model does not gain from more
QUIET = 0.25  # share of the cores that other programs may use beside several threads


def is_recipe(name: str) -> bool:
    """Whether `name` means a recipe rather than a model or an endpoint."""
    if name.endswith(".toml") or Path(name).exists():
        return name.endswith(".toml")
    if name in {*recipes.shipped_recipes(), *recipes.saved_recipes(), PHANTOM}:
        return True
    from moebox.flows.recipe_list import run_recipes  # reading runs takes a third of a second to import

    return name not in catalogue.models() and name in run_recipes()


def load_recipe(name: str, settings: Sequence[str] = ()) -> Recipe:
    """Load a recipe by name or file, with the settings of --set (path=value) changed."""
    if name == PHANTOM and not Path(name).is_file() and name not in recipes.saved_recipes():
        recipe = plan_phantom(boxes.calibrated_box()).recipe
    else:
        from moebox.flows.recipe_list import run_recipes

        known = {**recipes.shipped_recipes(), **recipes.saved_recipes()}
        of_runs = {} if name in known or Path(name).exists() or name.endswith(".toml") else run_recipes()
        recipe = recipes.read_recipe(str(of_runs.get(name, name)), other_names=(PHANTOM, *of_runs))
    return change_recipe(recipe, settings)


def change_recipe(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return a recipe with settings (path=value) changed; `speculate=METHOD` takes what is known of that draft."""
    for text in settings:
        path, value = split_setting(text)
        draft = path == "speculate"
        recipe = with_setting(recipe, path, value) if draft else apply_settings(recipe, [text])
    if settings:
        validation.validate_recipe(recipe)
    return recipe


def is_phantom(name: str) -> bool:
    """Whether `name` means the phantom, and not a file or folder."""
    return name == PHANTOM and not Path(name).exists()


def phantom_model() -> ResolvedModel:
    """Return the phantom as a model with its checkpoint."""
    model, checkpoints = resolve_model(str(gguf_path()))
    model = dataclasses.replace(model, name=PHANTOM, title="Phantom, the rehearsal model")
    return ResolvedModel(model=model, checkpoints=(dataclasses.replace(checkpoints[0], native=True),))


def find_model(name: str, *, offline: bool = False) -> ResolvedModel:
    """Return the phantom, or a model by name, path or repository; a name that no table has is searched on the Hub."""
    if is_phantom(name):
        return phantom_model()
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it when it is imported
    try:
        return look_up_model(name)
    except UnknownName as problem:
        if offline or "/" in name:
            raise
        from moebox.checkpoint.remote import find_by_name

        found = find_by_name(name)
        if found is None:
            problem.hint = f"{problem.hint}; or a folder, a .gguf file, or ORG/REPO of the Hub"
            raise
        return found


def known_models() -> list[ResolvedModel]:
    """Return the models of the catalogue, and the phantom."""
    models = catalogue.models().values()
    published = [ResolvedModel(model=each, checkpoints=catalogue.published_checkpoints(each.name)) for each in models]
    return [*published, phantom_model()]


def plan_phantom(box: Box) -> Plan:
    """Plan the phantom on this machine, on the embedded engine."""
    from moebox.planner.choose import choose_plan
    from moebox.planner.constraints import Constraints

    model, checkpoints = resolve_model(str(gguf_path()))
    engine = next(traits.name for traits in registry.all_traits() if traits.embedded)
    constraints = Constraints(engine=engine, context=CONTEXT, ubatch=512, concurrency=SLOTS, threads=phantom_threads())
    found = choose_plan(dataclasses.replace(box, gpus=(), links=()), model, checkpoints, constraints)
    planned = found.recipe.hybrid
    hybrid = planned and dataclasses.replace(planned, threads_batch=planned.threads, batch=512)
    recipe = dataclasses.replace(
        found.recipe,
        name=PHANTOM,
        model=PHANTOM,
        served_name=PHANTOM,
        hybrid=hybrid,
        runtime=Runtime(kind="embedded"),
        listen=Listen(port=0),
        reasoning_parser="",
        climb=Climb(contexts=(CONTEXT,), speculate=(), settings={"hybrid.ubatch": [256]}),
    )
    return dataclasses.replace(found, recipe=recipe)


def phantom_threads() -> int:
    """A few on an idle machine, one on a busy one: llama.cpp's threads spin, and crawl without a core each.

    One core is left to the client: on two cores, two threads beside a load generator were 30 to 40 % slower than the
    same threads alone, by which every forecast was off.
    """
    given = os.environ.get(THREADS, "")
    if given:
        if not given.isdecimal() or not int(given):
            raise BadInput(f"{THREADS}: {given!r} is not a number of threads", hint="write it like 2, or unset it")
        return int(given)
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores - 1, MOST_THREADS)) if host.cpu_busy_share() < QUIET else 1
