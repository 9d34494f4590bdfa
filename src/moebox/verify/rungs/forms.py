"""Requests in the forms that clients send them: settings spelled out, nulls, tools with fields left out or added."""

from collections.abc import Mapping

from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, error_text
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import ProbeWarning
from moebox.verify.rungs.turns import HELLO

_NONE = {"type": "object", "properties": {}}


def _tools(**function: object) -> dict[str, object]:
    return {"tools": [{"type": "function", "function": {"name": "refresh_all", **function}}]}


REQUEST_FIELDS: Mapping[str, Mapping[str, object]] = {
    "settings at their defaults (top_p 1, n 1, penalties 0)": {
        "top_p": 1,
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    },
    "what SDKs add (user, store, service_tier)": {"user": "ann", "store": False, "service_tier": "auto"},
    "settings that are null (stop, top_p, n)": {"stop": None, "top_p": None, "n": None},
    "a tool without parameters": _tools(description="Refresh everything."),
    "a tool without a description": _tools(parameters=_NONE),
    "a tool with strict": _tools(description="Refresh everything.", strict=True, parameters=_NONE),
}


async def probe_request_fields(session: CheckSession) -> str | ProbeWarning:
    """Each is documented, and SDKs send it unasked: it is taken. A polite refusal is said."""
    refused: list[str] = []
    for number, (title, fields) in enumerate(REQUEST_FIELDS.items()):
        session.trial_progress = (number + 1, len(REQUEST_FIELDS))
        stream = number % 2 == 1
        exchange = await session.post_chat(session.chat_request([HELLO], max_tokens=8, stream=stream or None) | fields)
        if exchange.status in REJECTED_STATUSES:
            refused.append(f"{title} (HTTP {exchange.status}{error_text(exchange)})")
            continue
        try:
            session.read_answer(exchange, stream=stream, allow_marks=True)
        except ProbeFailed as problem:
            session.failures.add("prompt" + STREAMED * stream, f"{title}: {problem}")
    return (
        ProbeWarning(f"refused: {'; '.join(refused)}") if refused else f"{len(REQUEST_FIELDS)} forms of requests taken"
    )
