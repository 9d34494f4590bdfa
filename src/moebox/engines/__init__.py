"""Engines: a folder each, behind one set of traits. Deployment to command, log line to event, what will not work.

Nothing here starts anything. `rooms` has the contract of every module of a folder.
"""

import dataclasses

from moebox.core import registry
from moebox.core.deployment import Deployment
from moebox.core.plan import Caution, Launch, Memory
from moebox.core.recipe import Recipe
from moebox.engines import assemble, rooms
from moebox.engines.arguments import Node
from moebox.engines.assemble import LABEL, command, contained, shown
from moebox.engines.events import Event
from moebox.engines.flags import newest
from moebox.engines.parse import parse_command
from moebox.engines.rules import check

__all__ = [
    "LABEL",
    "Event",
    "Node",
    "assemble",
    "budget",
    "check",
    "command",
    "contained",
    "launch",
    "newest",
    "parse_command",
    "refusals",
    "registry",
    "rooms",
    "shown",
    "version_of",
]
WORST_FIRST = {"fatal": 0, "warning": 1, "note": 2}


def launch(deployment: Deployment, *, rank: int = 0, master: str = "", addresses: tuple[str, ...] = ()) -> Launch:
    """What to run; `command` puts docker or podman around it."""
    return assemble.assemble(deployment, node=Node.of(rank, master, addresses))


def version_of(recipe: Recipe) -> str:
    """The version that a recipe names, or the newest that moebox knows."""
    return recipe.engine_version or newest(recipe.engine)


def refusals(deployment: Deployment) -> list[Caution]:
    """Known reasons why this will not start on its box, or will disappoint; the worst first."""
    found = rooms.refuse(deployment.engine.name).refusals(deployment)
    return sorted(found, key=lambda caution: WORST_FIRST[caution.severity])


def budget(deployment: Deployment) -> Memory:
    """The memory of every device of the box; `fits` is false where it would not start or not serve."""
    recipe = deployment.recipe
    if not recipe.context:  # the engine's own: the model's
        deployment = deployment.with_recipe(dataclasses.replace(recipe, context=deployment.model.context))
    return rooms.memory(deployment.engine.name).budget(deployment)
