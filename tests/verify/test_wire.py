"""Replies are held to OpenAI's and Anthropic's documented form; what is only odd passes."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.verdict import HttpExchange
from moebox.verify.completions import implausible_usage, parse_chat_stream, parse_completion
from moebox.verify.other_apis import parse_message

Body = dict[str, Any]
Change = Callable[[Any], Any]

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
REPLY: Body = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}],
    "usage": USAGE,
}
CALLS: Body = copy.deepcopy(REPLY)
CALLS["choices"][0] |= {"message": {"role": "assistant", "content": None, "tool_calls": [CALL]}}
CALLS["choices"][0]["finish_reason"] = "tool_calls"


def asked(response: str, **request: Any) -> HttpExchange:
    return HttpExchange(
        method="POST",
        url="",
        status=200,
        headers={"content-type": "text/event-stream"},
        request={"model": "m", **request},
        response=response,
    )


def breaches(body: Body, **request: Any) -> list[str]:
    return [breach.text for breach in parse_completion(asked(json.dumps(body), **request)).violations]


def bent(body: Body, change: Change) -> Body:
    mine = copy.deepcopy(body)
    change(mine)
    return mine


def message(body: Body) -> Body:
    found: Body = body["choices"][0]["message"]
    return found


WRONG_REPLIES: dict[str, tuple[Body, Change]] = {
    "no id": (REPLY, lambda body: body.pop("id")),
    "object is": (REPLY, lambda body: body.update(object="text_completion")),
    "created is": (REPLY, lambda body: body.update(created="now")),
    "model is null": (REPLY, lambda body: body.update(model=None)),
    "but 'm' was requested": (REPLY, lambda body: body.update(model="other")),
    "the choice's index": (REPLY, lambda body: body["choices"][0].pop("index")),
    "the role is": (REPLY, lambda body: message(body).pop("role")),
    "content is": (REPLY, lambda body: message(body).update(content=["Hello"])),
    "half a surrogate pair": (REPLY, lambda body: message(body).update(content="\ud83d")),
    "finish_reason is null": (REPLY, lambda body: body["choices"][0].update(finish_reason=None)),
    "is not a documented one": (REPLY, lambda body: body["choices"][0].update(finish_reason="eos")),
    "without a tool call": (REPLY, lambda body: body["choices"][0].update(finish_reason="tool_calls")),
    "no usage": (REPLY, lambda body: body.pop("usage")),
    "no total_tokens": (REPLY, lambda body: body.update(usage={"prompt_tokens": 1, "completion_tokens": 1})),
    "does not add up": (REPLY, lambda body: body["usage"].update(total_tokens=9)),
    "no prompt tokens": (REPLY, lambda body: body.update(usage=dict.fromkeys(USAGE, 0))),
    "id is": (CALLS, lambda body: message(body)["tool_calls"][0].pop("id")),
    "type is": (CALLS, lambda body: message(body)["tool_calls"][0].pop("type")),
    "not a string": (CALLS, lambda body: message(body)["tool_calls"][0]["function"].update(arguments={"a": 1})),
    "name is": (CALLS, lambda body: message(body)["tool_calls"][0]["function"].pop("name")),
    "share an id": (CALLS, lambda body: message(body).update(tool_calls=[CALL, CALL])),
    "'stop' with a tool call": (CALLS, lambda body: body["choices"][0].update(finish_reason="stop")),
}


@pytest.mark.parametrize("says", sorted(WRONG_REPLIES))
def test_a_reply_that_breaks_its_form_is_named(says: str):
    """Types and required fields of OpenAI's reply."""
    assert any(says in text for text in breaches(bent(*WRONG_REPLIES[says])))


ODD_REPLIES: list[tuple[Body, Change]] = [
    (REPLY, lambda body: None),
    (CALLS, lambda body: None),
    (REPLY, lambda body: body.update(system_fingerprint=None, service_tier="x", timings={"a": 1})),
    (REPLY, lambda body: message(body).update(refusal=None, tool_calls=None, annotations=[])),
    (REPLY, lambda body: message(body).update(tool_calls=[], reasoning_content="So.")),
    (REPLY, lambda body: body["choices"][0].update(logprobs=None, stop_reason=None)),
    (REPLY, lambda body: body["usage"].update(prompt_tokens_details=None)),
    (REPLY, lambda body: body.update(model="org/m-2026-01-01")),
    (CALLS, lambda body: message(body).update(content="")),
]


@pytest.mark.parametrize(("body", "change"), ODD_REPLIES)
def test_a_reply_that_is_only_odd_is_let_be(body: Body, change: Change):
    """Unknown fields, nulls and dated model names are legal."""
    assert breaches(bent(body, change)) == []


def test_a_forced_call_may_end_with_stop():
    """OpenAI reports it of named functions."""
    body = bent(CALLS, lambda body: body["choices"][0].update(finish_reason="stop"))

    assert breaches(body, tool_choice={"type": "function", "function": {"name": "f"}}) == []


HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(delta: Body, finish: str | None = None, **more: Any) -> Body:
    return HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | more


def piece(index: int | None = 0, **more: Any) -> Body:
    place = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**place, **more}]})


FIRST = chunk({"role": "assistant", "content": ""})
LAST = chunk({}, "stop")
COUNTS = HEAD | {"choices": [], "usage": USAGE}
WORDS = [FIRST, chunk({"content": "Hello "}), chunk({"content": "there."}), LAST, COUNTS]
OPENED = piece(id="c1", type="function", function={"name": "f", "arguments": ""})
WHOLE = {"name": "f", "arguments": "{}"}
REST = [piece(function={"arguments": "{}"}), chunk({}, "tool_calls"), COUNTS]
CALLED = [FIRST, OPENED, *REST]


def stream_breaches(chunks: list[Any], *, done: bool = True) -> list[str]:
    lines = [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in chunks]
    text = "".join(lines) + ("data: [DONE]\n\n" if done else "")
    found = parse_chat_stream(asked(text, stream=True, stream_options={"include_usage": True}))
    return [breach.text for breach in found.violations]


def without(body: Body, key: str) -> Body:
    return {name: value for name, value in body.items() if name != key}


WRONG_STREAMS: dict[str, list[Any]] = {
    "no id": [FIRST, without(chunk({"content": "x"}), "id"), LAST, COUNTS],
    "different ids": [FIRST, chunk({"content": "x"}, id="other"), LAST, COUNTS],
    "object is": [FIRST, chunk({"content": "x"}, object="chat.completion"), LAST, COUNTS],
    "choice's index": [FIRST, HEAD | {"choices": [{"delta": {"content": "x"}}]}, LAST, COUNTS],
    "delta is": [FIRST, HEAD | {"choices": [{"index": 0, "message": {"content": "x"}}]}, LAST, COUNTS],
    "piece of content is": [FIRST, chunk({"content": {"text": "x"}}), LAST, COUNTS],
    "a role is": [chunk({"role": "user"}), LAST, COUNTS],
    "more than once": [FIRST, chunk({"role": "assistant", "content": "x"}), LAST, COUNTS],
    "without a role": [chunk({"content": "x"}), LAST, COUNTS],
    "after the finish_reason": [FIRST, LAST, chunk({"content": "x"}), COUNTS],
    "2 finish_reasons": [FIRST, LAST, LAST, COUNTS],
    "without a finish_reason": [FIRST, chunk({"content": "x"}), COUNTS],
    "has no usage": [FIRST, chunk({"content": "x"}), LAST],
    "counts down": [FIRST, chunk({"content": "x"}, usage=USAGE | {"completion_tokens": 9}), LAST, COUNTS],
    "has the index": [
        FIRST,
        piece(None, id="c", type="function", function=WHOLE),
        *REST[1:],
    ],
    "begins with the id": [FIRST, piece(type="function", function=WHOLE), *REST[1:]],
    "type is": [FIRST, piece(id="c1", function=WHOLE), *REST[1:]],
    "arguments are": [FIRST, piece(id="c1", type="function", function={"name": "f", "arguments": {}}), *REST[1:]],
    "changes its name": [FIRST, OPENED, piece(function={"name": "g"}), *REST],
    "comes again": [FIRST, OPENED, piece(id="c1", function={"arguments": ""}), *REST],
    "have the indexes": [
        FIRST,
        piece(1, id="c1", type="function", function=WHOLE),
        *REST[1:],
    ],
    "'stop' with a tool call": [FIRST, OPENED, REST[0], LAST, COUNTS],
    "an error inside": [FIRST, {"error": {"message": "out of memory"}}],
    "half a surrogate pair": [FIRST, chunk({"content": "\ud83d"}), chunk({"content": "\ude00"}), LAST, COUNTS],
}


@pytest.mark.parametrize("says", sorted(WRONG_STREAMS))
def test_a_stream_that_breaks_its_form_is_named(says: str):
    """Types, required fields and order of OpenAI's chunks."""
    assert any(says in text for text in stream_breaches(WRONG_STREAMS[says]))


def test_the_end_of_a_stream_is_marked():
    """[DONE] comes, and nothing after it."""
    assert stream_breaches(WORDS, done=False) == ["the stream ended without [DONE]"]
    assert "after [DONE]" in stream_breaches([*WORDS, "[DONE]", WORDS[1]])[0]


ODD_STREAMS: dict[str, list[Any]] = {
    "plain": WORDS,
    "calls": CALLED,
    "filter results first": [{"choices": [], "prompt_filter_results": []}, *WORDS],
    "usage null in every chunk": [*(one | {"usage": None} for one in WORDS[:-1]), COUNTS],
    "usage in every chunk": [
        *(one | {"usage": USAGE | {"completion_tokens": 1, "total_tokens": 6}} for one in WORDS[:-1]),
        COUNTS,
    ],
    "role with the first words": [chunk({"role": "assistant", "content": "Hello there."}), LAST, COUNTS],
    "end with the last words": [FIRST, chunk({"content": "Hello there."}, "stop"), COUNTS],
    "empty deltas": [FIRST, chunk({}), chunk({"content": None}), *WORDS[1:]],
    "a call in one piece": [
        FIRST,
        piece(id="c1", type="function", function=WHOLE),
        *REST[1:],
    ],
    "two calls in one delta": [
        FIRST,
        chunk({"tool_calls": [{"index": 0, **CALL}, {"index": 1, **CALL, "id": "c2"}]}),
        *REST[1:],
    ],
    "nulls in later pieces": [
        FIRST,
        OPENED,
        piece(id=None, type=None, function={"name": None, "arguments": "{}"}),
        *REST[1:],
    ],
    "unknown fields": [one | {"x": 1} for one in WORDS],
}


@pytest.mark.parametrize("name", sorted(ODD_STREAMS))
def test_a_stream_that_is_only_odd_is_let_be(name: str):
    """What real servers do and documentation allows."""
    assert stream_breaches(ODD_STREAMS[name]) == []


@pytest.mark.parametrize(
    ("made", "says"),
    [(1, "usage counts 1 tokens"), (900, "usage counts 900 tokens"), (40, "max_tokens was 8")],
)
def test_counts_that_cannot_be_true_are_named(made: int, says: str):
    """Between a token for 24 characters and one for each byte, and not above the limit."""
    body = bent(REPLY, lambda body: message(body).update(content="word " * 20))
    body["usage"] = {"prompt_tokens": 5, "completion_tokens": made, "total_tokens": 5 + made}
    exchange = asked(json.dumps(body), max_tokens=8)

    assert says in implausible_usage(parse_completion(exchange), exchange.request)


def test_a_call_that_the_limit_cut_may_be_kept_back():
    """A parser shows nothing of half a tool call: its tokens are counted all the same."""
    body = bent(REPLY, lambda body: message(body).update(content=None))
    body["choices"][0]["finish_reason"] = "length"
    body["usage"] = {"prompt_tokens": 5, "completion_tokens": 256, "total_tokens": 261}
    with_tools = asked(json.dumps(body), max_tokens=256, tools=[{"type": "function"}])
    without = asked(json.dumps(body), max_tokens=256)

    assert implausible_usage(parse_completion(with_tools), with_tools.request) == ""
    assert implausible_usage(parse_completion(without), without.request)


MESSAGE: Body = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 3},
}
TOOL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
USED: Body = MESSAGE | {"content": [TOOL], "stop_reason": "tool_use"}

WRONG_MESSAGES: dict[str, tuple[Body, Change]] = {
    "no id": (MESSAGE, lambda body: body.pop("id")),
    "type is": (MESSAGE, lambda body: body.pop("type")),
    "role is": (MESSAGE, lambda body: body.update(role="model")),
    "not a message": (MESSAGE, lambda body: body.update(content="Hello.")),
    "without text": (MESSAGE, lambda body: body.update(content=[{"type": "text", "content": "Hello."}])),
    "without a type": (MESSAGE, lambda body: body.update(content=[{"text": "Hello."}])),
    "stop_reason is 'stop'": (MESSAGE, lambda body: body.update(stop_reason="stop")),
    "usage is": (MESSAGE, lambda body: body.pop("usage")),
    "output_tokens": (MESSAGE, lambda body: body["usage"].update(output_tokens=0)),
    "not an object": (USED, lambda body: body.update(content=[TOOL | {"input": "{}"}])),
    "with a tool_use": (USED, lambda body: body.update(stop_reason="end_turn")),
}


@pytest.mark.parametrize("says", sorted(WRONG_MESSAGES))
def test_a_message_that_breaks_its_form_is_named(says: str):
    """Anthropic's reply."""
    exchange = asked(json.dumps(bent(*WRONG_MESSAGES[says])))

    assert any(says in breach.text for breach in parse_message(exchange).violations)


def events_of(*events: Body, names: bool = True) -> HttpExchange:
    lines = [(f"event: {one['type']}\n" if names else "") + f"data: {json.dumps(one)}\n\n" for one in events]
    return asked("".join(lines), stream=True)


START = {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}}
OPEN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}}
CLOSE = {"type": "content_block_stop", "index": 0}
DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
STOP = {"type": "message_stop"}
PING = {"type": "ping"}

WRONG_EVENTS: dict[str, tuple[Body, ...]] = {
    "before message_start": (OPEN, START, TEXT, CLOSE, DELTA, STOP),
    "never closed": (START, OPEN, TEXT, DELTA, STOP),
    "no message_delta": (START, OPEN, TEXT, CLOSE, STOP),
    "not message_stop": (START, OPEN, TEXT, CLOSE, DELTA),
    "after message_stop": (START, OPEN, TEXT, CLOSE, DELTA, STOP, TEXT),
    "begins with the index": (START, OPEN | {"index": 1}, TEXT, CLOSE, DELTA, STOP),
    "which is not open": (START, OPEN, TEXT | {"index": 3}, CLOSE, DELTA, STOP),
    "in a block of type": (START, OPEN | {"content_block": TOOL}, TEXT, CLOSE, DELTA, STOP),
    "output_tokens": (START, OPEN, TEXT, CLOSE, without(DELTA, "usage"), STOP),
    "more than one message_start": (START, START, OPEN, TEXT, CLOSE, STOP),
    "stop_reason is null": (START, OPEN, TEXT, CLOSE, DELTA | {"delta": {}}, STOP),
}


@pytest.mark.parametrize("says", sorted(WRONG_EVENTS))
def test_events_out_of_order_are_named(says: str):
    """Anthropic's stream."""
    found = parse_message(events_of(*WRONG_EVENTS[says]))

    assert any(says in breach.text for breach in found.violations)


def test_a_stream_that_never_starts_does_not_start_twice():
    """It was said to have more than one message_start."""
    found = parse_message(events_of(OPEN, TEXT, CLOSE, DELTA, STOP))

    assert not [breach.text for breach in found.violations if "more than one" in breach.text]


def test_a_good_stream_of_events_passes():
    """With pings anywhere; without names it does not."""
    good = (START, PING, OPEN, TEXT, PING, CLOSE, DELTA, STOP)
    found = parse_message(events_of(*good))

    assert found.violations == ()
    assert (found.content, found.finish_reason) == ("Hello.", "end_turn")
    assert "an event called ''" in parse_message(events_of(*good, names=False)).violations[0].text


JSON = st.recursive(
    st.none() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["type", "index", "delta", "content_block", "message", "usage", "content", "tool_calls", "function"]
)


@given(st.lists(st.dictionaries(KEYS, JSON | st.sampled_from(list(WRONG_EVENTS))), max_size=4))
def test_no_message_however_odd_is_a_crash(bodies: list[Body]):
    """Any JSON where events or a message should be."""
    text = "".join(f"data: {json.dumps(body)}\n\n" for body in bodies)
    parse_message(asked(text))
    for body in bodies:
        parse_message(asked(json.dumps(body)))
        kinds = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
        events = [{**body, "type": kind} for kind in kinds]
        parse_message(events_of(*events))
