"""Names of the checks, and the options of a verify run. Importing this module loads no check."""

from dataclasses import dataclass
from typing import Literal

# Every check in the order in which it runs. checks/__init__.py compares this list with the checks at import.
CHECK_NAMES: tuple[str, ...] = (
    *("alive", "plain", "streaming", "prompts", "arithmetic", "code", "json", "thinking", "tools", "agents"),
    *("sampling", "long-context", "cache", "concurrency", "limits", "errors", "vision", "anthropic"),
)
VerifyEffort = Literal["quick", "default", "thorough"]
TRIALS: dict[VerifyEffort, int] = {"quick": 4, "default": 12, "thorough": 36}
TIME_S: dict[VerifyEffort, float] = {"quick": 600.0, "default": 1800.0, "thorough": 7200.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How thorough a verify run is."""

    context: int | None = None  # tokens for the long-context check; None uses the limit that the server reports
    depths: tuple[float, ...] = (0.02, 0.15, 0.35, 0.5, 0.7, 0.98)  # positions of the needles in the long text
    trials: int = TRIALS["default"]  # of each kind of request; after a failure, up to `patience` times as many
    patience: int = 3
    parallel: int = 8  # concurrent requests
    thinking: Literal["auto", "yes", "no"] = "auto"  # whether the model must think when asked to
    vision: Literal["auto", "yes", "no"] = "auto"  # whether the model must read pictures
    seed: int | None = None  # None draws fresh questions every time
    deadline_s: float = 300.0  # of one request
    time_s: float = TIME_S["default"]  # of the whole run

    def trial_share(self, part: float, least: int = 2) -> int:
        """Number of trials for a probe that needs only `part` of them."""
        return max(least, round(self.trials * part))
