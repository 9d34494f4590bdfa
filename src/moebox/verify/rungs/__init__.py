"""The rungs, in the order in which they are climbed."""

from moebox.verify.rung import Check
from moebox.verify.rungs import (
    agents,
    alive,
    anthropic,
    arithmetic,
    cache,
    code,
    concurrency,
    errors,
    json_modes,
    limits,
    long_context,
    plain,
    prompts,
    sampling,
    streaming,
    thinking,
    tools,
    vision,
)

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        alive,
        plain,
        streaming,
        prompts,
        arithmetic,
        code,
        json_modes,
        thinking,
        tools,
        agents,
        sampling,
        long_context,
        cache,
        concurrency,
        limits,
        errors,
        vision,
        anthropic,
    )
)
CHECK_NAMES: tuple[str, ...] = tuple(rung.name for rung in CHECKS)
