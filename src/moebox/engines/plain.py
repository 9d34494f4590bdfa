"""What is assumed of an engine whose package leaves out a module."""

from moebox.core import registry
from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import ArithmeticLine, Memory, PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.engines import common
from moebox.engines.events import LogEvent, log_pattern, match_line

PATTERNS = (
    log_pattern(r"Application startup complete|Uvicorn running on|listening on http", "ready", "ready"),
    log_pattern(r"out of memory|OutOfMemoryError|[Aa]ddress already in use", "error"),
)
DEFAULT_MAX_SEQS = 64
PROMPTS_FIRST = False
RESERVES_OUTPUT = False
SCHEDULES_AHEAD = False
EVEN_ROUTING: dict[str, str] = {}
DUMMY_FLAGS: dict[str, Flag] = {}


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read."""
    return recipe.batched_tokens or registry.engine_traits(recipe.engine).step_tokens


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """What holds for every engine."""
    return common.common_refusals(deployment)


def dummy_weight_flags(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """No way to invent weights is known."""
    return {}


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Nothing of its own is known."""
    return []


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every device's parts, without formulas."""
    rows = [(f"{device.device}: {name}", size) for device in memory.devices for name, size in device.weights.items()]
    rows += [(f"{device.device}: cache", device.kv) for device in memory.devices if device.kv]
    return tuple(ArithmeticLine(what=what, formula="", value=size, unit="B") for what, size in rows)
