"""What is asked of an engine: lengths, how many requests, and how they come."""

import math
from dataclasses import dataclass
from typing import Literal

from moebox.errors import require_all

# Evenly spread draws that need no memory: multiples of irrational numbers, modulo 1.
DAY = 86_400  # seconds
GOLDEN, SILVER = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkload:
    """What is asked of the engine: lengths, how many, and how they come."""

    input: int
    output: int
    requests: int
    concurrency: int = 0  # requests at a time; 0: by rate
    rate: float = 0.0  # requests/s, Poisson; 0: by concurrency
    lengths: Literal["fixed", "uniform"] = "fixed"  # uniform: 1 … the length, as SGLang's benchmark draws by default
    prefix_hit: float = 0.0  # share of a prompt that lies in the prefix cache
    warm: int | None = None  # how many of the first requests have that; None: all
    turns: int = 1  # of a conversation: each goes on from the one before, which lies in the prefix cache
    think_s: float = 0.0  # between the end of a turn and the next: tools at work, a person reading
    spacing_s: float = 0.0  # between two requests of the first burst: how fast the client sends
    cold_s: float = 0.0  # the first step takes so much longer: kernels that are compiled at first use
    prefill_engines: int = 0  # engines of their own that read prompts and hand the cache over; 0: the same engine
    seed: int = 1

    def request_lengths(self, number: int) -> tuple[int, int]:
        """Prompt and output tokens of request `number`."""
        if self.lengths == "fixed":
            return self.input, self.output
        shift = number + self.seed * 0.5
        return 1 + int(shift * GOLDEN % 1 * self.input), 1 + int(shift * SILVER % 1 * self.output)

    def validate(self) -> None:
        """Raise BadInput for what cannot be meant."""
        waits = self.turns == 1 or not self.rate
        require_all(
            "",
            {
                "input, output and requests must be 1 or more": min(self.input, self.output, self.requests) >= 1,
                "give either a concurrency or a request rate": (self.concurrency > 0) != (self.rate > 0),
                f"a prefix hit of {self.prefix_hit} is not a share between 0 and 1": 0 <= self.prefix_hit <= 1,
                f"{self.turns} turns of a conversation: write at least 1": 1 <= self.turns <= 10_000,
                "conversations need a concurrency, not a rate: the next turn waits for the one before": waits,
                "--think is seconds from 0 to a day": 0 <= self.think_s <= DAY,
                "--cold is seconds from 0 to a day": 0 <= self.cold_s <= DAY,
            },
        )
