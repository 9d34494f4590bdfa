"""The modules of an engine's folder, each with its contract; loaded when first asked for.

    traits.py    TRAITS: what it is (core/traits.py)
    argv.py      Deployment to command line, and back
    log.py       a line of the log to an event
    memory.py    what it claims and reserves
    lines.py     the same arithmetic written out
    schedule.py  batching rules
    refuse.py    what it will not run, and why
    probe.py     how a rehearsal makes dummy weights and even routing
    reasons.toml why its own flags are there (reasons.py)

An engine of another package may leave out lines, log, schedule, refuse and probe: the defaults of `plain` stand in.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING, Protocol, cast

from moebox.core import registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from moebox.core.box import Gpu
    from moebox.core.deployment import Deployment
    from moebox.core.plan import ArithmeticLine, Memory, PlanWarning
    from moebox.core.recipe import Flag, Recipe
    from moebox.engines.arguments import LaunchNode
    from moebox.engines.events import LogEvent
    from moebox.engines.flags import Argument
    from moebox.engines.reading import Reading

OPTIONAL = ("lines", "log", "schedule", "refuse", "probe")


class ArgvModule(Protocol):
    """argv.py"""

    FIELDS: Mapping[str, str]  # flag -> recipe field
    READS: Mapping[str, str]  # the same for reading a command line back; more, where `words` writes some by rule
    VARIABLES: Mapping[str, str]  # flag -> variable that a rendered script takes its value from

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        """The command line after the entry, word by word."""

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        """The words that turn a draft on."""

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        """The words that start it on this machine."""

    def worker_command(self, deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
        """What a node other than the first runs; only of engines with Traits.workers."""

    def environment(self, deployment: Deployment) -> dict[str, str]:
        """Variables to set."""

    def hide_api_key(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """`argv` so that the key reaches the engine without standing in it."""

    def understood(self, word: Argument, name: str, reading: Reading) -> bool:
        """Take a word that is more than one field into `reading`; False where it is none of those."""

    def finished(self, names: set[str], reading: Reading) -> None:
        """Settle in `reading` what follows from all words together; `names` are the flags that stood there."""


class LogModule(Protocol):
    """log.py"""

    def parse_log_line(self, line: str) -> LogEvent | None:
        """What a line of the log tells."""


class MemoryModule(Protocol):
    """memory.py"""

    def memory_budget(self, deployment: Deployment) -> Memory:
        """Every device's bytes, and the tokens the cache holds."""

    def max_gpu_experts(self, deployment: Deployment) -> int:
        """Experts of each layer that fit on the GPUs; only of engines with hybrid.gpu_experts."""


class LinesModule(Protocol):
    """lines.py"""

    def memory_lines(self, deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
        """The memory arithmetic, line by line."""

    def setting_reasons(self, deployment: Deployment, memory: Memory) -> list[str]:
        """Why settings that are this engine's alone are as they are."""


class ScheduleModule(Protocol):
    """schedule.py"""

    DEFAULT_MAX_SEQS: int  # a step holds unless the recipe says otherwise
    PROMPTS_FIRST: bool  # a step reads prompts or decodes, never both
    RESERVES_OUTPUT: bool  # keeps room for tokens that requests have yet to write
    SCHEDULES_AHEAD: bool  # puts a step together while the one before runs

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens one step may read on such a GPU."""


class RefuseModule(Protocol):
    """refuse.py"""

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        """Known reasons why this will not start, or will disappoint."""


class RehearsalModule(Protocol):
    """probe.py"""

    EVEN_ROUTING: Mapping[str, str]  # variables that spread tokens evenly over experts
    DUMMY_FLAGS: Mapping[
        str, Flag
    ]  # flags that make it invent its weights, so that none need be there; empty: it cannot

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        """Flags with which it invents weights for `layers`; empty where a file must be written for it."""


def argv_module(engine: str) -> ArgvModule:
    """How `engine` is called."""
    return cast(ArgvModule, _room(engine, "argv"))


def log_module(engine: str) -> LogModule:
    """What `engine` prints."""
    return cast(LogModule, _room(engine, "log"))


def memory_module(engine: str) -> MemoryModule:
    """What `engine` claims and reserves."""
    return cast(MemoryModule, _room(engine, "memory"))


def lines_module(engine: str) -> LinesModule:
    """How the memory of `engine` is written out."""
    return cast(LinesModule, _room(engine, "lines"))


def schedule_module(engine: str) -> ScheduleModule:
    """How `engine` batches."""
    return cast(ScheduleModule, _room(engine, "schedule"))


def refuse_module(engine: str) -> RefuseModule:
    """What `engine` will not run."""
    return cast(RefuseModule, _room(engine, "refuse"))


def rehearsal_module(engine: str) -> RehearsalModule:
    """How `engine` is rehearsed."""
    return cast(RehearsalModule, _room(engine, "probe"))


def _room(engine: str, name: str) -> ModuleType:
    return _module(registry.find_engine(engine).package, name)


@functools.cache
def _module(package: str, name: str) -> ModuleType:
    if name in OPTIONAL and importlib.util.find_spec(f"{package}.{name}") is None:
        return importlib.import_module("moebox.engines.plain")
    return importlib.import_module(f"{package}.{name}")
