"""The modules of an engine's folder, each with its contract; loaded when first used.

    traits.py     TRAITS: what it is (core/traits.py)
    argv.py       a deployment to its command line
    memory.py     its memory budget, and the same arithmetic written out
    behaviour.py  batching, log, refusals and rehearsal
    reasons.toml  why its own flags are there (reasons.py)

What an engine of another package omits is taken from `defaults`; required are traits.py, memory.memory_budget, and
FIELDS, arguments and entry_command of argv.py.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Protocol, cast

from moebox.core import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moebox.core.box import Gpu
    from moebox.core.deployment import Deployment
    from moebox.core.plan import ArithmeticLine, Memory, PlanWarning
    from moebox.core.recipe import Flag, Recipe
    from moebox.engines.arguments import LaunchNode
    from moebox.engines.events import LogEvent, LogPattern
    from moebox.engines.flags import Argument


class ArgvModule(Protocol):
    """argv.py"""

    FIELDS: Mapping[str, str]  # flag -> recipe field
    HYBRID_FIELDS: Mapping[str, str]  # flag -> recipe field that `arguments` writes by its own rule
    VARIABLES: Mapping[str, str]  # flag -> variable that a rendered script takes its value from

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        """Command-line arguments after the entry."""

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        """Arguments that turn a draft on."""

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        """The command that starts it on this machine."""

    def worker_command(self, deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
        """What a node other than the first runs; only for engines with Traits.worker_programs."""

    def environment(self, deployment: Deployment) -> dict[str, str]:
        """Variables to set."""

    def hide_api_key(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Pass the API key without putting it in argv."""


class MemoryModule(Protocol):
    """memory.py"""

    def memory_budget(self, deployment: Deployment) -> Memory:
        """Every device's bytes, and the tokens that the cache holds."""

    def max_gpu_experts(self, deployment: Deployment) -> int:
        """Experts of each layer that fit on the GPUs; only for engines with hybrid.gpu_experts."""

    def memory_lines(self, deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
        """The memory arithmetic, line by line."""

    def setting_reasons(self, deployment: Deployment, memory: Memory) -> list[str]:
        """Why settings that only this engine has are as they are."""


class BehaviourModule(Protocol):
    """behaviour.py"""

    DEFAULT_MAX_SEQS: int  # sequences in a step unless the recipe sets them
    PROMPTS_FIRST: bool  # a step reads prompts or decodes, never both
    RESERVES_OUTPUT: bool  # keeps room for tokens that requests have yet to write
    SCHEDULES_AHEAD: bool  # prepares a step while the previous one runs
    EVEN_ROUTING: Mapping[str, str]  # variables that distribute tokens evenly over experts
    DUMMY_FLAGS: Mapping[str, Flag]  # flags that make it generate its weights; empty if it cannot
    PATTERNS: Sequence[LogPattern]  # what lines of its log report

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens that one step may read on such a GPU."""

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        """Known reasons why this will not start, or will disappoint."""

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        """Flags with which it generates weights for `layers`; empty if a file must be written for it."""


def argv_module(engine: str) -> ArgvModule:
    """Return how `engine` is called."""
    return cast(ArgvModule, _load(registry.find_engine(engine).package, "argv"))


def memory_module(engine: str) -> MemoryModule:
    """Return how `engine` uses memory."""
    return cast(MemoryModule, _load(registry.find_engine(engine).package, "memory"))


def behaviour_module(engine: str) -> BehaviourModule:
    """Return how `engine` batches, logs, refuses and is rehearsed."""
    return cast(BehaviourModule, _load(registry.find_engine(engine).package, "behaviour"))


def parse_log_line(engine: str, line: str) -> LogEvent | None:
    """Return what a line of the engine's log reports, or None."""
    from moebox.engines.events import match_line

    return match_line(line, behaviour_module(engine).PATTERNS)


@functools.cache
def _load(package: str, name: str) -> SimpleNamespace:
    """Import a module of an engine, with the defaults of everything it omits."""
    names = dict(vars(importlib.import_module("moebox.engines.defaults")))
    if name != "behaviour" or importlib.util.find_spec(f"{package}.{name}"):
        names |= vars(importlib.import_module(f"{package}.{name}"))
    return SimpleNamespace(**names)
