"""How much a climb measures at each step; stored with the climb, because its steps are compared."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from moebox import codec
from moebox.errors import refuse_if
from moebox.flows.pace import SpeedRounds, measure_speed
from moebox.loose import Json
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

    @property
    def by(self) -> str:
        """What decides on a step besides its speed."""
        return "task" if self.jobs else "answers"


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


def effort_from(measures: Json, *, where: str) -> ClimbEffort:
    """Parse measures; defaults for the rest."""
    return ClimbEffort(**dataclasses.asdict(codec.decode(ClimbMeasures, measures, where=where)))


def save_effort(effort: ClimbEffort, run: Run) -> None:
    names = [field.name for field in dataclasses.fields(ClimbMeasures)]
    run.write_file(EFFORT_FILE, codec.to_toml({name: getattr(effort, name) for name in names}))


def load_effort(run: Run) -> ClimbEffort | None:
    """The effort of a climb, or None if an earlier moebox did not store it."""
    path = run.path / EFFORT_FILE
    return effort_from(codec.load_toml(path), where=str(path)) if path.exists() else None


def refuse_contradiction(effort: ClimbEffort, given: Json, run: Run) -> None:
    """Raise BadInput for a flag that differs from the effort of a resumed climb."""
    for flag, value in given.items():
        begun = getattr(effort, flag)
        hint = f"leave --{flag} out; `moebox climb RECIPE` begins another climb"
        refuse_if(value != begun, f"--{flag} {value}: {run.id} was begun with {begun}", hint=hint)
