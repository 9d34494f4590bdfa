"""Parameters of a benchmark: workload, load and SLO."""

from dataclasses import dataclass, field
from typing import Literal

WorkloadKind = Literal["random", "code", "prompts", "turns", "prefix", "trace"]
Api = Literal["chat", "completions"]
Arrivals = Literal["poisson", "constant"]
SearchAxis = Literal["concurrency", "rate"]  # which is varied in a search for the highest load


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of a benchmark.

    Prompts are derived from `seed`, `salt` and a request's number. A measurement draws a salt if the workload has none,
    so that no prompt is ever sent twice and no prefix cache helps the model; `reuse_prompts` turns that off.
    """

    kind: WorkloadKind = "random"
    input_tokens: int = 256
    output_tokens: int = 100
    file: str = ""  # prompts or trace
    turns: int = 1
    think_s: float = 0.0  # between a reply and the next turn
    prefix_tokens: int = 0  # shared by every request of a group, or by the first turns of all conversations
    prefixes: int = 1  # how many groups
    seed: int = 0
    salt: str = ""  # random for each measurement
    reuse_prompts: bool = False  # the same seed sends the same prompts
    api: Api = "chat"
    ignore_eos: bool = True  # request exactly output_tokens if the engine supports it
    extra: dict[str, object] = field(default_factory=dict)  # merged into every request's body

    @property
    def has_unique_prompts(self) -> bool:
        """No two prompts have a common beginning, so that a prefix cache does not help."""
        return self.kind in ("random", "code")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How requests are sent, whatever their number."""

    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0  # shape of the gamma distribution of gaps: 1 is Poisson, below 1 burstier
    duration_s: float = 0.0  # no new request after this; 0: no limit
    ramp_s: float = 0.0  # lanes start, or the rate grows, over this long
    timeout_s: float = 7200.0  # for one whole request
    stall_s: float = 1800.0  # without a single byte
    workers: int = 0  # processes; 0: chosen automatically


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(LoadSettings):
    """A closed loop of `concurrency` lanes, or an open loop at `rate` requests per second."""

    concurrency: int = 0  # lanes; with a rate, the most requests in flight (0: no limit)
    rate: float = 0.0  # 0: closed loop
    requests: int = 0  # 0: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The limits of a good request, in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None  # the longest gap of the request
    e2e_s: float | None = None
    share: float = 0.9  # of requests that must be good in a search for the highest load
