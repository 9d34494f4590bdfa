"""What the phantom is taught of errands is what `moebox task` really sends, turn by turn."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from training.errands import errand_task

from moebox.tasks.agent import SYSTEM
from moebox.tasks.families import make_job
from moebox.tasks.tools import Toolbox, Workspace


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), thinking=st.booleans())
def test_an_errand_is_done_in_the_real_loop(seed: int, thinking: bool) -> None:
    """System prompt and tools of the real agent, a value written, and a mistake never learned."""
    found = errand_task(random.Random(seed), thinking=thinking)
    system, *talk = found.task.messages
    calls = [call["function"]["name"] for turn in talk for call in turn.get("tool_calls", ())]
    output = [turn for turn in talk if turn["role"] == "assistant"]

    assert system["content"] == SYSTEM
    assert "write_file" in calls
    assert found.learn[-1]
    assert len(found.learn) == len(output) + 1
    assert found.task.find_fault(found.task.sample) == ""
    assert all(bool(turn.get("reasoning_content")) == thinking for turn in output)
    for turn, learned in zip(output, found.learn, strict=False):
        identity = turn["tool_calls"][0]["id"]
        answer = next(t["content"] for t in talk if t.get("tool_call_id") == identity)
        assert learned != answer.startswith("error:")


def test_the_tools_are_those_of_a_real_errand() -> None:
    """Same names, same schemas, same order."""
    job = make_job("errand", "easy", 1)
    offered = Toolbox(job, Workspace(job.files)).tools
    taught = [errand_task(random.Random(seed), thinking=False).task.tools for seed in range(5)]

    assert any(
        [(t["function"]["name"], t["function"]["parameters"]) for t in tools]
        == [(tool.name, tool.parameters) for tool in offered]
        for tools in taught
    )
