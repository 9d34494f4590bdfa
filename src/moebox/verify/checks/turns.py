"""Conversations and requests in the variants that clients send. Prompt tokens show whether a turn reaches the model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moebox.verify.completions import ChatAnswer
from moebox.verify.session import (
    REJECTED_STATUSES,
    ProbeFailed,
    ProbeWarning,
    error_text,
    require_token_count,
    skip_if_rejected,
)
from moebox.verify.trials import CheckSession

PADDING = "lantern orchard thimble " * 8
PADDING_TOKENS = 16  # that these 24 words are at least

ChatTurn = dict[str, object]


def user_turn(content: object) -> ChatTurn:
    return {"role": "user", "content": content}


def assistant_turn(content: object) -> ChatTurn:
    return {"role": "assistant", "content": content}


@dataclass(frozen=True, slots=True)
class ConversationForm:
    """A conversation, and the same one without the turn under test."""

    turns: Sequence[ChatTurn]
    without: Sequence[ChatTurn]
    growth: int = PADDING_TOKENS  # tokens that the turn is at least


HELLO = user_turn("Hello!")
CHAT = (HELLO, assistant_turn("Hello, what can I do?"))
CONVERSATIONS: dict[str, ConversationForm] = {
    "a developer message": ConversationForm([{"role": "developer", "content": PADDING}, HELLO], [HELLO]),
    "a system message in mid-conversation": ConversationForm(
        [*CHAT, {"role": "system", "content": PADDING}, HELLO], [*CHAT, HELLO]
    ),
    "two turns in a row of users with names": ConversationForm(
        [{**user_turn(PADDING), "name": "ann"}, {**HELLO, "name": "bo"}], [HELLO]
    ),
    "an assistant's turn as parts": ConversationForm(
        [HELLO, assistant_turn([{"type": "text", "text": PADDING}]), HELLO], [HELLO, HELLO]
    ),
    "an empty turn of the assistant": ConversationForm([HELLO, assistant_turn(""), HELLO], [HELLO], growth=1),
    # gateways take these for their own templates, filters for marks of the model
    "words in double braces": ConversationForm([user_turn("Hello! " + "{{ lantern }} " * 8)], [HELLO]),
    "words like a template's marks": ConversationForm([user_turn("Hello! " + "<|lantern|> " * 8)], [HELLO]),
}


async def probe_conversation_forms(session: CheckSession) -> str | ProbeWarning:
    """Each conversation is accepted, and its turn is in the prompt. A clear rejection is a warning: agents send all."""
    rejected: list[str] = []
    known: dict[str, int] = {}  # the same beginning is counted once

    async def prompt_tokens(turns: Sequence[ChatTurn]) -> int:
        return require_token_count(await session.chat(turns, max_tokens=8, allow_marks=True))

    for number, (title, form) in enumerate(CONVERSATIONS.items()):
        session.trial_progress = (number + 1, len(CONVERSATIONS))
        try:
            many = await prompt_tokens(form.turns)
        except ProbeFailed as problem:
            if problem.status in REJECTED_STATUSES:
                rejected.append(f"{title} ({problem})")
            else:
                session.failures.add("prompt", f"{title}: {problem}")
            continue
        key = json.dumps(form.without)
        few = known[key] = known.get(key) or await prompt_tokens(form.without)
        reason = f"{title}: {few} prompt tokens without it and {many} with it: it is dropped"
        session.failures.expect("prompt", many >= few + form.growth, reason)
    if rejected:
        return ProbeWarning(f"refused: {'; '.join(rejected)}")
    return f"{len(CONVERSATIONS)} forms of conversations read"


def prompt_grew(few: int | None, many: int | None, least: float) -> bool:
    """True if a prompt is `least` tokens longer than another, or the server counts none."""
    return few is None or many is None or many >= few + least


async def chat_or_skip(session: CheckSession, turns: list[Any], **more: Any) -> ChatAnswer:
    """Ask, or raise ProbeSkipped if the server rejects the request."""
    with skip_if_rejected("refused"):
        return await session.chat(turns, allow_marks=True, max_tokens=256, **more)


_DEFAULTS = {"top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0}
_REFRESH: dict[str, object] = {"name": "refresh_all", "description": "Refresh everything."}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_FUNCTIONS: dict[str, dict[str, object]] = {
    "a tool without parameters": _REFRESH,
    "a tool without a description": {"name": "refresh_all", "parameters": _NO_PARAMETERS},
    "a tool with strict": {**_REFRESH, "strict": True, "parameters": _NO_PARAMETERS},
}
REQUEST_FIELDS: Mapping[str, Mapping[str, object]] = {
    "settings at their defaults (top_p 1, n 1, penalties 0)": _DEFAULTS,
    "what SDKs add (user, store, service_tier)": {"user": "ann", "store": False, "service_tier": "auto"},
    "settings that are null (stop, top_p, n)": {"stop": None, "top_p": None, "n": None},
    **{title: {"tools": [{"type": "function", "function": function}]} for title, function in _FUNCTIONS.items()},
}


async def probe_request_fields(session: CheckSession) -> str | ProbeWarning:
    """Each field is documented, and SDKs send it by themselves: it is accepted. A clear rejection is a warning."""
    rejected: list[str] = []
    for number, (title, fields) in enumerate(REQUEST_FIELDS.items()):
        session.trial_progress = (number + 1, len(REQUEST_FIELDS))
        stream = number % 2 == 1
        request = session.chat_request([HELLO], max_tokens=8, stream=stream or None) | dict(fields)
        exchange = await session.post_chat(request)
        if exchange.status in REJECTED_STATUSES:
            rejected.append(f"{title} (HTTP {exchange.status}{error_text(exchange)})")
            continue
        try:
            session.read_answer(exchange, stream=stream, allow_marks=True)
        except ProbeFailed as problem:
            session.failures.add("prompt", f"{title}: {problem}", stream=stream)
    if rejected:
        return ProbeWarning(f"refused: {'; '.join(rejected)}")
    return f"{len(REQUEST_FIELDS)} forms of requests taken"
