"""Conversations in the forms that clients send them. Whether a turn reaches the model shows in the prompt's tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeFailed, ProbeSkipped, require_token_count
from moebox.verify.rung import ProbeWarning

PADDING = "lantern orchard thimble " * 8
GROWTH = 16  # tokens that these 24 words are at least

ChatTurn = dict[str, object]


def user_turn(content: object) -> ChatTurn:
    """A turn of the user's."""
    return {"role": "user", "content": content}


def assistant_turn(content: object) -> ChatTurn:
    """A turn of the assistant's."""
    return {"role": "assistant", "content": content}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationForm:
    """A conversation, and the same without the turn that is looked at."""

    turns: Sequence[ChatTurn]
    without: Sequence[ChatTurn]
    growth: int = GROWTH  # tokens that the turn is at least


HELLO = user_turn("Hello!")
TALK = (HELLO, assistant_turn("Hello, what can I do?"))
FORMS: dict[str, ConversationForm] = {
    "a developer message": ConversationForm(turns=[{"role": "developer", "content": PADDING}, HELLO], without=[HELLO]),
    "a system message in mid-conversation": ConversationForm(
        turns=[*TALK, {"role": "system", "content": PADDING}, HELLO], without=[*TALK, HELLO]
    ),
    "two turns in a row of users with names": ConversationForm(
        turns=[{**user_turn(PADDING), "name": "ann"}, {**HELLO, "name": "bo"}], without=[HELLO]
    ),
    "an assistant's turn as parts": ConversationForm(
        turns=[HELLO, assistant_turn([{"type": "text", "text": PADDING}]), HELLO], without=[HELLO, HELLO]
    ),
    "an empty turn of the assistant": ConversationForm(
        turns=[HELLO, assistant_turn(""), HELLO], without=[HELLO], growth=1
    ),
    # what gateways take for their own templates, and filters for marks of the model's
    "words in double braces": ConversationForm(turns=[user_turn("Hello! " + "{{ lantern }} " * 8)], without=[HELLO]),
    "words like a template's marks": ConversationForm(
        turns=[user_turn("Hello! " + "<|lantern|> " * 8)], without=[HELLO]
    ),
}


async def probe_conversation_forms(session: CheckSession) -> str | ProbeWarning:
    """Each form is taken, and what it adds is in the prompt; a polite refusal is said, for agents send them all."""
    refused: list[str] = []
    known: dict[str, int] = {}  # the same beginning is counted once
    for number, (title, form) in enumerate(FORMS.items()):
        session.trial_progress = (number + 1, len(FORMS))
        try:
            many = await _prompt_tokens(session, form.turns)
        except ProbeFailed as problem:
            if problem.status in REJECTED_STATUSES:
                refused.append(f"{title} ({problem})")
            else:
                session.failures.add("prompt", f"{title}: {problem}")
            continue
        key = json.dumps(form.without)
        few = known[key] = known.get(key) or await _prompt_tokens(session, form.without)
        why = f"{title}: {few} prompt tokens without it and {many} with it: it is dropped"
        session.failures.expect("prompt", many >= few + form.growth, why)
    if refused:
        return ProbeWarning(f"refused: {'; '.join(refused)}")
    return f"{len(FORMS)} forms of conversations read"


async def _prompt_tokens(session: CheckSession, turns: Sequence[ChatTurn]) -> int:
    return require_token_count(await session.chat(turns, max_tokens=8, allow_marks=True))


def prompt_grew(few: int | None, many: int | None, least: float) -> bool:
    """A prompt is `least` tokens longer than another, or nobody counts them."""
    return few is None or many is None or many >= few + least


async def chat_or_skip(session: CheckSession, turns: list[Any], **more: Any) -> ChatAnswer:
    """An answer; Skipped where the server refuses what is asked."""
    try:
        return await session.chat(turns, allow_marks=True, max_tokens=256, **more)
    except ProbeFailed as problem:
        if problem.status in REJECTED_STATUSES:
            raise ProbeSkipped(f"refused: {problem}") from None
        raise
