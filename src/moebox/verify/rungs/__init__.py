"""The rungs, in the order in which they are climbed."""

from moebox.verify.rung import Rung
from moebox.verify.rungs import (
    alive,
    anthropic,
    arithmetic,
    code,
    concurrency,
    json_modes,
    limits,
    long_context,
    plain,
    streaming,
    thinking,
    tools,
)

RUNGS: tuple[Rung, ...] = tuple(
    module.RUNG
    for module in (
        alive,
        plain,
        streaming,
        arithmetic,
        code,
        json_modes,
        thinking,
        tools,
        long_context,
        concurrency,
        limits,
        anthropic,
    )
)
NAMES: tuple[str, ...] = tuple(rung.name for rung in RUNGS)
