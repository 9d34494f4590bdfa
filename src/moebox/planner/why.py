"""The whole arithmetic of a plan, line by line: memory, then one decode step."""

from moebox.core.plan import Line
from moebox.engines import rooms
from moebox.planner.weigh import PROMPT, Weighed


def why(one: Weighed) -> tuple[Line, ...]:
    """What a person would type into a calculator to check the plan."""
    memory = rooms.lines(one.recipe.engine).lines(one.deployment, one.memory)
    return (*memory, *one.speed.lines(one.streams, min(PROMPT, one.recipe.context)))
