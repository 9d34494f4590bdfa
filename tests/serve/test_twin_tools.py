"""The twin offers what agents use: tools, and Anthropic's messages, timed by the same simulation."""

import json
import time
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moebox.core.endpoint import Endpoint
from moebox.tasks import runner
from moebox.tasks.families import make_job
from moebox.tasks.reply import ReplySettings, TaskApi, request_reply
from moebox.tasks.tools import Toolbox, Workspace
from moebox.twin.request import choose_call, fill_schema

from ..tasks.conftest import do
from .test_twin import ask, twin  # noqa: F401  (the fixture)

SIMPLE = st.sampled_from(["string", "integer", "number", "boolean", "null"])


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Objects with required properties, nested a little."""
    leaf = SIMPLE.map(lambda kind: {"type": kind})
    names = st.text("abc", min_size=1, max_size=2)

    def grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        objects = st.dictionaries(names, inner, max_size=3).map(
            lambda found: {"type": "object", "properties": found, "required": sorted(found)}
        )
        arrays = inner.map(lambda items: {"type": "array", "items": items})
        return objects | arrays | st.just({"enum": ["x", 3]})

    return st.recursive(leaf, grown, max_leaves=5)


@given(schemas())
def test_arguments_fit_their_schema(schema: dict[str, Any]):
    """Whatever is asked for."""
    fastjsonschema.validate(schema, fill_schema(schema))


def test_a_tool_is_called_once_and_its_result_is_answered_with_text():
    """So that a loop ends."""
    tools = [{"function": {"name": "a", "parameters": {}}}, {"function": {"name": "b", "parameters": {}}}]
    asked = {"tools": tools, "messages": [{"role": "user", "content": "x"}]}

    assert choose_call(asked) == ("a", "{}")
    assert choose_call({**asked, "tool_choice": {"type": "function", "function": {"name": "b"}}}) == ("b", "{}")
    assert choose_call({**asked, "tool_choice": "none"}) is None
    assert choose_call({**asked, "messages": [{"role": "tool", "content": "y"}]}) is None
    assert choose_call({"messages": [{"role": "user"}]}) is None
    assert choose_call({"tools": [3, {"function": None}], "messages": [3]}) is None


@pytest.fixture
def endpoint(twin: dict[str, Any]) -> Endpoint:  # noqa: F811
    return Endpoint(base_url=str(twin["url"]), model=str(twin["model"]), key=str(twin["key"]))


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_our_agents_loop_runs_against_it(api: TaskApi, endpoint: Endpoint, tmp_path: Path):
    """Calls, results, an ending; the work is not done, of course."""
    options = runner.TaskOptions(api=api, job_s=60)
    done = do(
        endpoint.base_url, endpoint.model, "errand", tmp_path, api=api, options=options, key=endpoint.key
    ).results[0]

    assert done.end == "done"
    assert not done.solved
    assert done.all_calls[0].ok
    assert done.turns[0].completion_tokens
    assert done.turns[1].prompt_tokens


def test_a_message_in_one_piece_has_anthropics_shape(twin: dict[str, Any]):  # noqa: F811
    """Without a stream, with a tool and without."""
    body = {"model": twin["model"], "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}]}
    _, raw = ask(twin, "/v1/messages", body)
    message = json.loads(raw)
    assert message["content"][0]["type"] == "text"
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 20)
    assert "simulation" in message

    tools = [
        {
            "name": "look",
            "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        }
    ]
    _, raw = ask(twin, "/v1/messages", {**body, "tools": tools})
    message = json.loads(raw)
    assert message["content"][0]["input"] == {"n": 1}
    assert message["stop_reason"] == "tool_use"


def test_what_is_no_message_is_refused(twin: dict[str, Any]):  # noqa: F811
    """As a chat would be."""
    for body in ({"messages": []}, {"messages": 3}, {"messages": [3]}, {}):
        response, _ = ask(twin, "/v1/messages", body)
        assert response.status == 400


def test_tool_calls_stream_in_pieces_that_join(endpoint: Endpoint):
    """Arguments that are JSON in the end."""
    job = make_job("errand", "easy", 0)
    box = Toolbox(job, Workspace(job.files))
    message = [{"role": "user", "content": "x"}]
    tools = [tool for tool in box.tools if tool.name == "write_file"]
    found = request_reply(
        ReplySettings(endpoint=endpoint),
        "s",
        message,
        tools,
        max_tokens=500,
        ends_at=time.monotonic() + 60,
        stop=lambda: False,
    )

    assert not found.problem
    assert found.calls[0].name == "write_file"
    assert box.call("write_file", found.calls[0].arguments).text.startswith("wrote simulated")
