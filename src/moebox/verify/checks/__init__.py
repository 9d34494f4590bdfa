"""All checks in the order of `options.CHECK_NAMES`."""

from moebox.verify.checks import (
    agents,
    alive,
    answers,
    anthropic,
    cache,
    combinations,
    concurrency,
    errors,
    json_modes,
    limits,
    long_context,
    prompts,
    responses,
    routes,
    sampling,
    streaming,
    thinking,
    tools,
    trends,
    vision,
)
from moebox.verify.options import CHECK_NAMES
from moebox.verify.trials import Check

_MODULES = (
    *(agents, alive, anthropic, cache, combinations, concurrency, errors, json_modes, limits, long_context),
    *(prompts, responses, routes, sampling, streaming, thinking, tools, trends, vision),
)
_BY_NAME = {check.name: check for check in (answers.PLAIN, answers.ARITHMETIC, answers.CODE)}
_BY_NAME |= {module.CHECK.name: module.CHECK for module in _MODULES}
if set(_BY_NAME) != set(CHECK_NAMES):
    raise TypeError(f"CHECK_NAMES and the checks differ in {', '.join(sorted(set(_BY_NAME) ^ set(CHECK_NAMES)))}")
CHECKS: tuple[Check, ...] = tuple(_BY_NAME[name] for name in CHECK_NAMES)
