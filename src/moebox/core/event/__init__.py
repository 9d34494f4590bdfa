"""Events of a run's journal: a type for each kind of thing that happens, written and read back as the same type.

In events.jsonl an event stands as `{"time": …, "kind": "attempt.ready", "data": {…}}`; the kind is the type's tag.
Every field has a default, so that journals of other versions read as far as the two agree; a kind nobody knows is
`Unknown`.
"""

from collections.abc import Mapping
from typing import get_args

import msgspec

from moebox.core.event.base import Event, JournalLost, UnknownEvent
from moebox.core.event.climb import (
    ClimbBegan,
    ClimbDropped,
    ClimbInconclusive,
    ClimbKept,
    ClimbResumed,
    ClimbRetried,
    ClimbSkipped,
    ClimbStep,
    ClimbTried,
)
from moebox.core.event.engine import (
    AttemptEnded,
    AttemptFailed,
    AttemptReady,
    AttemptStarted,
    AttemptStopped,
    EngineDetached,
    EngineDied,
    EngineFinding,
    EngineStopped,
    FailureEvent,
    NodeFacts,
    NodesProbed,
    NodesReached,
    PhaseDone,
    PhaseStarted,
    PlanReality,
    PlanRealityRow,
    ProgramStarted,
    PublishedFacts,
    RemedyApplied,
    StopEvent,
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
    CheckDone,
    KernelsChecked,
    LoadBegan,
    LoadDone,
    LoadSlept,
    MeasurementDamaged,
    RehearsalStep,
    RehearseFinished,
    RehearseStarted,
    ServerMeasured,
    TaskBegan,
    TaskEnded,
    VerifyBegan,
    VerifyEnded,
)
from moebox.loose import Json

__all__ = [
    "EVENT_KINDS",
    "STEP_EVENTS",
    "AttemptEnded",
    "AttemptFailed",
    "AttemptReady",
    "AttemptStarted",
    "AttemptStopped",
    "CalibrateFinished",
    "CalibrateNote",
    "CalibrateStarted",
    "CheckDone",
    "ClimbBegan",
    "ClimbDropped",
    "ClimbInconclusive",
    "ClimbKept",
    "ClimbResumed",
    "ClimbRetried",
    "ClimbSkipped",
    "ClimbStep",
    "ClimbTried",
    "EngineDetached",
    "EngineDied",
    "EngineFinding",
    "EngineLost",
    "EngineStopped",
    "Event",
    "FailureEvent",
    "JournalLost",
    "KernelsChecked",
    "KnownEvent",
    "LoadBegan",
    "LoadDone",
    "LoadSlept",
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
    "PlanRealityRow",
    "ProgramStarted",
    "PublishedFacts",
    "RehearsalStep",
    "RehearseFinished",
    "RehearseStarted",
    "RemedyApplied",
    "ServerMeasured",
    "StepDone",
    "StepEvent",
    "StepFailed",
    "StepRunning",
    "StepSkipped",
    "StepState",
    "StepWaiting",
    "StopEvent",
    "TaskBegan",
    "TaskEnded",
    "UnknownEvent",
    "VerifyBegan",
    "VerifyEnded",
    "current_kind",
    "marks_simulation",
    "parse_event",
]

KnownEvent = (
    AttemptStarted
    | AttemptReady
    | AttemptFailed
    | AttemptStopped
    | AttemptEnded
    | EngineDied
    | EngineStopped
    | EngineFinding
    | PublishedFacts
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
    | CheckDone
    | VerifyEnded
    | LoadBegan
    | LoadDone
    | LoadSlept
    | MeasurementDamaged
    | ServerMeasured
    | TaskBegan
    | TaskEnded
    | RehearseStarted
    | RehearseFinished
    | CalibrateStarted
    | CalibrateNote
    | CalibrateFinished
    | KernelsChecked
    | ClimbBegan
    | ClimbResumed
    | ClimbSkipped
    | ClimbTried
    | ClimbRetried
    | ClimbInconclusive
    | ClimbKept
    | ClimbDropped
    | JournalLost
)
EVENT_KINDS: Mapping[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(KnownEvent)}
RENAMED_KINDS = {"story.": "pipeline.", "climb.step": "climb.kept"}  # how kinds began before they were renamed


def parse_event(kind: str, data: Json) -> Event:
    """The event of a journal's line; a field that is not what it should be reads as its default."""
    known = EVENT_KINDS.get(current_kind(kind))
    if known is None:
        return UnknownEvent(name=kind, fields=data)
    try:
        return msgspec.convert({**data, "kind": known.__struct_config__.tag}, known)
    except msgspec.ValidationError:
        return known(**_readable(known, data))


def current_kind(kind: str) -> str:
    """The kind's name of today."""
    for before, now in RENAMED_KINDS.items():
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


def marks_simulation(event: Event) -> bool:
    """Whether it says that a twin stood for the engine."""
    if isinstance(event, UnknownEvent):
        return True in (event.fields.get("simulation"), event.fields.get("simulated"))
    return isinstance(event, PipelineBegan) and event.simulation
