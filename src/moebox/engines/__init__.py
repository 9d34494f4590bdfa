"""Engines: one module each, with the same names. Recipe to command, log line to event, what will not work.

Nothing here starts anything.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.plan import Caution, Launch
from moebox.core.recipe import EngineName, Recipe
from moebox.engines import ik_llama_cpp, llama_cpp, sglang, vllm
from moebox.engines.assemble import LABEL, command, contained, shown
from moebox.engines.events import Event
from moebox.engines.flags import Word, newest
from moebox.engines.parse import parse_command
from moebox.engines.rules import check
from moebox.engines.words import Node

__all__ = [
    "ENGINES",
    "LABEL",
    "Engine",
    "Event",
    "Node",
    "check",
    "command",
    "contained",
    "launch",
    "newest",
    "parse_command",
    "refusals",
    "shown",
]


class Engine(Protocol):
    """What an adapter offers. A module is enough; no class is needed."""

    NAME: EngineName
    VERSIONS: tuple[str, ...]  # with a flag catalogue, oldest first
    IMAGE: str  # of this engine; "{version}" is filled in
    IMAGE_ENTRY: tuple[str, ...]  # words that start it inside the image
    IMAGE_ENTERS: bool  # whether those words are the image's own entry point
    READY: re.Pattern[str]  # appears in the log once the server answers
    HEALTH: str  # path that answers 200 when it is up
    KEY_ENV: str  # variable the engine gets its key from
    FIELDS: dict[str, str]  # flag -> recipe field
    VARIABLES: dict[str, str]  # flag -> variable that a rendered script takes its value from

    def words(self, recipe: Recipe, model: Model | None, *, node: Node | None = None, host: str = "") -> list[Word]:
        """The command line after the entry, word by word."""

    def speculation(self, recipe: Recipe) -> list[Word]:
        """The words that turn a draft on."""

    def entry(self, recipe: Recipe) -> tuple[str, ...]:
        """The words that start it on this machine."""

    def environment(self, recipe: Recipe, model: Model | None) -> dict[str, str]:
        """Variables to set."""

    def guarded(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """`argv` so that the key reaches the engine without standing in it."""

    def launch(
        self, recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
    ) -> Launch:
        """What to run on this machine."""

    def event(self, line: str) -> Event | None:
        """What a line of the log tells."""

    def refusals(self, recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
        """Known reasons why this will not start, or will disappoint."""


ENGINES: Mapping[EngineName, Engine] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama.cpp": llama_cpp,
    "ik_llama.cpp": ik_llama_cpp,
}


def launch(
    recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
) -> Launch:
    """What to run for `recipe`; `command` puts docker or podman around it."""
    return ENGINES[recipe.engine].launch(recipe, model, port=port, rank=rank, master=master)


def refusals(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """Known reasons why this recipe will not start on this box, or will disappoint; the worst first."""
    worst = {"fatal": 0, "warning": 1, "note": 2}
    return sorted(ENGINES[recipe.engine].refusals(recipe, box, model), key=lambda one: worst[one.severity])
