"""The box that is planned for, with what rehearsals measured on it."""

import re
from dataclasses import replace

from moebox import detect
from moebox.core.box import Box
from moebox.core.plan import Plan
from moebox.core.recipe import PlannedFor, Recipe
from moebox.errors import BadInput
from moebox.store import calibrations

NAME = r"\d+x[\w-]+"  # COUNTxGPU; a recipe of a stranger names no files


def box_for(recipe: Recipe, name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The box that is named, else the one that `recipe` was planned for, else this machine."""
    planned = recipe.planned_for
    if name or not planned.box:
        return box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    if not re.fullmatch(NAME, planned.box):
        raise BadInput(f"planned_for.box: {planned.box!r} is no box", hint="COUNTxGPU, such as 8x-rtx-pro-6000-server")
    return box(planned.box, ram=ram or planned.ram, ram_bandwidth=ram_bandwidth or planned.ram_bandwidth)


def planned_for(plan: Plan, name: str | None, *, ram: str = "", ram_bandwidth: str = "") -> Plan:
    """The plan with its box kept in the recipe; a box from a file is left out, for files move."""
    named = name if name and re.fullmatch(NAME, name) else ""
    place = PlannedFor(box=named, ram=ram, ram_bandwidth=ram_bandwidth)
    return replace(plan, recipe=replace(plan.recipe, planned_for=place))


def box(name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """This machine, or the one that `name` describes, with its calibrations."""
    return calibrations.attached(detect.box(name, ram=ram, ram_bandwidth=ram_bandwidth))
