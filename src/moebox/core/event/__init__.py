"""Events of a run's journal: a type for each kind of thing that happens, written and read back as the same type.

In events.jsonl an event stands as `{"time": …, "kind": "attempt.ready", "data": {…}}`; the kind is the type's tag.
Every field has a default, so that journals of other versions read as far as the two agree; a kind nobody knows is
`Unknown`.
"""

from collections.abc import Mapping
from typing import get_args

import msgspec

from moebox.core.event.base import Event, JournalLost, Unknown
from moebox.core.event.climb import (
    ClimbAgain,
    ClimbBegan,
    ClimbDropped,
    ClimbKept,
    ClimbPassedOver,
    ClimbResumed,
    ClimbStep,
    ClimbTry,
    ClimbUnsure,
)
from moebox.core.event.engine import (
    AttemptEnded,
    AttemptFailed,
    AttemptReady,
    AttemptStarted,
    AttemptStopped,
    EngineDetached,
    EngineDied,
    EngineFactsSaid,
    EngineFinding,
    EngineStopped,
    Failed,
    NodeFacts,
    NodesProbed,
    NodesReached,
    PhaseDone,
    PhaseStarted,
    PlannedAndReal,
    PlanReality,
    ProgramStarted,
    RemedyApplied,
    Stopped,
)
from moebox.core.event.pipeline import (
    STEP_EVENTS,
    EngineLost,
    PipelineBegan,
    PipelineResumed,
    PipelineSlept,
    StepDone,
    StepEvent,
    StepFailed,
    StepRunning,
    StepSkipped,
    StepState,
    StepWaiting,
)
from moebox.core.event.work import (
    CalibrateFinished,
    CalibrateNote,
    CalibrateStarted,
    KernelsJudged,
    LevelBegan,
    LevelDone,
    LevelSlept,
    MeasurementDamaged,
    RehearsalStep,
    RehearseFinished,
    RehearseStarted,
    RungDone,
    ServerMeasured,
    TaskBegan,
    TaskEnded,
    VerifyBegan,
    VerifyEnded,
)
from moebox.loose import Json

__all__ = [
    "KINDS",
    "STEP_EVENTS",
    "AttemptEnded",
    "AttemptFailed",
    "AttemptReady",
    "AttemptStarted",
    "AttemptStopped",
    "CalibrateFinished",
    "CalibrateNote",
    "CalibrateStarted",
    "ClimbAgain",
    "ClimbBegan",
    "ClimbDropped",
    "ClimbKept",
    "ClimbPassedOver",
    "ClimbResumed",
    "ClimbStep",
    "ClimbTry",
    "ClimbUnsure",
    "EngineDetached",
    "EngineDied",
    "EngineFactsSaid",
    "EngineFinding",
    "EngineLost",
    "EngineStopped",
    "Event",
    "Failed",
    "JournalLost",
    "KernelsJudged",
    "Known",
    "LevelBegan",
    "LevelDone",
    "LevelSlept",
    "MeasurementDamaged",
    "NodeFacts",
    "NodesProbed",
    "NodesReached",
    "PhaseDone",
    "PhaseStarted",
    "PipelineBegan",
    "PipelineResumed",
    "PipelineSlept",
    "PlanReality",
    "PlannedAndReal",
    "ProgramStarted",
    "RehearsalStep",
    "RehearseFinished",
    "RehearseStarted",
    "RemedyApplied",
    "RungDone",
    "ServerMeasured",
    "StepDone",
    "StepEvent",
    "StepFailed",
    "StepRunning",
    "StepSkipped",
    "StepState",
    "StepWaiting",
    "Stopped",
    "TaskBegan",
    "TaskEnded",
    "Unknown",
    "VerifyBegan",
    "VerifyEnded",
    "event_of",
    "renamed",
    "simulated",
]

Known = (
    AttemptStarted
    | AttemptReady
    | AttemptFailed
    | AttemptStopped
    | AttemptEnded
    | EngineDied
    | EngineStopped
    | EngineFinding
    | EngineFactsSaid
    | PhaseStarted
    | PhaseDone
    | EngineDetached
    | ProgramStarted
    | NodesProbed
    | NodesReached
    | RemedyApplied
    | PlanReality
    | PipelineBegan
    | PipelineResumed
    | PipelineSlept
    | EngineLost
    | StepWaiting
    | StepRunning
    | StepDone
    | StepFailed
    | StepSkipped
    | VerifyBegan
    | RungDone
    | VerifyEnded
    | LevelBegan
    | LevelDone
    | LevelSlept
    | MeasurementDamaged
    | ServerMeasured
    | TaskBegan
    | TaskEnded
    | RehearseStarted
    | RehearseFinished
    | CalibrateStarted
    | CalibrateNote
    | CalibrateFinished
    | KernelsJudged
    | ClimbBegan
    | ClimbResumed
    | ClimbPassedOver
    | ClimbTry
    | ClimbAgain
    | ClimbUnsure
    | ClimbKept
    | ClimbDropped
    | JournalLost
)
KINDS: Mapping[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Known)}
EARLIER = {"story.": "pipeline.", "climb.step": "climb.kept"}  # how kinds began before they were renamed


def event_of(kind: str, data: Json) -> Event:
    """The event of a journal's line; a field that is not what it should be reads as its default."""
    known = KINDS.get(renamed(kind))
    if known is None:
        return Unknown(name=kind, fields=data)
    try:
        return msgspec.convert({**data, "kind": known.__struct_config__.tag}, known)
    except msgspec.ValidationError:
        return known(**_readable(known, data))


def renamed(kind: str) -> str:
    """The kind's name of today."""
    for before, now in EARLIER.items():
        if kind.startswith(before):
            return now + kind.removeprefix(before)
    return kind


def _readable(known: type[Event], data: Json) -> dict[str, object]:
    fields: dict[str, object] = {}
    for field in msgspec.structs.fields(known):
        if field.name not in data:
            continue
        try:
            fields[field.name] = msgspec.convert(data[field.name], field.type)
        except msgspec.ValidationError:
            continue
    return fields


def simulated(event: Event) -> bool:
    """Whether it says that a twin stood for the engine."""
    if isinstance(event, Unknown):
        return True in (event.fields.get("simulation"), event.fields.get("simulated"))
    return isinstance(event, PipelineBegan) and event.simulation
