"""Servers that are broken only if two or three features meet; each feature works alone."""

import dataclasses
import json

from moebox.phantom.question import ModelReply

from .bend import Body, error
from .faults import Fault


def _has(body: Body, *features: str) -> bool:
    """Whether a request has all of these features."""
    kwargs, choice = body.get("chat_template_kwargs") or {}, body.get("tool_choice")
    roles = [message.get("role") for message in body.get("messages") or []]
    known = {
        "thinking": bool(kwargs.get("thinking")),
        "stream": bool(body.get("stream")),
        "forced": choice == "required",
        "named": isinstance(choice, dict),
        "tools": bool(body.get("tools")),
        "json": bool(body.get("response_format")),
        "schema": (body.get("response_format") or {}).get("type") == "json_schema",
        "stop": bool(body.get("stop")),
        "logprobs": bool(body.get("logprobs")),
        "seed": "seed" in body,
        "system": "system" in roles,
        "result": "tool" in roles,
    }
    return all(known[feature] for feature in features)


def _fenced(reply: ModelReply) -> ModelReply:
    return dataclasses.replace(reply, content=f"```json\n{reply.content}\n```")


def _spilled(reply: ModelReply) -> ModelReply:
    return dataclasses.replace(reply, content=f"{reply.reasoning} {reply.content}", reasoning=reply.reasoning)


def _call_as_text(reply: ModelReply) -> ModelReply:
    text = json.dumps([{"name": call.name, "arguments": call.arguments} for call in reply.calls])
    return dataclasses.replace(reply, content=text, calls=())


def _no_arguments(reply: ModelReply) -> ModelReply:
    return dataclasses.replace(reply, calls=tuple(dataclasses.replace(call, arguments="{}") for call in reply.calls))


def _lost(reply: ModelReply) -> ModelReply:
    return dataclasses.replace(reply, content="", calls=())


def _half(reply: ModelReply) -> ModelReply:
    return dataclasses.replace(reply, content=reply.content[: len(reply.content) // 2])


def _if(change, *features: str) -> Fault:  # type: ignore[no-untyped-def]
    return Fault(reply=lambda reply, body: change(reply) if _has(body, *features) else reply)


PAIRS: dict[str, Fault] = {
    "forced-call-as-text-while-thinking": _if(_call_as_text, "forced", "thinking"),
    "named-call-loses-arguments-in-streams": _if(_no_arguments, "named", "stream"),
    "schema-fenced-after-a-tool-result": _if(_fenced, "json", "result"),
    "calls-lost-with-stop-strings": dataclasses.replace(_if(_lost, "tools", "stop"), check="combinations"),
    "crash-with-logprobs-and-schema": Fault(
        gate=lambda request, body: error(500, "xgrammar") if _has(body, "logprobs", "json") else None,
    ),
    "thought-spills-with-a-seed": _if(_spilled, "thinking", "seed"),
    "thought-spills-under-a-system-message": _if(_spilled, "thinking", "system", "stream"),
    "half-of-it-with-stop-and-stream": _if(_half, "stop", "stream", "json"),
    "forced-call-lost-after-a-result": _if(_lost, "forced", "result"),
    "answer-lost-with-logprobs-in-streams": _if(_lost, "logprobs", "stream", "system"),
}
