"""Recipes by name (files, saved and shipped ones, those of runs, the phantom), and the box that each is planned for."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moebox import codec, detect, engines, files
from moebox.checkpoint import ResolvedModel, deploy, look_up_model, resolve_model
from moebox.core import catalogue, registry, validation
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.plan import Plan
from moebox.core.recipe import Climb, PlannedFor, Recipe, Runtime
from moebox.core.setting import apply_settings, split_setting
from moebox.data import FOLDER
from moebox.detect import declared
from moebox.errors import BadInput, UnknownName, prefix_errors, refuse_if, suggest_names, suggest_path
from moebox.phantom import gguf_path
from moebox.planner.candidates import recipe_draft
from moebox.planner.fit import Misfit, find_misfit
from moebox.store import calibrations
from moebox.units import format_count

if TYPE_CHECKING:
    from moebox.runs.listing import RunSummary

PHANTOM = "phantom"
CONTEXT = 2048  # per slot; it was trained for 8,192, which take a CPU half a minute
SLOTS = 4
THREADS = "MOEBOX_THREADS"  # variable with the number of the phantom's threads
MOST_THREADS = 4  # so small a model does not gain from more
QUIET = 0.25  # share of the cores that other programs may use beside several threads
RecipeSource = Literal["saved", "run", "shipped"]


def shipped_recipes() -> dict[str, Path]:
    """Recipes that come with moebox, by name."""
    return {path.stem: path for path in FOLDER.glob("recipes/*.toml")}


def saved_recipes_dir() -> Path:
    """The folder in which the local page saves recipes."""
    return files.xdg_home("data") / "moebox" / "recipes"


def saved_recipes() -> dict[str, Path]:
    return {path.stem: path for path in sorted(saved_recipes_dir().glob("*.toml"))}


def run_recipes(runs: Path | None = None) -> dict[str, Path]:
    """Return the recipes of runs by name: of the newest run, and the best verified one if it climbed."""
    from moebox.runs.listing import list_summaries  # reading runs takes a third of a second to import
    from moebox.store import runs_dir

    found: dict[str, Path] = {}
    for row in list_summaries(runs):
        if row.recipe and row.recipe not in found:
            best = runs_dir(runs) / row.id / "best.toml"
            found[row.recipe] = best if best.is_file() else best.with_name("recipe.toml")
    return found


def is_recipe(name: str) -> bool:
    """Whether `name` means a recipe rather than a model or an endpoint."""
    if name.endswith(".toml") or Path(name).exists():
        return name.endswith(".toml")
    known = name in {*shipped_recipes(), *saved_recipes(), PHANTOM}
    return known or (name not in catalogue.models() and name in run_recipes())


def load_deployment(name: str, settings: Sequence[str] = ()) -> Deployment:
    """Load a recipe by name or file, change the settings of --set (path=value), and resolve it."""
    recipe = load_recipe(name)
    if not settings:
        return deploy(recipe)
    drafts = [text for text in settings if text.startswith("speculate")]  # they may need the model
    recipe = apply_settings(recipe, [text for text in settings if text not in drafts])
    return change_deployment(deploy(recipe), drafts)


def change_deployment(deployment: Deployment, settings: Sequence[str]) -> Deployment:
    """Change settings (path=value) but not the weights; `speculate=METHOD` takes what is known of that draft."""
    for text in settings:
        path, value = split_setting(text)
        if path == "speculate":
            recipe = replace(deployment.recipe, speculate=recipe_draft(deployment, value))
        else:
            recipe = apply_settings(deployment.recipe, [text])
        deployment = deployment.with_recipe(recipe)
    validation.validate_recipe(deployment.recipe)
    return deployment


def load_recipe(name: str) -> Recipe:
    """Load a recipe by name or file."""
    path, known = Path(name), {**shipped_recipes(), **saved_recipes()}
    if name == PHANTOM and name not in known and not path.is_file():
        return plan_phantom(calibrated_box()).recipe
    if not (path.is_file() if name in known else path.exists()):
        is_name = not name.endswith(".toml")
        known |= run_recipes() if is_name and name not in known else {}
        near = suggest_names(name if is_name else path.stem, sorted({*known, PHANTOM}))
        if not is_name:
            raise BadInput(f"{name}: no such file", hint=suggest_path(name) or f"a recipe's name has no .toml; {near}")
        refuse_if(name not in known, f"no recipe {name!r}", hint=f"a .toml file, or {near}")
        path = known[name]
    return validation.read_recipe(path)


def is_phantom(name: str) -> bool:
    """Whether `name` means the phantom, and not a file or folder."""
    return name == PHANTOM and not Path(name).exists()


def phantom_model() -> ResolvedModel:
    model, checkpoints = resolve_model(str(gguf_path()))
    model = replace(model, name=PHANTOM, title="Phantom, the rehearsal model")
    return ResolvedModel(model=model, checkpoints=(replace(checkpoints[0], native=True),))


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
    found = choose_plan(replace(box, gpus=(), links=()), model, checkpoints, constraints)
    planned = found.recipe.hybrid
    hybrid = planned and replace(planned, threads_batch=planned.threads, batch=512)
    climb = Climb(contexts=(CONTEXT,), speculate=(), settings={"hybrid.ubatch": [256]})
    recipe = replace(found.recipe.with_port(0), name=PHANTOM, model=PHANTOM, served_name=PHANTOM, hybrid=hybrid)
    recipe = replace(recipe, runtime=Runtime(kind="embedded"), reasoning_parser="", climb=climb)
    return replace(found, recipe=recipe)


def phantom_threads() -> int:
    """A few on an idle machine, one on a busy one: llama.cpp's threads spin, and crawl without a core each.

    One core is left to the client: on two cores, two threads beside a load generator were 30 to 40 % slower than the
    same threads alone, by which every forecast was off.
    """
    if given := os.environ.get(THREADS, ""):
        wrong = f"{THREADS}: {given!r} is not a number of threads"
        refuse_if(not given.isdecimal() or not int(given), wrong, hint="write it like 2, or unset it")
        return int(given)
    from moebox.detect.host import cpu_busy_share  # psutil takes long to import

    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores - 1, MOST_THREADS)) if cpu_busy_share() < QUIET else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """One recipe of the list, and how its last run ended."""

    name: str  # as `moebox up` takes it
    source: RecipeSource
    path: str
    model: str = ""
    engine: str = ""
    box: str = ""
    about: str = ""  # everything in a line
    result: str = ""
    run: str = ""  # that the result is of


def list_recipes(runs: Path | None = None) -> list[RecipeRow]:
    """Return the recipes that the user saved, those of runs, newest first, and shipped ones."""
    from moebox.runs.listing import list_summaries

    saved, shipped = saved_recipes(), dict(sorted(shipped_recipes().items()))
    of_runs = {name: path for name, path in run_recipes(runs).items() if name not in {*saved, *shipped, PHANTOM}}
    last = {summary.recipe: summary for summary in reversed(list_summaries(runs))}  # the newest is listed first
    sources: dict[RecipeSource, dict[str, Path]] = {"saved": saved, "run": of_runs, "shipped": shipped}
    rows = [_recipe_row(name, source, path, last) for source in sources for name, path in sources[source].items()]
    engine = next(traits.name for traits in registry.all_traits() if traits.embedded)
    phantom = RecipeRow(name=PHANTOM, source="shipped", path="", model=PHANTOM, engine=engine, box="any machine")
    return rows if PHANTOM in saved else [*rows, _with_result(phantom, last.get(PHANTOM))]


def _recipe_row(name: str, source: RecipeSource, path: Path, last: "Mapping[str, RunSummary]") -> RecipeRow:
    row = RecipeRow(name=name, source=source, path=str(path))
    try:
        recipe = validation.read_recipe(path)
    except BadInput as problem:
        return replace(row, about=problem.message)
    place = "experts in RAM" if recipe.hybrid else recipe.parallel.text
    context = f"context {format_count(recipe.context)}" if recipe.context else ""
    engine, box = registry.engine_display_name(recipe.engine), recipe.planned_for.box
    about = ", ".join(filter(None, (recipe.model, recipe.checkpoint, engine, place, context, box)))
    row = replace(row, model=recipe.model, engine=recipe.engine, box=box, about=about)
    return _with_result(row, last.get(recipe.name))


def _with_result(row: RecipeRow, found: "RunSummary | None") -> RecipeRow:
    """Add how the last run of a recipe ended: simulated or not, state, checks and speed."""
    if found is None:
        return row
    state, checks = found.state_text(live=False), found.checks_text.strip("–")
    speed = f"{found.output_tok_s:,.0f} tok/s" if found.output_tok_s else ""
    parts = ("simulated" * found.simulation, state.removesuffix("ended"), checks, speed)
    return replace(row, result=", ".join(filter(None, parts)) or state, run=found.id)


def planned_box(planned: PlannedFor, name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The named box, else the one that a recipe was planned for, else this machine."""
    if name and name != planned.box:
        return calibrated_box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    memory = {"ram": ram or planned.ram, "ram_bandwidth": ram_bandwidth or planned.ram_bandwidth}
    with prefix_errors("planned_for"):
        if not planned.box:
            box = detect.load_box(**memory)
        elif planned.described:
            box = declared.box_from_document(planned.described, where=planned.box, **memory)
        else:  # not a file: the recipe may come from another user
            box = declared.parse_box_name(planned.box, **memory)
    return calibrations.with_calibrations(box)


def with_planned_box(plan: Plan, name: str | None, *, ram: str = "", ram_bandwidth: str = "") -> Plan:
    """Store the box in the plan's recipe; of a box file its content, because files move."""
    place = PlannedFor(box=name or "", ram=ram, ram_bandwidth=ram_bandwidth)
    if name and declared.is_box_file(name):
        place = replace(place, box=plan.box, described=codec.load_toml(Path(name)))
    return replace(plan, recipe=replace(plan.recipe, planned_for=place))


def calibrated_box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The named box, or this machine, with its calibrations."""
    return calibrations.with_calibrations(detect.load_box(name, ram=ram, ram_bandwidth=ram_bandwidth))


def find_recipe_misfit(deployment: Deployment) -> Misfit | None:
    """Return why a recipe does not fit the box it was planned for, else this machine.

    A recipe for GPUs without a box is not judged on a machine that has none: it is meant for another one.
    """
    recipe, models = deployment.recipe, catalogue.models()
    name = recipe.checkpoint
    is_word = not ("/" in name or name.endswith(".gguf") or Path(name).exists())  # a file may lie on another machine
    if is_word and not deployment.is_known:
        hint = suggest_names(recipe.model, models)
        refuse_if(recipe.model not in models, f"model: {recipe.model!r} is not known", hint=hint)
        text = f"checkpoint: {name!r} is not a known checkpoint of {recipe.model}, a path or a repository"
        raise BadInput(
            text, hint=suggest_names(name, (each.name for each in catalogue.published_checkpoints(recipe.model)))
        )
    engines.check_recipe(deployment)
    if not deployment.is_known:
        return None
    box = deployment.box or planned_box(recipe.planned_for)
    is_elsewhere = not recipe.planned_for.box and not box.gpus and recipe.hybrid is None
    return None if is_elsewhere else find_misfit(deployment.on_box(box))


def refuse_misfit(deployment: Deployment) -> None:
    if misfit := find_recipe_misfit(deployment):
        raise misfit.error()
