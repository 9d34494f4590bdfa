"""Events of a climb: one setting at a time."""

from msgspec import field

from moebox.core.event.base import Event
from moebox.core.gain import Gain
from moebox.core.recipe import Flag
from moebox.core.verdict import Mark


class ClimbBegan(Event, tag="climb.begin", frozen=True):
    """From this recipe."""

    recipe: str = ""


class ClimbResumed(Event, tag="climb.resumed", frozen=True):
    """So many steps were done before."""

    steps: int = 0


class ClimbSkipped(Event, tag="climb.passed_over", frozen=True):
    """A step that is not tried."""

    change: str = ""
    why: str = ""


class ClimbTried(Event, tag="climb.try", frozen=True):
    """A step begins; `boot` names this start of the machine, to know a step that took it down."""

    change: str = ""
    boot: str = ""


class ClimbRetried(Event, tag="climb.again", frozen=True):
    """A step was spoilt and is tried again."""

    change: str = ""
    why: str = ""


class ClimbInconclusive(Event, tag="climb.unsure", frozen=True):
    """A step could not be told from the machine's own drift."""

    change: str = ""
    why: str = ""


class ClimbStep(Event, frozen=True):
    """A step's result: the columns of the climb's table."""

    number: int = 0
    change: str = ""
    path: str = ""
    value: Flag | None = None
    verdict: Mark = "skip"
    kept: bool = False
    why: str = ""
    output_tok_s: float = 0.0
    ttft_ms: float = 0.0
    kv_tokens: int = 0
    gain: Gain | None = None
    right: int = 0
    asked: int = 0
    same: int = 0
    acceptance: float | None = None
    rungs: dict[str, Mark] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""


class ClimbKept(ClimbStep, tag="climb.kept", frozen=True):
    """It is verified and better."""


class ClimbDropped(ClimbStep, tag="climb.dropped", frozen=True):
    """It is not."""
