"""Runs code that a model wrote, isolated from everything else.

A separate process with an empty environment, no network, no files but Python's own library and a temp folder of its
own, no children, and limits on time, memory and output. Three levels, strongest first:

    namespaces   user, mount, pid, network and ipc namespaces with a root of their own, then seccomp
    landlock     the kernel's file and network rules for unprivileged processes, then seccomp
    seccomp      a list of allowed system calls without any that opens a file

None needs root. The outcome names the level that was used. If none works, code is not run at all.

Names are imported on first use: the jail, an interpreter for each piece of code, is in this package too and needs none
of them.
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
