"""Defaults for whatever an engine's package omits."""

from moebox.core import registry
from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine, Memory, PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.engines.events import log_pattern
from moebox.engines.flags import Argument
from moebox.engines.refusals import common_refusals

HYBRID_FIELDS: dict[str, str] = {}
VARIABLES: dict[str, str] = {}
PATTERNS = (  # common messages of servers
    log_pattern(r"Application startup complete|Uvicorn running on|listening on http", "ready", "ready"),
    log_pattern(r"out of memory|OutOfMemoryError|[Aa]ddress already in use", "error"),
)
DEFAULT_MAX_SEQS = 64
PROMPTS_FIRST = False
RESERVES_OUTPUT = False
SCHEDULES_AHEAD = False
EVEN_ROUTING: dict[str, str] = {}
DUMMY_FLAGS: dict[str, Flag] = {}


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """No arguments: the engine has no drafts."""
    return []


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables of the recipe alone."""
    return dict(deployment.recipe.env)


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return `argv` unchanged: the engine reads its key from Traits.key_env."""
    return argv


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every device's parts, without formulas."""
    rows = [(f"{device.device}: {name}", size) for device in memory.devices for name, size in device.weights.items()]
    rows += [(f"{device.device}: cache", device.kv) for device in memory.devices if device.kv]
    return tuple(ArithmeticLine(what=what, formula="", value=size, unit="B") for what, size in rows)


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """No reasons."""
    return []


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens that one step may read: the recipe's, or the engine's default."""
    return recipe.batched_tokens or registry.engine_traits(recipe.engine).step_tokens


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Refusals that hold for every engine."""
    return common_refusals(deployment)


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """No flags: the engine cannot generate weights."""
    return {}
