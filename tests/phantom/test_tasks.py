"""The task families: their own samples pass, other answers do not, and the judges are fair to other styles."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebox.phantom.format_questions import extract_code
from moebox.phantom.question import ModelReply, Question, ToolCall
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.phantom.questions import draw_question
from moebox.phantom.text_questions import text_flaw

seeds = st.integers(0, 2**32)
names = pytest.mark.parametrize("name", FAMILIES)


def drawn(name: str, seed: int) -> Question:
    size = {"chars": 500} if name == "needle" else {}
    return draw_question(name, random.Random(seed), **size)


@names
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_the_sample_reply_passes(name: str, seed: int) -> None:
    """What the phantom is taught to say is right by the family's own judge."""
    task = drawn(name, seed)

    assert task.find_fault(task.sample) == ""


@names
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_nothing_and_noise_are_rejected(name: str, seed: int) -> None:
    """An empty reply, a run of marks and a loop never pass."""
    task = drawn(name, seed)

    for text in ("", "!!!!!!!!!!!!!!!!", "the the the the the the the the"):
        assert task.find_fault(ModelReply(content=text))


@names
@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_the_neighbours_answer_is_rejected(name: str, seed: int) -> None:
    """An answer meant for another request shows, wherever the two ask for different things."""
    task, other = drawn(name, seed), drawn(name, seed + 1)
    mine, theirs = task.sample, other.sample
    loose = ("plain", "tool_none", "tool_result", "count", "code")  # here two requests may share a right answer
    if (mine.content, mine.calls) == (theirs.content, theirs.calls) or name in loose:
        return

    assert task.find_fault(theirs)


@settings(max_examples=50, deadline=None)
@given(seed=seeds, wrong=st.integers(-2000, 2000))
def test_a_wrong_sum_is_rejected(seed: int, wrong: int) -> None:
    """Only the right number passes."""
    task = drawn("sums", seed)

    assert (task.find_fault(ModelReply(content=str(wrong))) == "") == (wrong == task.expect)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_sums_are_right(seed: int) -> None:
    """The number expected is the one the question asks for."""
    task = drawn("sums", seed)
    words = task.messages[0]["content"].replace("plus", "+").replace("minus", "-").replace("times", "*").split()
    at = next(i for i, word in enumerate(words) if word in "+-*")
    a, b = int(words[at - 1]), int(words[at + 1].rstrip("?."))

    assert task.expect == {"+": a + b, "-": a - b, "*": a * b}[words[at]]


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_sample_code_meets_its_cases(seed: int) -> None:
    """Our own sample function returns what the cases want."""
    task = drawn("code", seed)
    space: dict[str, object] = {}
    exec(extract_code(task.sample.content), space)  # noqa: S102  our own code, not a model's
    function = space[task.expect]

    assert callable(function)
    assert [function(argument) for argument, _ in task.cases] == [want for _, want in task.cases]


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_json_fences_and_key_order_do_not_matter(seed: int) -> None:
    """A large model may fence its JSON and order keys as it likes; a changed value fails."""
    task = drawn("json_object", seed)
    turned = dict(reversed(task.expect.items()))
    key = next(iter(turned))

    assert task.find_fault(ModelReply(content=f"```json\n{json.dumps(turned, indent=2)}\n```")) == ""
    assert task.find_fault(ModelReply(content=json.dumps(turned | {key: "something else"})))


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_a_tool_call_with_another_argument_is_rejected(seed: int) -> None:
    """Arguments must be the ones in the question, and no call may be left over."""
    task = drawn("tool_call", seed)
    call = task.sample.calls[0]
    key = next(iter(json.loads(call.arguments)))
    changed = json.dumps(json.loads(call.arguments) | {key: "elsewhere"})

    assert task.find_fault(ModelReply(calls=(ToolCall(id=call.id, name=call.name, arguments=changed),)))
    assert task.find_fault(ModelReply(calls=(call, call)))
    assert task.find_fault(ModelReply(calls=(ToolCall(id=call.id, name=call.name, arguments=call.arguments[:-1]),)))


def test_extra_words_and_separators_are_allowed() -> None:
    """Large models add words, bold and thousands separators."""
    task = next(t for t in (drawn("tool_result", s) for s in range(99)) if any(len(v) == 4 for v in t.expect))
    spelled = " and ".join(f"**{int(v):,}**" if v.isdigit() else v for v in task.expect)

    assert task.find_fault(ModelReply(content=f"Sure! Here you go: {spelled}.")) == ""


def test_the_same_seed_draws_the_same_task() -> None:
    """A failing probe can be repeated."""
    first, second = (draw_question("tool_parallel", random.Random(5)) for _ in range(2))

    assert (first.messages, first.tools) == (second.messages, second.tools)


def test_a_healthy_text_has_no_flaw() -> None:
    """Ordinary prose, lists and code are not taken for damage."""
    assert text_flaw("The sea is deep. The sea is wide. It is blue, and people like it very much.") == ""
    assert (
        text_flaw("1. one\n2. two\n3. three\n\n```python\nx = {'a': [1, 2]}\n```\nThat is all there is to say.") == ""
    )
    assert text_flaw("word <|im_end|> word") != ""


def test_no_call_is_asked_for_twice_in_one_question() -> None:
    """A model that calls once for a city named twice is right, and would be marked wrong."""
    drawn = [draw_question("tool_parallel", random.Random(seed)) for seed in range(2000)]
    assert all(len({str(call) for call in task.expect}) == len(task.expect) for task in drawn)
