"""All checks in the order of `options.CHECK_NAMES`."""

from typing import NamedTuple

from moebox.verify.checks import (
    agents,
    answers,
    cache,
    combinations,
    concurrency,
    errors,
    limits,
    long_context,
    other_apis,
    prompts,
    routes,
    sampling,
    schemas,
    streaming,
    thinking,
    tools,
    trends,
    vision,
)
from moebox.verify.options import CHECK_NAMES
from moebox.verify.trials import Probes

# If all probes of one set fail, every later check is meaningless.
STOP_IF_FAILED = {"alive": ({"models"}, {"answers"}), "plain": ({"facts", "at length"},)}


class Check(NamedTuple):
    name: str
    probes: Probes


_PROBES: tuple[Probes, ...] = (
    *(answers.ALIVE, answers.PLAIN, streaming.PROBES, prompts.PROBES, answers.ARITHMETIC, answers.CODE),
    *(schemas.PROBES, thinking.PROBES, tools.PROBES, agents.PROBES, sampling.PROBES, long_context.PROBES),
    *(cache.PROBES, routes.PROBES, concurrency.PROBES, limits.PROBES, errors.PROBES, vision.PROBES),
    *(other_apis.MESSAGE_PROBES, other_apis.RESPONSE_PROBES, combinations.PROBES, trends.PROBES),
)
CHECKS = tuple(Check(name=name, probes=probes) for name, probes in zip(CHECK_NAMES, _PROBES, strict=True))
