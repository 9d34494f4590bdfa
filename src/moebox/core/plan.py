"""A plan: a recipe with its reasons, memory, forecast, warnings and runners-up; and a launch."""

from dataclasses import dataclass, field
from typing import Literal

from moebox.core.model import Component
from moebox.core.recipe import Recipe

Goal = Literal["throughput", "latency", "context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Where one device's bytes go; the parts sum to `total`."""

    device: str  # "gpu0" … or "ram"
    total: int
    weights: dict[Component, int]
    draft: int = 0
    kv: int = 0
    activations: int = 0  # activations, graphs, workspaces
    overhead: int = 0  # context, NCCL, the engine itself, what the utilisation setting leaves out
    free: int = 0

    @property
    def weights_total(self) -> int:
        """All weights on this device."""
        return sum(self.weights.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The budget of every device, and how many tokens the cache holds."""

    devices: tuple[DeviceMemory, ...]
    kv_tokens: int
    kv_bytes_per_token: int
    fits: bool
    shortfall: int = 0  # bytes missing on the worst device
    lines: tuple["ArithmeticLine", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticLine:
    """One line of arithmetic a person can check with a calculator."""

    what: str
    formula: str
    value: float
    unit: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """A known trouble that applies to this recipe on this box."""

    symptom: str  # id in the symptom base, or ""
    text: str
    remedy: str = ""
    severity: Literal["note", "warning", "fatal"] = "warning"
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one setting is expected to do, with its band."""

    context: int
    concurrency: int
    decode_tok_s: float
    low_tok_s: float
    high_tok_s: float
    prefill_tok_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up, or what was refused, and what it would lose."""

    title: str
    recipe: Recipe
    decode_tok_s: float  # at the streams that its cache holds
    answer_tok_s: float = 0.0  # the yardstick: requests of 4,096 and 1,024 tokens, read and answered together
    kv_tokens: int
    loses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The recipe that was chosen, and why."""

    recipe: Recipe
    box: str
    goal: Goal
    memory: Memory
    forecast: tuple[Forecast, ...]
    reasons: tuple[str, ...]
    warnings: tuple[PlanWarning, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  # what was dropped, and why
    why: tuple[ArithmeticLine, ...] = ()
    answer_tok_s: float = 0.0  # by the yardstick of the alternatives
    measured: str = ""  # the calibration behind the forecast, in one line; "" where it is fitted to published rows
    basis: str = ""  # what the forecast's band rests on where it is fitted, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is run: printing it is enough to run it."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secret_env: dict[str, str] = field(default_factory=dict)  # engine's variable <- caller's; values are never shown
    image: str = ""
    mounts: dict[str, str] = field(default_factory=dict)
    port: int = 8000
    host: str = "127.0.0.1"
    rank: int = 0  # node rank on multi-node launches
