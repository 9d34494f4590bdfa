"""Names of the checks, and the options of a verify run. Importing this module loads no check."""

from dataclasses import dataclass
from typing import Literal

from moebox.core.setting import Effort
from moebox.errors import refuse_if, refuse_out_of_range

# Every check in the order in which it runs. checks/__init__.py compares this list with the checks at import.
CHECK_NAMES: tuple[str, ...] = (
    *("alive", "plain", "streaming", "prompts", "arithmetic", "code", "json", "thinking", "tools", "agents"),
    *("sampling", "long-context", "cache", "routes", "concurrency", "limits", "errors", "vision", "anthropic"),
    *("responses", "combinations", "trends"),
)
LEFT_OUT = "left out by --effort quick"  # the reason of a probe that was not tried
TRIALS: dict[Effort, int] = {"quick": 4, "normal": 8, "thorough": 48}
TIME_S: dict[Effort, float] = {"quick": 600.0, "normal": 1800.0, "thorough": 7200.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How thorough a verify run is."""

    context: int | None = None  # tokens for the long-context check; None uses the limit that the server reports
    depths: tuple[float, ...] = (0.02, 0.15, 0.35, 0.5, 0.7, 0.98)  # positions of the needles in the long text
    trials: int = TRIALS["normal"]  # of each kind of request; after a failure, up to `patience` times as many
    patience: int = 3
    brief: bool = False  # leave out the probes of `not_quick` in check_requests.toml, and shorten some others
    parallel: int = 8  # concurrent requests
    conversations: int = 0  # that fill the cache and come back; 0: a third of the trials
    prefix_tokens: int = 280  # of each of these conversations
    cache_tokens: int = 0  # that the KV cache and its tiers hold; if all conversations fit, each return must be cached
    thinking: Literal["auto", "yes", "no"] = "auto"  # whether the model must think when asked to
    vision: Literal["auto", "yes", "no"] = "auto"  # whether the model must read pictures
    seed: int | None = None  # None draws fresh questions every time
    deadline_s: float = 300.0  # of one request
    time_s: float = TIME_S["normal"]  # of the whole run

    @property
    def effort(self) -> Effort:
        """The highest effort that makes no more trials."""
        return next((effort for effort in ("thorough", "normal") if self.trials >= TRIALS[effort]), "quick")

    def validate(self) -> None:
        refuse_out_of_range("--set trials", self.trials, 1, 1000)
        refuse_out_of_range("--set parallel", self.parallel, 1, 1024)
        refuse_out_of_range("--set conversations", self.conversations, 0, 10_000)
        refuse_out_of_range("--set prefix_tokens", self.prefix_tokens, 100, 1_000_000)
        refuse_if(min(self.deadline_s, self.time_s) < 1, "deadline_s and time_s must be a second or more")

    def trial_share(self, part: float, least: int = 2) -> int:
        """Number of trials for a probe that needs only `part` of them, `least` unless the run is brief."""
        return max(1 if self.brief else least, round(self.trials * part))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings(VerifyOptions):
    """The options, and how the command ends."""

    keep_going: bool = False  # after a failure that makes later checks meaningless
    strict: bool = False  # exit code 1 for warnings too


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVerifySettings(VerifyOptions):
    """The options, and the load of a fleet whose member is killed."""

    streams: int = 64  # in flight when a member is killed
