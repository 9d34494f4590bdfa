"""What the next training teaches: samples that their own judges pass, and that the tokenizer writes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.phantom.lessons import LESSONS
from moebox.phantom.task import Reply

seeds = st.integers(0, 2**32)
names = pytest.mark.parametrize("name", LESSONS)


@names
@settings(max_examples=30, deadline=None)
@given(seed=seeds, thinking=st.booleans())
def test_the_sample_reply_passes(name: str, seed: int, thinking: bool):
    """And nothing, or another sample, does not."""
    task = LESSONS[name](random.Random(seed), thinking=thinking)
    other = LESSONS[name](random.Random(seed + 1), thinking=thinking)

    assert task.grade(task.sample).why == ""
    assert not task.grade(Reply()).ok
    if (task.sample.content, task.sample.calls) != (other.sample.content, other.sample.calls):
        assert not task.grade(other.sample).ok or str(task.expect) in other.sample.content


def test_six_rounds_count_their_calls_on():
    """Kimi's ids number the calls of a whole conversation."""
    task = LESSONS["rounds"](random.Random(3), thinking=True, count=6)
    made = [call["id"] for turn in task.messages for call in turn.get("tool_calls", ())]

    assert [identity.rsplit(":", 1)[1] for identity in made] == [str(number) for number in range(len(made))]
    assert len(made) >= 5


def test_copies_go_beyond_ascii_and_to_four_thousand_tokens():
    """Every plane, and 1,500 words."""
    rng = random.Random(1)
    texts = "".join(LESSONS["characters"](rng, thinking=False).expect for _ in range(200))

    assert any(ord(letter) > 0xFFFF for letter in texts)
    assert "\u0301" in texts
    assert len(LESSONS["long_copy"](rng, thinking=False, length=1500).expect.split()) == 1500
