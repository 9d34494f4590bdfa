"""What is asked of an endpoint, how hard, and what must hold: the words of a benchmark."""

from dataclasses import dataclass, field
from typing import Literal

WorkloadKind = Literal["random", "code", "prompts", "turns", "prefix", "trace"]
Api = Literal["chat", "completions"]
Arrivals = Literal["poisson", "constant"]
SearchAxis = Literal["concurrency", "rate"]  # along which a load is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked.

    Prompts follow from `seed`, `salt` and a request's number. A measurement whose workload has no salt draws one, so
    that no prompt is ever asked twice and no prefix cache answers for the model; `reuse_prompts` leaves it out.
    """

    kind: WorkloadKind = "random"
    input_tokens: int = 256
    output_tokens: int = 100
    file: str = ""  # prompts or trace
    turns: int = 1
    think_s: float = 0.0  # between a reply and the next turn
    prefix_tokens: int = 0  # shared by every request of a group
    prefixes: int = 1  # how many groups
    seed: int = 0
    salt: str = ""  # drawn for each measurement
    reuse_prompts: bool = False  # the same seed asks the same again
    api: Api = "chat"
    ignore_eos: bool = True  # ask for exactly output_tokens where the engine can be told to
    extra: dict[str, object] = field(default_factory=dict)  # merged into every request's body

    @property
    def has_unique_prompts(self) -> bool:
        """No two of its prompts begin alike, so a prefix cache has nothing to answer from."""
        return self.kind in ("random", "code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How hard it is driven: a closed loop of `concurrency` lanes, or an open one at `rate` requests a second."""

    concurrency: int = 0  # lanes; with a rate, the most in flight (0 is no limit)
    rate: float = 0.0  # 0 is a closed loop
    arrivals: Arrivals = "poisson"
    burstiness: float = 1.0  # shape of the gamma distribution of gaps: 1 is Poisson, below 1 burstier
    requests: int = 0  # 0 is no limit
    duration_s: float = 0.0  # no new request after this; 0 is no limit
    ramp_s: float = 0.0  # lanes start, or the rate grows, over this long
    timeout_s: float = 7200.0  # for one whole request
    stall_s: float = 1800.0  # without a single byte
    workers: int = 0  # processes; 0 chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a good request keeps to, in seconds; None is not asked."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None  # the worst gap of the request
    e2e_s: float | None = None
    share: float = 0.9  # of requests that must be good when searching for the highest load
