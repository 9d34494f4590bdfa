"""The gate for recipes that do not fit their box."""

from moebox.core.deployment import Deployment
from moebox.flows import boxes
from moebox.planner.fit import Misfit, find_misfit


def find_recipe_misfit(deployment: Deployment) -> Misfit | None:
    """Return why a recipe does not fit the box it was planned for, else this machine.

    A recipe for GPUs without a box is not judged on a machine that has none: it is meant for another one.
    """
    if not deployment.is_known:
        return None
    box = deployment.box or boxes.box_for_recipe(deployment.recipe)
    recipe = deployment.recipe
    if not recipe.planned_for.box and not box.gpus and recipe.hybrid is None:
        return None
    return find_misfit(deployment.on_box(box))


def refuse_misfit(deployment: Deployment) -> None:
    """Raise DoesNotFit for a recipe that does not fit."""
    if misfit := find_recipe_misfit(deployment):
        raise misfit.error()
