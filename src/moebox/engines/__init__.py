"""Engines: a folder each, behind one set of traits. Deployment to command, log line to event, memory, refusals.

Nothing here starts anything. `engine` has the protocol of an engine. This package is imported with the traits of any
engine, so what only a launch needs is loaded when it is first used (`_LAZY`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from moebox.core import registry as registry

if TYPE_CHECKING:
    from moebox.engines.arguments import LaunchNode as LaunchNode
    from moebox.engines.assemble import LABEL as LABEL
    from moebox.engines.assemble import build_launch as build_launch
    from moebox.engines.assemble import launch_command as launch_command
    from moebox.engines.assemble import runs_in_container as runs_in_container
    from moebox.engines.assemble import shell_text as shell_text
    from moebox.engines.engine import find_refusals as find_refusals
    from moebox.engines.engine import load_engine as load_engine
    from moebox.engines.engine import memory_budget as memory_budget
    from moebox.engines.events import LogEvent as LogEvent
    from moebox.engines.flags import newest_version as newest_version
    from moebox.engines.rules import check_recipe as check_recipe
    from moebox.engines.rules import require_weights_file as require_weights_file

_LAZY = {
    "LABEL": "assemble",
    "LaunchNode": "arguments",
    "LogEvent": "events",
    "build_launch": "assemble",
    "check_recipe": "rules",
    "find_refusals": "engine",
    "require_weights_file": "rules",
    "launch_command": "assemble",
    "load_engine": "engine",
    "memory_budget": "engine",
    "newest_version": "flags",
    "runs_in_container": "assemble",
    "shell_text": "assemble",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'moebox.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"moebox.engines.{_LAZY[name]}"), name)
