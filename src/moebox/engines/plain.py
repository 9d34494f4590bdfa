"""What is assumed of an engine whose package leaves out a module."""

from moebox.core import registry
from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import Caution, Line, Memory
from moebox.core.recipe import Flag, Recipe
from moebox.engines import common
from moebox.engines.events import Event, read, sign

SIGNS = (
    sign(r"Application startup complete|Uvicorn running on|listening on http", "ready", "ready"),
    sign(r"out of memory|OutOfMemoryError|[Aa]ddress already in use", "error"),
)
SEQUENCES = 64
PROMPTS_FIRST = False
RESERVES = False
AHEAD = False
EVEN_ROUTING: dict[str, str] = {}
INVENTED: dict[str, Flag] = {}


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)


def step_tokens(recipe: Recipe, gpu: Gpu | None = None) -> int:
    """Prompt tokens one step may read."""
    return recipe.batched_tokens or registry.traits(recipe.engine).step_tokens


def refusals(deployment: Deployment) -> list[Caution]:
    """What holds for every engine."""
    return common.everywhere(deployment)


def dummy(deployment: Deployment, layers: int) -> dict[str, Flag]:
    """No way to invent weights is known."""
    return {}


def reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Nothing of its own is known."""
    return []


def lines(deployment: Deployment, memory: Memory) -> tuple[Line, ...]:
    """Every device's parts, without formulas."""
    rows = [(f"{device.device}: {name}", size) for device in memory.devices for name, size in device.weights.items()]
    rows += [(f"{device.device}: cache", device.kv) for device in memory.devices if device.kv]
    return tuple(Line(what=what, formula="", value=size, unit="B") for what, size in rows)
