"""How hard to look."""

from dataclasses import dataclass
from typing import Literal

VerifyEffort = Literal["quick", "default", "thorough"]
TRIALS: dict[VerifyEffort, int] = {"quick": 4, "default": 12, "thorough": 36}
TIME_S: dict[VerifyEffort, float] = {"quick": 600.0, "default": 1800.0, "thorough": 7200.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How hard to look."""

    context: int | None = None  # tokens for the long-context rung; None asks the server for its limit
    depths: tuple[float, ...] = (0.02, 0.15, 0.35, 0.5, 0.7, 0.98)  # where in that length something is hidden
    trials: int = TRIALS["default"]  # of each kind of request; a slip buys up to `patience` times as many
    patience: int = 3
    parallel: int = 8  # requests at once
    thinking: Literal["auto", "yes", "no"] = "auto"  # whether the model must think when asked to
    vision: Literal["auto", "yes", "no"] = "auto"  # whether the model must read pictures
    seed: int | None = None  # None: fresh questions every time
    deadline_s: float = 300.0  # for one request
    time_s: float = TIME_S["default"]  # for the whole ladder

    def trial_share(self, part: float, least: int = 2) -> int:
        """Trials of something that needs only a part of them."""
        return max(least, round(self.trials * part))
