"""The whole arithmetic of a plan, line by line: memory, then one decode step."""

from moebox.core.plan import ArithmeticLine
from moebox.engines import modules
from moebox.planner.rate import PROMPT_TOKENS, RatedCandidate


def arithmetic_lines(one: RatedCandidate) -> tuple[ArithmeticLine, ...]:
    """What a person would type into a calculator to check the plan."""
    memory = modules.lines_module(one.recipe.engine).memory_lines(one.deployment, one.memory)
    return (*memory, *one.speed.explain_lines(one.streams, min(PROMPT_TOKENS, one.recipe.context)))
