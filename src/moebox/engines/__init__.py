"""Engines: a folder each, behind one set of traits. Deployment to command, log line to event, memory, refusals.

Nothing here starts anything. `engine` has the protocol of an engine. This package is imported with the traits of any
engine, so what only a launch needs is loaded when it is first used (`_LAZY`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "arguments": ("LaunchNode",),
    "assemble": ("LABEL", "build_launch", "launch_command", "runs_in_container", "shell_text"),
    "engine": ("find_refusals", "load_engine", "memory_budget"),
    "flags": ("newest_version",),
    "rules": ("check_recipe", "require_weights_file"),
}

if TYPE_CHECKING:
    from moebox.engines.arguments import LaunchNode
    from moebox.engines.assemble import LABEL, build_launch, launch_command, runs_in_container, shell_text
    from moebox.engines.engine import find_refusals, load_engine, memory_budget
    from moebox.engines.flags import newest_version
    from moebox.engines.rules import check_recipe, require_weights_file

    __all__ = ["LABEL", "LaunchNode", "build_launch", "check_recipe", "find_refusals", "launch_command", "load_engine"]
    __all__ += ["memory_budget", "newest_version", "require_weights_file", "runs_in_container", "shell_text"]


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _LAZY.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module 'moebox.engines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"moebox.engines.{module}"), name)
