"""The box to plan for, with its calibrations, and the gate for recipes that do not fit it."""

from dataclasses import replace
from pathlib import Path

from moebox import codec, detect
from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.plan import Plan
from moebox.core.recipe import PlannedFor, Recipe
from moebox.detect import declared
from moebox.errors import BadInput
from moebox.planner.fit import Misfit, find_misfit
from moebox.store import calibrations


def box_for_recipe(recipe: Recipe, name: str | None = None, *, ram: str = "", ram_bandwidth: str = "") -> Box:
    """The named box, else the one that `recipe` was planned for, else this machine."""
    planned = recipe.planned_for
    if name and name != planned.box:
        return calibrated_box(name, ram=ram, ram_bandwidth=ram_bandwidth)
    memory = {"ram": ram or planned.ram, "ram_bandwidth": ram_bandwidth or planned.ram_bandwidth}
    try:
        if not planned.box:
            box = detect.load_box(**memory)
        elif planned.described:
            box = declared.box_from_document(planned.described, where=planned.box, **memory)
        else:  # not a file: the recipe may come from another user
            box = declared.parse_box_name(planned.box, **memory)
    except BadInput as problem:
        raise BadInput(f"planned_for: {problem.message}", hint=problem.hint) from None
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
    if not deployment.is_known:
        return None
    box = deployment.box or box_for_recipe(deployment.recipe)
    recipe = deployment.recipe
    if not recipe.planned_for.box and not box.gpus and recipe.hybrid is None:
        return None
    return find_misfit(deployment.on_box(box))


def refuse_misfit(deployment: Deployment) -> None:
    """Raise DoesNotFit for a recipe that does not fit."""
    if misfit := find_recipe_misfit(deployment):
        raise misfit.error()
