"""Answers are put together as they were sent, and breaches of protocol are seen."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.verdict import HttpExchange, wilson_score
from moebox.verify.completions import TEMPLATE_MARKS, parse_chat_stream, parse_completion
from moebox.verify.violations import parse_strict_json

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def stream_of(*deltas: dict[str, object], finish: str = "stop", done: bool = True) -> HttpExchange:
    parts: list[dict[str, object]] = [{"role": "assistant", "content": ""}, *deltas]
    chunks = [HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in parts]
    chunks.append(HEAD | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if done else "")
    return HttpExchange(method="POST", url="", status=200, response=text, request={"model": "m"})


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8))
def test_pieces_concatenate(pieces: list[str]):
    """Whatever the words, in whatever pieces."""
    answer = parse_chat_stream(stream_of(*({"content": piece} for piece in pieces)))

    assert answer.content == "".join(pieces)
    assert [violation for violation in answer.violations if violation.kind != "reply-style"] == []


def test_both_names_of_the_reasoning_field_are_read():
    """vLLM says `reasoning`, others `reasoning_content`."""
    for name in ("reasoning", "reasoning_content"):
        message = {"content": "4", name: "two and two"}
        body = {"choices": [{"message": message, "finish_reason": "stop"}]}
        exchange = HttpExchange(method="POST", url="", status=200, response=json.dumps(body))
        assert parse_completion(exchange).reasoning == "two and two"
        assert (
            parse_chat_stream(stream_of({name: "two "}, {name: "and two"}, {"content": "4"})).reasoning == "two and two"
        )


def test_streamed_calls_are_assembled_by_index():
    """Two calls whose pieces come in turns."""
    parts = [
        {"index": 0, "id": "functions.a:0", "function": {"name": "a", "arguments": '{"x"'}},
        {"index": 1, "id": "functions.b:1", "function": {"name": "b", "arguments": ""}},
        {"index": 0, "function": {"arguments": ": 1}"}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    answer = parse_chat_stream(stream_of(*({"tool_calls": [part]} for part in parts), finish="tool_calls"))

    assert [(call.id, call.name, call.arguments) for call in answer.calls] == [
        ("functions.a:0", "a", '{"x": 1}'),
        ("functions.b:1", "b", "{}"),
    ]


@pytest.mark.parametrize(
    ("exchange", "says"),
    [
        (stream_of({"content": "a"}, done=False), "without [DONE]"),
        (
            HttpExchange(method="POST", url="", response='data: {"choices": []}\n\ndata: [DONE]\n\n'),
            "without a finish_reason",
        ),
        (HttpExchange(method="POST", url="", response='data: {"choi\n\ndata: [DONE]\n\n'), "not JSON"),
        (HttpExchange(method="POST", url="", response='data: {"error": {"message": "oom"}}\n\n'), "oom"),
    ],
)
def test_breaches_of_protocol_are_named(exchange: HttpExchange, says: str):
    """Each in words."""
    assert any(says in violation.text for violation in parse_chat_stream(exchange).violations)


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_answer_however_odd_is_a_crash(body: object):
    """Any JSON at all where a completion should be."""
    text = json.dumps(body)
    parse_completion(HttpExchange(method="POST", url="", response=text))
    parse_chat_stream(HttpExchange(method="POST", url="", response=f"data: {text}\n\n"))
    for odd in ({"choices": [body]}, {"choices": [{"delta": body, "message": body, "logprobs": body}]}):
        parse_completion(HttpExchange(method="POST", url="", response=json.dumps(odd)))
        parse_chat_stream(HttpExchange(method="POST", url="", response=f"data: {json.dumps(odd)}\n\n"))


def test_nan_is_not_json():
    """Python's own parser would take it."""
    with pytest.raises(ValueError, match="NaN"):
        parse_strict_json('{"logprob": NaN}')


@pytest.mark.parametrize("text", ["<|im_end|>", "</think>", "<|tool_calls_section_begin|>", "[EOS]", "◁think▷"])
def test_template_marks_are_known(text: str):
    """None of them belongs into an answer."""
    assert TEMPLATE_MARKS.search(f"Paris.{text}")


@pytest.mark.parametrize("text", ["a <b> c", "x | y", "if a <| b |> c", "I think so", "[1, 2]", "<|>"])
def test_ordinary_text_is_not_taken_for_one(text: str):
    """No false alarm."""
    assert not TEMPLATE_MARKS.search(text)


def test_wilson_against_published_values():
    """Wilson's interval for 8 of 10 is 0.490 to 0.943 (Newcombe 1998's method 3)."""
    score = wilson_score(8, 10)

    assert math.isclose(score.low, 0.4902, abs_tol=1e-4)
    assert math.isclose(score.high, 0.9433, abs_tol=1e-4)


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_interval_holds_the_share(passed: int, missed: int):
    """Whatever the counts."""
    score = wilson_score(passed, passed + missed)

    assert 0 <= score.low <= score.share + 1e-9
    assert score.share - 1e-9 <= score.high <= 1
