"""RAM whose bandwidth nobody gave: what the speed would be on the slowest and on the fastest platform that has RAM."""

from dataclasses import dataclass, replace

from moebox.core.box import Box
from moebox.planner.speed.host import RAM, HybridStep
from moebox.units import format_rate

# Two channels of DDR4-3200, and twelve of MRDIMM-8800: what one socket is sold with (JEDEC rates × 8 bytes a channel).
SLOWEST, FASTEST = 51.2e9, 844.8e9
PROMPT = 4096  # tokens of the prompt by which the range of prompt rates is told


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRam:
    """The same step with the guess, and with RAM at both ends of what is sold."""

    slow: HybridStep
    middle: HybridStep
    fast: HybridStep

    def range_factors(self, *, prompts: bool) -> tuple[float, float]:
        """How much slower and faster than forecast it may be for that reason alone."""
        slow, middle, fast = (_seconds(shared, prompts=prompts) for shared in (self.slow, self.middle, self.fast))
        return middle / slow, middle / fast

    @property
    def text(self) -> str:
        """What was guessed, and between what it may lie."""
        limits = f"from {format_rate(SLOWEST)} to {format_rate(FASTEST)}"
        return f"RAM at {format_rate(RAM)} is a guess: the band reaches {limits}"


def assumed_ram(box: Box, shared: HybridStep) -> AssumedRam | None:
    """The range of the guess; None where the rate is known, or nothing runs from RAM."""
    from_ram = shared.layers_in_ram or not box.gpus
    if box.ram_rate or box.has_unified_memory or not from_ram:
        return None
    slow, fast = (_with_ram(shared, bandwidth / RAM) for bandwidth in (SLOWEST, FASTEST))
    return AssumedRam(slow=slow, middle=shared, fast=fast)


def _with_ram(shared: HybridStep, times: float) -> HybridStep:
    return replace(shared, memory_rate=shared.memory_rate * times, host_copy=shared.host_copy * times)


def _seconds(shared: HybridStep, *, prompts: bool) -> float:
    parts = shared.prefill_parts(min(shared.ubatch, PROMPT), 0) if prompts else shared.decode_parts(1, 1024)
    return sum(parts.values())
