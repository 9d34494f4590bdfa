"""The twin replies to any request as an engine would: with a reply or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.twin.request import MAX_ITEMS, RequestRefused, choose_call, fill_schema, parse_request, to_chat_request

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
KEYS = ("model", "messages", "prompt", "n", "max_tokens", "max_completion_tokens", "stream", "stream_options", "tools")
KEYS += ("tool_choice", "system")
SCHEMA_KEYS = ("type", "enum", "properties", "required", "items", "minItems", "minimum")
SCHEMAS = st.recursive(
    JSON | st.sampled_from(["object", "array", "integer", "string", 10**9]),
    lambda inner: st.dictionaries(st.sampled_from(SCHEMA_KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6), st.booleans(), st.booleans())
def test_any_body_is_read_or_refused(body: dict[str, object], chat: bool, anthropic: bool) -> None:
    """No body causes a server error."""
    try:
        request = parse_request(
            to_chat_request(body) if anthropic else body, chat=chat or anthropic, model="m", context=4096
        )
    except RequestRefused as problem:
        assert problem.status in (400, 404)
        return
    assert 1 <= request.output <= 4096
    assert request.prompt_tokens + request.output <= 4096


@given(SCHEMAS)
def test_any_schema_is_filled(schema: object) -> None:
    """The arguments are valid JSON."""
    json.dumps(fill_schema(schema))
    tools = [{"function": {"name": "f", "parameters": schema}}]
    call = choose_call({"tools": tools, "messages": [{"role": "user", "content": "x"}]})

    assert call is not None
    assert call[0] == "f"


@pytest.mark.parametrize("least", [10**12, 1e300, "many", None, -5])
def test_a_schema_that_wants_a_million_items_gets_a_few(least: object) -> None:
    """The length of a list is limited, so that a schema cannot exhaust memory."""
    found = fill_schema({"type": "array", "items": {"type": "integer"}, "minItems": least})

    assert isinstance(found, list)
    assert len(found) <= MAX_ITEMS
