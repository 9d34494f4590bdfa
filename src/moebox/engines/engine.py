"""What moebox knows of an engine: one object with this protocol for each.

An engine's folder has traits.py with TRAITS, engine.py with ENGINE, tables of flags in flags/, and reasons.toml with
why its own flags are there (reasons.py). moebox's own engines have their memory arithmetic in memory.py.
"""

import functools
import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, cast

from moebox.core import registry
from moebox.core.box import Box, Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine, Memory, PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.core.traits import Traits
from moebox.engines.arguments import LaunchNode
from moebox.engines.budget import add_tier_memory
from moebox.engines.events import LogEvent, LogPattern, engine_patterns, match_line
from moebox.engines.flags import Argument
from moebox.engines.support import common_refusals
from moebox.errors import IMPORT_ERRORS, BadInput

WORST_FIRST = {"fatal": 0, "warning": 1, "note": 2}
EMPTY: Mapping[str, str] = MappingProxyType({})


class Engine(Protocol):
    """An engine. Required are `traits`, `fields` and the abstract methods; everything else has a default."""

    traits: Traits

    # The command line.
    fields: Mapping[str, str]  # flag -> recipe field
    hybrid_fields: Mapping[str, str] = EMPTY  # flag -> recipe field that `arguments` writes by its own rule
    variables: Mapping[str, str] = EMPTY  # flag -> variable that a rendered script takes its value from

    @abstractmethod
    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        """Return the command-line arguments after the entry."""

    @abstractmethod
    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the command that starts it on this machine."""

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        return []

    def worker_command(self, deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
        """Return what a node other than the first runs; only for engines with Traits.worker_programs."""
        raise BadInput(f"{self.traits.title} has no command for nodes other than the first", hint="parallel.nodes = 1")

    def environment(self, deployment: Deployment) -> dict[str, str]:
        """Return variables to set."""
        return dict(deployment.recipe.env)

    def hide_api_key(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Pass the API key without putting it in argv; by default the engine reads it from Traits.key_env."""
        return argv

    def build_commands(self, source: str, folder: str, box: Box, jobs: int) -> list[tuple[str, ...]]:
        """Return the commands that build its program for a machine into `folder`/bin; empty if moebox cannot."""
        return []

    # Memory.
    @abstractmethod
    def memory_budget(self, deployment: Deployment) -> Memory:
        """Return every device's bytes, and the tokens that the cache holds."""

    def max_gpu_experts(self, deployment: Deployment) -> int:
        """Return how many experts of each layer fit on the GPUs; only for engines with Traits.splits_layers."""
        return 0

    def memory_lines(self, deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
        """Return the memory arithmetic, line by line; by default every device's parts without formulas."""
        rows = []
        for device in memory.devices:
            rows += [(f"{device.device}: {name}", size) for name, size in device.weights.items()]
            rows += [(f"{device.device}: cache", device.kv)] if device.kv else []
        return tuple(ArithmeticLine(what=what, formula="", value=size, unit="B") for what, size in rows)

    def setting_reasons(self, deployment: Deployment, memory: Memory) -> list[str]:
        """Return why settings that only this engine has are as they are."""
        return []

    # Batching, as the forecast simulates it.
    default_max_seqs: int = 64  # sequences in a step unless the recipe sets them
    prompts_first: bool = False  # a step reads prompts or decodes, never both
    reserves_output: bool = False  # keeps room for tokens that requests have yet to write
    schedules_ahead: bool = False  # prepares a step while the previous one runs

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Return how many prompt tokens one step may read on such a GPU."""
        return recipe.batched_tokens or self.traits.step_tokens

    def captured_tokens(self, deployment: Deployment, gpu: Gpu) -> int:
        """Return up to how many tokens a step with a prompt runs in captured graphs; 0 if the host launches it."""
        return 0

    def locks_weights(self, recipe: Recipe) -> bool:
        """Whether weights in RAM are in page-locked memory, from which GPUs copy at the rate of their link."""
        return True

    # Log, refusals and rehearsal.
    even_routing: Mapping[str, str] = EMPTY  # variables that distribute tokens evenly over experts
    even_routing_us: float = 0.0  # what that adds to a step for each layer with experts
    short_warmup: Mapping[str, str] = EMPTY  # variables that skip a warm-up which a rehearsal does not need
    dummy_flags: Mapping[str, Flag] = EMPTY  # flags that make it generate its weights; empty if it cannot

    @property
    def log_patterns(self) -> Sequence[LogPattern]:
        """What lines of its log report; by default as in data/log_patterns.toml, else common messages of servers."""
        return engine_patterns(self.traits.name)

    def parse_log_line(self, line: str) -> LogEvent | None:
        """Return what a line of its log reports, or None."""
        return match_line(line, self.log_patterns)

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        """Return known reasons why this will not start, or will disappoint; by default those of every engine."""
        return common_refusals(deployment)

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        """Return flags with which it generates weights for `layers`; empty if it cannot."""
        return {}


MEMBERS = tuple(name for name in dict.fromkeys((*Engine.__annotations__, *vars(Engine))) if not name.startswith("_"))
REQUIRED_MEMBERS = tuple(name for name in MEMBERS if not hasattr(Engine, name) or name in Engine.__abstractmethods__)
OPTIONAL_MEMBERS = tuple(name for name in MEMBERS if name not in REQUIRED_MEMBERS)


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Return known reasons why this will not start on its box, or will disappoint; the worst first."""
    found = load_engine(deployment.engine.name).find_refusals(deployment.with_default_context())
    return sorted(found, key=lambda refusal: WORST_FIRST[refusal.severity])


def memory_budget(deployment: Deployment) -> Memory:
    """Return the memory of every device of the box; `fits` is False if it would not start or not serve."""
    memory = load_engine(deployment.engine.name).memory_budget(deployment.with_default_context())
    return add_tier_memory(deployment, memory) if deployment.recipe.tiers.ram_gib else memory


@functools.cache
def load_engine(name: str) -> Engine:
    """Import the engine called `name`; an outside package that lacks something required is bad input."""
    package = registry.find_engine(name).package
    unusable = f"engine {name!r} of {package} cannot be used"
    hint = f"`moebox doctor engine {name}` checks the package; docs/engines.md lists what it needs"
    try:
        engine = importlib.import_module(f"{package}.engine").ENGINE
    except IMPORT_ERRORS as problem:
        reason = " ".join(str(problem).split())[:200]
        raise BadInput(f"{unusable}: {type(problem).__name__}: {reason}", hint=hint) from problem
    known = {*dir(engine)}  # hasattr would compute every property: a plan needs no log patterns
    if missing := [member for member in MEMBERS if member not in known and not hasattr(engine, member)]:
        raise BadInput(f"{unusable}: its ENGINE has no {', '.join(missing)}", hint=hint)
    return cast(Engine, engine)
