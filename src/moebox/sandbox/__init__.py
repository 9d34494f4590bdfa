"""Runs code that a model wrote, where it can harm nothing.

A separate process with an empty environment, no network, no files but Python's own library and a temp folder of its
own, no children, and limits on time, memory and output. Three ways to get there, strongest first:

    namespaces   user, mount, pid, network and ipc namespaces with a root of their own, then seccomp
    landlock     the kernel's file and network rules for unprivileged processes, then seccomp
    seccomp      a list of allowed system calls that has no call which opens anything

None needs root. Which one was used is part of the outcome. Where none works, code is not run at all.

Names are loaded when they are first asked for: the jail itself, an interpreter for each piece of code, is in this
package too and needs none of what starts it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moebox.sandbox.start import (
        LEVELS,
        NoSandbox,
        SandboxLevel,
        SandboxLimits,
        SandboxOutcome,
        run_code,
        run_program,
        run_snippets,
        strongest_file_level,
        strongest_level,
    )

__all__ = [
    "LEVELS",
    "NoSandbox",
    "SandboxLevel",
    "SandboxLimits",
    "SandboxOutcome",
    "run_code",
    "run_program",
    "run_snippets",
    "strongest_file_level",
    "strongest_level",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("moebox.sandbox.start"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
