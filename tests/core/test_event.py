"""Events: written and read back as the same type; other versions' journals read as far as the two agree."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.engine_event import AttemptReady, AttemptStarted, EngineStopped
from moebox.core.engine_facts import DeviceFacts, EngineFacts
from moebox.core.event import ClimbKept, Event, PipelineBegan, StepRunning, UnknownEvent, marks_simulation
from moebox.core.verdict import Gain
from moebox.store.journal import EVENT_KINDS, journal_line, parse_event, parse_line

FACTS = EngineFacts(kv_tokens=4096.0, devices=(DeviceFacts(device="gpu0", weights_bytes=1e9),), other={"odd": 1.0})
FULL = (
    AttemptStarted(id="a", engine="e", argv=("x", "--y"), env={"A": "b"}, port=8000, gpus=(0, 1)),
    AttemptReady(id="a", startup_s=2.5, facts=FACTS),
    ClimbKept(change="kv fp8", value="fp8", gain=Gain(share=0.1, low=0.05, high=0.15), rungs={"alive": "pass"}),
    EngineStopped(id="a", code=-9, signals=("SIGINT", "SIGKILL"), oom=True),
    UnknownEvent(name="later.kind", fields={"x": [1, {"y": None}]}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("event", [*FULL, *(kind() for kind in EVENT_KINDS.values())], ids=lambda event: event.kind)
def test_an_event_comes_back_as_it_was_written(event: Event) -> None:
    """Of every kind, empty and full; and the line is what other programs read: time, kind, data."""
    line = journal_line(5.0, event)
    assert set(json.loads(line)) == {"time", "kind", "data"}
    entry = parse_line(line)
    assert entry is not None
    assert (entry.time, entry.kind, entry.event) == (5.0, event.kind, event)


def test_a_field_that_is_not_what_it_should_be_costs_only_itself() -> None:
    """A later version may write another type there."""
    event = parse_event("attempt.started", {"id": "a", "port": "eighty", "argv": ["x"], "colour": "red"})
    assert event == AttemptStarted(id="a", argv=("x",))


def test_kinds_of_before_read_under_their_new_names() -> None:
    """What 0.1 called a story is a pipeline."""
    assert parse_event("story.running", {"step": "plan", "why": ""}) == StepRunning(step="plan")


def test_a_simulation_is_recognised_in_any_event() -> None:
    """In our own event and in an unknown one."""
    assert marks_simulation(PipelineBegan(simulation=True))
    assert marks_simulation(UnknownEvent(name="plan.made", fields={"simulation": True}))
    assert not marks_simulation(UnknownEvent(name="plan.made", fields={"simulation": "no"}))


@given(
    st.sampled_from([*EVENT_KINDS, "story.begin", "x"]), st.dictionaries(st.text(max_size=6), JSON, max_size=4), JSON
)
def test_whatever_stands_in_an_event_it_can_be_read(kind: str, data: dict[str, object], value: object) -> None:
    """Any value under any field."""
    known = EVENT_KINDS.get(kind)
    fields = known.__struct_fields__ if known else ()
    event = parse_event(kind, {**data, **dict.fromkeys(fields, value)})
    assert isinstance(event.data, dict)
