"""The box that is planned for, with what rehearsals measured on it."""

from dataclasses import replace

from moebox import detect
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import PlannedFor, Recipe
from moebox.detect import declared
from moebox.errors import BadInput
from moebox.store import calibrations


def box_for(recipe: Recipe, name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that is named, else the one that `recipe` was planned for, else this machine."""
    planned = recipe.planned_for
    if name or not planned.box:
        return box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    memory = {"ram": ram or planned.ram, "ram_bandwidth": ram_bandwidth or planned.ram_bandwidth}
    try:
        return calibrations.attached(declared.named(planned.box, **memory))  # a stranger's recipe names no files
    except BadInput as problem:
        raise BadInput(f"planned_for: {problem.message}", hint=problem.hint) from None


def planned_for(plan: Plan, name: str | None, *, ram: str = "", ram_bandwidth: str = "") -> Plan:
    """The plan with its box kept in the recipe; a box from a file is left out, for files move."""
    named = "" if not name or declared.names_a_file(name) else name
    place = PlannedFor(box=named, ram=ram, ram_bandwidth=ram_bandwidth)
    return replace(plan, recipe=replace(plan.recipe, planned_for=place))


def box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """This machine, or the one that `name` describes, with its calibrations."""
    return calibrations.attached(detect.box(name, ram=ram, ram_bandwidth=ram_bandwidth))
