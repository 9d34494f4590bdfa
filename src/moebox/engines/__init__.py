"""Engines: a folder each, behind one set of traits. Deployment to command, log line to event, what will not work.

Nothing here starts anything. `rooms` has the contract of every module of a folder. A package's folder is imported with
the traits of any engine, so what only a launch needs is loaded when it is first asked for (`_LATER`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moebox.core import registry
from moebox.engines import rooms

if TYPE_CHECKING:
    from moebox.core.deployment import Deployment
    from moebox.core.plan import Caution, Launch, Memory
    from moebox.engines.arguments import Node
    from moebox.engines.assemble import LABEL, command, contained, shown
    from moebox.engines.events import Event
    from moebox.engines.flags import newest, version_of
    from moebox.engines.parse import parse_command
    from moebox.engines.rules import check

__all__ = [
    "LABEL",
    "Event",
    "Node",
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
_LATER = {
    "LABEL": "assemble",
    "Event": "events",
    "Node": "arguments",
    "check": "rules",
    "command": "assemble",
    "contained": "assemble",
    "newest": "flags",
    "parse_command": "parse",
    "shown": "assemble",
    "version_of": "flags",
}


def __getattr__(name: str) -> Any:
    """What is loaded when it is first asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'moebox.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"moebox.engines.{_LATER[name]}"), name)


def launch(deployment: Deployment, *, rank: int = 0, master: str = "", addresses: tuple[str, ...] = ()) -> Launch:
    """What to run; `command` puts docker or podman around it."""
    from moebox.engines import arguments, assemble

    return assemble.assemble(deployment, node=arguments.Node.of(rank, master, addresses))


def refusals(deployment: Deployment) -> list[Caution]:
    """Known reasons why this will not start on its box, or will disappoint; the worst first."""
    found = rooms.refuse(deployment.engine.name).refusals(deployment.settled)
    return sorted(found, key=lambda caution: WORST_FIRST[caution.severity])


def budget(deployment: Deployment) -> Memory:
    """The memory of every device of the box; `fits` is false where it would not start or not serve."""
    return rooms.memory(deployment.engine.name).budget(deployment.settled)
