"""A plan: a recipe with its reasons, memory, forecast, warnings and alternatives; and a launch command."""

from dataclasses import dataclass, field
from typing import Literal

from moebox.core.model import Component
from moebox.core.recipe import Recipe

Goal = Literal["throughput", "latency", "context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device by use; the parts sum to `total`."""

    device: str  # "gpu0" … or "ram"
    total: int
    weights: dict[Component, int]
    draft: int = 0
    kv: int = 0
    activations: int = 0  # activations, graphs, workspaces
    overhead: int = 0  # context, NCCL, the engine itself, memory beyond the utilization setting
    free: int = 0

    @property
    def weights_total(self) -> int:
        return sum(self.weights.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of every device, and the tokens that the cache holds."""

    devices: tuple[DeviceMemory, ...]
    kv_tokens: int
    kv_bytes_per_token: int
    fits: bool
    shortfall: int = 0  # bytes missing on the worst device
    sequence_tokens: int = 0  # room, in tokens, of what each sequence keeps besides its context: states and windows
    counted_tokens: int = 0  # the same with steps in flight, as `kv_tokens` counts each sequence
    lines: tuple["ArithmeticLine", ...] = ()

    @property
    def counts_steps(self) -> bool:
        """True if `kv_tokens`, as the engine's log has it, counts each sequence as if it were reading its prompt."""
        return self.counted_tokens > self.sequence_tokens

    def pool_tokens(self, context: int) -> int:
        """Room for contexts and `sequence_tokens` together, if `kv_tokens` counts sequences of `context`."""
        return self.kv_tokens * (context + self.counted_tokens) // max(context, 1)

    def held_sequences(self, length: int, context: int) -> int:
        """Sequences of `length` tokens that the cache holds."""
        return self.pool_tokens(context) // max(length + self.sequence_tokens, 1)


NO_MEMORY = Memory(devices=(), kv_tokens=0, kv_bytes_per_token=0, fits=True)  # of a run without a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticLine:
    """One line of arithmetic that a reader can check with a calculator."""

    what: str
    formula: str
    value: float
    unit: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """A known issue that applies to this recipe on this box."""

    symptom: str = ""  # id in the symptom base, if it has one
    text: str
    remedy: str = ""
    severity: Literal["note", "warning", "fatal"] = "warning"
    source: str = ""

    @property
    def text_with_remedy(self) -> str:
        return f"{self.text} ({self.remedy})" if self.remedy else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected speed of one load, with its range."""

    context: int
    concurrency: int
    decode_tok_s: float
    low_tok_s: float
    high_tok_s: float
    prefill_tok_s: float = 0.0
    prefill_low_tok_s: float = 0.0
    prefill_high_tok_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up or rejected candidate, and its disadvantage."""

    title: str
    recipe: Recipe
    decode_tok_s: float  # at as many streams as its cache holds
    answer_tok_s: float = 0.0  # for comparison: requests of 4,096 prompt and 1,024 answer tokens
    kv_tokens: int
    loses: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The chosen recipe, and the reasons."""

    recipe: Recipe
    box: str
    goal: Goal
    memory: Memory
    forecast: tuple[Forecast, ...]
    reasons: tuple[str, ...]
    warnings: tuple[PlanWarning, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  # rejected candidates, with the reason
    why: tuple[ArithmeticLine, ...] = ()
    answer_tok_s: float = 0.0  # for comparison with the alternatives
    measured: str = ""  # the calibration behind the forecast; "" if it is fitted to published rows
    basis: str = ""  # the published rows behind the range of decoding
    tiers: str = ""  # what tiers below the KV cache hold, set or possible
    prompt_basis: str = ""  # the same of prompts
    starts: str = ""  # what is known of its start, in short
    is_reported: bool = True  # there is a report of such a setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The command that starts an engine; printed, it can be run by hand."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    secret_env: dict[str, str] = field(default_factory=dict)  # engine's variable -> caller's; values are never shown
    image: str = ""
    mounts: dict[str, str] = field(default_factory=dict)
    port: int = 8000
    host: str = "127.0.0.1"
