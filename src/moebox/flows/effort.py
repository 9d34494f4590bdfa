"""How much a climb measures at each step; kept beside its recipe, since its steps are compared with each other."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from moebox import codec
from moebox.errors import refuse_if
from moebox.flows.pace import Pace, pace
from moebox.loose import Json
from moebox.serve import session
from moebox.store import Run

FILE = "effort.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What must be the same at every step."""

    concurrency: int = 4
    rounds: int = 5
    tokens: int = 128
    questions: int = 20
    jobs: int = 0  # done by an agent at each step; none where the work is not to be judged
    trials: int = 10
    parallel: int = 8
    depths: tuple[float, ...] = (0.02, 0.5, 0.98)

    @property
    def by(self) -> str:
        """What a step is judged by, beside its speed."""
        return "task" if self.jobs else "answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort(Measures):
    """The same, and how it is done this time."""

    first: tuple[str, ...] = ()  # rungs of the first step; all when empty, few when it was verified just before
    patience_s: float = session.PATIENCE_S
    pace: Callable[..., Pace] = pace  # how speed is measured


# Those of `moebox run`: it was verified just before, so the first step looks at little.
CLIMB = Effort(first=("alive", "plain"))
SHORT_CLIMB = Effort(rounds=3, questions=8, tokens=48, trials=4, concurrency=2, depths=(0.5,), first=("alive",))


def effort_by(measures: Json, *, where: str) -> Effort:
    """With these measures, and the usual ones for the rest."""
    return Effort(**dataclasses.asdict(codec.decode(Measures, measures, where=where)))


def keep(effort: Effort, run: Run) -> None:
    """Write the measures of a climb that begins."""
    names = [field.name for field in dataclasses.fields(Measures)]
    run.write(FILE, codec.to_toml({name: getattr(effort, name) for name in names}))


def effort_of(run: Run) -> Effort | None:
    """As a climb was begun; None where an earlier moebox began it and did not say."""
    path = run.path / FILE
    return effort_by(codec.load_toml(path), where=str(path)) if path.exists() else None


def refuse_contradiction(effort: Effort, given: Json, run: Run) -> None:
    """BadInput for a flag that says otherwise than the climb that is resumed."""
    for flag, value in given.items():
        begun = getattr(effort, flag)
        hint = f"leave --{flag} out; `moebox climb RECIPE` begins another climb"
        refuse_if(value != begun, f"--{flag} {value}: {run.id} was begun with {begun}", hint=hint)
