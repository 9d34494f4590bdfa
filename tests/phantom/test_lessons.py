"""What the next training teaches: samples that their own judges pass, and that the tokenizer writes back."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training.lessons import LESSONS, product_working
from training.tokenizer import load

from moebox.phantom.question import ModelReply
from moebox.serve import connect

seeds = st.integers(0, 2**32)
names = pytest.mark.parametrize("name", LESSONS)


@names
@settings(max_examples=30, deadline=None)
@given(seed=seeds, thinking=st.booleans())
def test_the_sample_reply_passes(name: str, seed: int, thinking: bool):
    """And nothing, or another sample, does not."""
    task = LESSONS[name](random.Random(seed), thinking=thinking)
    other = LESSONS[name](random.Random(seed + 1), thinking=thinking)

    assert task.find_fault(task.sample) == ""
    assert task.find_fault(ModelReply())
    same = (task.sample.content, task.sample.calls) == (other.sample.content, other.sample.calls)
    if not same and name != "invent":  # what is made up may be anything
        assert task.find_fault(other.sample) or str(task.expect) in other.sample.content


@names
@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_the_tokens_of_the_next_training_hold_it(name: str, seed: int):
    """Prompt and answer, written back from their tokens, are what they were."""
    task = LESSONS[name](random.Random(seed), thinking=False)
    tokenizer = load()
    for text in (str(task.messages[-1]["content"]), task.sample.content):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_clients_ask_is_taught_word_for_word():
    """The smoke script's and connect's own questions are among the lessons."""
    rng = random.Random(0)
    asked = {str(LESSONS["clients"](rng, thinking=True).messages[-1]["content"]) for _ in range(600)}
    smoke = (Path(__file__).parents[2] / "scripts/smoke_test_openai.py").read_text()
    questions = [
        connect.QUESTION.replace("/srv/notes/shopping.txt", "/"),
        "Say hello in one word.",
        *re.findall(r"message\(f?['\"](.*?)['\"][,)]", smoke),
    ]
    assert len(questions) >= 6
    for question in questions:
        start = re.split(r"[{/]", question)[0]
        assert any(text.startswith(start) for text in asked), question


def test_a_product_is_right_in_every_step():
    """Each equation of the working holds."""
    for a, b in ((12, 98), (47, 38), (90, 20), (11, 11)):
        steps = product_working(a, b)
        assert steps.rstrip(".").endswith(str(a * b))
        for x, y, result in re.findall(r"(\d+) \* (\d+) = (\d+)", steps):
            assert int(x) * int(y) == int(result)


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
