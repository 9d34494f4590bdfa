"""How much a climb measures at each step; stored with the climb, because its steps are compared."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from moebox import codec
from moebox.core.setting import apply_settings, setting_flags
from moebox.errors import BadInput, refuse_if, refuse_out_of_range
from moebox.flows.pace import SpeedRounds, measure_speed
from moebox.quality.judge import DEFAULT_LIMIT
from moebox.quality.reference import read_reference
from moebox.serve import session
from moebox.store import Run

EFFORT_FILE = "effort.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbMeasures:
    """Settings that must be the same at every step."""

    concurrency: int = 4
    rounds: int = 5
    tokens: int = 128
    questions: int = 20
    jobs: int = 0  # for an agent at each step; 0 if work is not judged
    trials: int = 10
    parallel: int = 8
    depths: tuple[float, ...] = (0.02, 0.5, 0.98)
    quality_limit: float = 0.0  # nats farther from the reference than the first step; 0 if quality is not judged
    reference: str = ""  # a file of `moebox quality --save`; "": the first step is the reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbEffort(ClimbMeasures):
    """The measures, and how they are taken this time."""

    first_checks: tuple[str, ...] = ()  # of the first step; all if empty
    patience_s: float = session.PATIENCE_S
    measure_speed: Callable[..., SpeedRounds] = measure_speed


# For `moebox run`, which has just verified the engine, so the first step needs few checks.
NORMAL_CLIMB = ClimbEffort(first_checks=("alive", "plain"))
SHORT_CLIMB = ClimbEffort(
    rounds=3, questions=8, tokens=48, trials=4, concurrency=2, depths=(0.5,), first_checks=("alive",)
)


def parse_effort(settings: Sequence[str], run: Run | None = None, usual: ClimbMeasures | None = None) -> ClimbEffort:
    """The effort of `--set` over `usual`. A resumed climb keeps its own: raise BadInput if a setting contradicts it."""
    path = run.path / EFFORT_FILE if run else None
    stored = codec.read_toml(ClimbMeasures, path) if path and path.exists() else None
    chosen = apply_settings(stored or usual or ClimbMeasures(), settings)
    for name, low, high in (("concurrency", 1, 256), ("rounds", 2, 100), ("questions", 0, 1000), ("jobs", 0, 1000)):
        refuse_out_of_range(f"--set {name}", getattr(chosen, name), low, high)
    chosen = dataclasses.replace(chosen, quality_limit=parse_limit(chosen.quality_limit, chosen.reference))
    if run and stored and chosen != stored:
        changed = setting_flags(chosen, stored)[1]
        begun = getattr(stored, changed.partition("=")[0])
        hint = "leave it out, because steps are compared with those before; without --resume another run begins"
        raise BadInput(f"--set {changed}: {run.id} was begun with {begun}", hint=hint)
    return ClimbEffort(**dataclasses.asdict(chosen))


def parse_limit(limit: float, reference: str) -> float:
    """The quality limit of `--set`, DEFAULT_LIMIT if only a reference is given. Raise BadInput for an invalid one."""
    good = 0 <= limit <= 10
    refuse_if(not good, f"--set quality_limit={limit:g}: must be from 0 to 10 nats", hint="such as quality_limit=0.02")
    if reference:
        read_reference(Path(reference))
    return limit or (DEFAULT_LIMIT if reference else 0.0)


def save_effort(effort: ClimbEffort, run: Run) -> None:
    names = [field.name for field in dataclasses.fields(ClimbMeasures)]
    run.write_file(EFFORT_FILE, codec.to_toml({name: getattr(effort, name) for name in names}))
