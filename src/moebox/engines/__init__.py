"""Engines: a folder each, behind one set of traits. Deployment to command, log line to event, memory, refusals.

Nothing here starts anything. `engine` has the protocol of an engine. This package is imported with the traits of any
engine, so what only a launch needs is loaded when it is first used (`_LAZY`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moebox.core import registry as registry

if TYPE_CHECKING:
    from moebox.core.deployment import Deployment
    from moebox.core.plan import Launch, Memory, PlanWarning
    from moebox.engines.arguments import LaunchNode as LaunchNode
    from moebox.engines.assemble import LABEL as LABEL
    from moebox.engines.assemble import launch_command as launch_command
    from moebox.engines.assemble import runs_in_container as runs_in_container
    from moebox.engines.assemble import shell_text as shell_text
    from moebox.engines.engine import load_engine as load_engine
    from moebox.engines.events import LogEvent as LogEvent
    from moebox.engines.flags import newest_version as newest_version
    from moebox.engines.flags import version_or_newest as version_or_newest
    from moebox.engines.rules import check_recipe as check_recipe
    from moebox.engines.rules import require_weights_file as require_weights_file

WORST_FIRST = {"fatal": 0, "warning": 1, "note": 2}
_LAZY = {
    "LABEL": "assemble",
    "LaunchNode": "arguments",
    "LogEvent": "events",
    "check_recipe": "rules",
    "require_weights_file": "rules",
    "launch_command": "assemble",
    "load_engine": "engine",
    "newest_version": "flags",
    "runs_in_container": "assemble",
    "shell_text": "assemble",
    "version_or_newest": "flags",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'moebox.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"moebox.engines.{_LAZY[name]}"), name)


def build_launch(deployment: Deployment, *, rank: int = 0, master: str = "", addresses: tuple[str, ...] = ()) -> Launch:
    """Return what to run; `launch_command` puts docker or podman around it."""
    from moebox.engines import arguments, assemble

    return assemble.assemble_launch(deployment, node=arguments.LaunchNode.with_rank(rank, master, addresses))


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Return known reasons why this will not start on its box, or will disappoint; the worst first."""
    from moebox.engines.engine import load_engine

    found = load_engine(deployment.engine.name).find_refusals(deployment.with_default_context())
    return sorted(found, key=lambda refusal: WORST_FIRST[refusal.severity])


def memory_budget(deployment: Deployment) -> Memory:
    """Return the memory of every device of the box; `fits` is False if it would not start or not serve."""
    from moebox.engines.budget import add_tier_memory
    from moebox.engines.engine import load_engine

    memory = load_engine(deployment.engine.name).memory_budget(deployment.with_default_context())
    return add_tier_memory(deployment, memory) if deployment.recipe.tiers.ram_gib else memory
