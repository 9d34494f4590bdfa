"""Servers that lack a feature or name things otherwise, and say so: limits of templates, gateways and vendors."""

import dataclasses
import hashlib
import re
from typing import Any

from moebox.phantom.question import ToolCall

from . import chat
from .bend import Body, calls, error
from .bend_fifth import refusing
from .bend_more import deltas, each, message, request, whole
from .faults import Fault
from .odd import refuses
from .stores import refuse_tools
from .wire import Request, Response

# As long as the ones of Granite and SmolLM: a system message takes its place.
DEFAULT_SYSTEM = "You are a helpful model. Answer in short and polite words, and never make anything up. " * 4
NINE_LETTERS = re.compile(r"[A-Za-z0-9]{9}")  # mistral-common takes no other id of a call


def refuse_other_apis(used: str, text: str) -> dict[str, Any]:
    """Refuse a field of /v1/messages and of /v1/responses."""

    def response(body: Body) -> Body:
        if body.get("instructions" if used == "system" else used):
            raise chat.Refused(400, text)
        return body

    return {"message_gate": lambda body: error(400, text) if body.get(used) else None, "response_request": response}


def has_role(*roles: str) -> Any:
    return lambda body: any(turn.get("role") in roles for turn in body.get("messages") or () if isinstance(turn, dict))


def default_system(body: Body) -> None:
    """The template's own system message, unless the conversation begins with one."""
    if body["messages"][0]["role"] not in ("system", "developer"):
        body["messages"].insert(0, {"role": "system", "content": DEFAULT_SYSTEM})


def nine_letters(call: ToolCall) -> ToolCall:
    return dataclasses.replace(call, id=hashlib.sha256(f"{call.id}{call.arguments}".encode()).hexdigest()[:9])


def has_foreign_id(body: Body) -> bool:
    turns = [turn for turn in body.get("messages") or () if isinstance(turn, dict)]
    ids = [call.get("id") for turn in turns for call in turn.get("tool_calls") or ()]
    ids += [turn.get("tool_call_id") for turn in turns if turn.get("role") == "tool"]
    return not all(NINE_LETTERS.fullmatch(str(each)) for each in ids)


def every_field(delta: Body) -> None:
    """The role in every piece, and every field that could be there."""
    for key, empty in (("role", "assistant"), ("content", ""), ("reasoning", ""), ("tool_calls", [])):
        delta.setdefault(key, empty)


def named_thinking(said: Body) -> None:
    for key in ("reasoning", "reasoning_content"):
        if key in said:
            said["thinking"] = said.pop(key)


def hide_reasoning(said: Body) -> None:
    said.pop("reasoning", None)
    said.pop("reasoning_content", None)


def counts_hidden(body: Body) -> None:
    """Reasoning is counted and not shown, as OpenAI does."""
    for choice in body["choices"]:
        hide_reasoning(choice.get("delta") or choice.get("message") or {})
    if usage := body.get("usage"):
        hidden = min(usage["completion_tokens"], len(chat.tokens(chat.REASONING)))
        usage["completion_tokens_details"] = {"reasoning_tokens": hidden}


def without_logprobs(body: Body) -> None:
    for choice in body["choices"]:
        choice.pop("logprobs", None)


def least_sixteen(body: Body) -> Body:
    """OpenAI's own minimum."""
    if (body.get("max_output_tokens") or 16) < 16:
        raise chat.Refused(400, "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.")
    return body


def unknown_route(body: Body) -> Response:
    """As Amazon's API Gateway answers for a route that it does not have."""
    return error(403, "Missing Authentication Token")


def unknown_response(body: Body) -> Body:
    raise chat.Refused(403, "Missing Authentication Token")


def reasoning_back(request: Request, body: Body) -> Response | None:
    """A turn has the documented fields only, as at Mistral."""
    extra = any("reasoning_content" in turn for turn in body.get("messages") or () if isinstance(turn, dict))
    return error(422, "messages: extra fields not permitted (reasoning_content)") if extra else None


NO_SYSTEM = "System role not supported"
NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
ODD_SEVENTH: dict[str, Fault] = {
    "tools-refused-by-every-api": Fault(gate=refuse_tools, **refuse_other_apis("tools", NO_TOOLS)),
    "tool-choice-only-auto": Fault(
        gate=refusing(lambda body: body.get("tool_choice", "auto") != "auto", 400, "only tool_choice auto is supported")
    ),
    "system-role-refused": Fault(
        gate=refusing(has_role("system", "developer"), 400, NO_SYSTEM), **refuse_other_apis("system", NO_SYSTEM)
    ),
    "structured-output-refused": Fault(
        gate=refusing(lambda body: bool(body.get("response_format")), 400, "no grammar backend is installed")
    ),
    "json-object-only": Fault(
        gate=refusing(
            lambda body: (body.get("response_format") or {}).get("type") == "json_schema",
            400,
            "This response_format type is unavailable now",
        )
    ),
    "stream-options-refused": Fault(gate=refuses("stream_options")),
    "default-system-prompt": Fault(request=request(default_system)),
    "responses-least-sixteen": Fault(response_request=least_sixteen),
    "foreign-call-ids-refused": Fault(
        gate=refusing(has_foreign_id, 400, "Tool call id must be a-z, A-Z, 0-9, with a length of 9"),
        reply=calls(nine_letters),
    ),
    "thoughts-back-not-permitted": Fault(gate=reasoning_back),
    "every-field-in-every-delta": Fault(stream=deltas(every_field)),
    "reasoning-named-thinking": Fault(whole=message(named_thinking), stream=deltas(named_thinking)),
    "reasoning-not-shown": Fault(
        request=request(lambda body: body.update(chat_template_kwargs={"thinking": True})),
        whole=whole(counts_hidden),
        stream=each(counts_hidden),
    ),
    "logprobs-ignored": Fault(whole=whole(without_logprobs), stream=each(without_logprobs)),
    "several-choices-refused": Fault(gate=refusing(lambda body: (body.get("n") or 1) > 1, 400, "n must be 1")),
    "unknown-routes-are-forbidden": Fault(
        bare=True, health=403, message_gate=unknown_route, response_request=unknown_response
    ),
}
