"""The box that is planned for, with what rehearsals measured on it."""

from dataclasses import replace
from pathlib import Path

from moebox import codec, detect
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import PlannedFor, Recipe
from moebox.detect import declared
from moebox.errors import BadInput
from moebox.store import calibrations


def box_for_recipe(recipe: Recipe, name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that is named, else the one that `recipe` was planned for, else this machine."""
    planned = recipe.planned_for
    if name and name != planned.box:
        return calibrated_box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    memory = {"ram": ram or planned.ram, "ram_bandwidth": ram_bandwidth or planned.ram_bandwidth}
    try:
        return calibrations.with_calibrations(_kept(planned, memory))
    except BadInput as problem:
        raise BadInput(f"planned_for: {problem.message}", hint=problem.hint) from None


def _kept(planned: PlannedFor, memory: dict[str, str]) -> Box:
    """The box in a recipe: its name or its description, else this machine; a stranger's recipe names no files."""
    if not planned.box:
        return detect.load_box(**memory)
    if planned.described:
        return declared.box_from_document(planned.described, where=planned.box, **memory)
    return declared.parse_box_name(planned.box, **memory)


def with_planned_box(plan: Plan, name: str | None, *, ram: str = "", ram_bandwidth: str = "") -> Plan:
    """The plan with its box kept in the recipe; of a box file what it says, for files move."""
    place = PlannedFor(box=name or "", ram=ram, ram_bandwidth=ram_bandwidth)
    if name and declared.is_box_file(name):
        place = replace(place, box=plan.box, described=codec.load_toml(Path(name)))
    return replace(plan, recipe=replace(plan.recipe, planned_for=place))


def calibrated_box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """This machine, or the one that `name` describes, with its calibrations."""
    return calibrations.with_calibrations(detect.load_box(name, ram=ram, ram_bandwidth=ram_bandwidth))
