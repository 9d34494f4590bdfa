"""Conversations and requests in the variants that clients send. Prompt tokens show whether a turn reaches the model."""

import json
from collections.abc import Sequence
from typing import Any

from moebox.core import catalogue
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


_REQUESTS = catalogue.load_table("check_requests")
HELLO = user_turn("Hello!")


async def probe_conversation_forms(session: CheckSession) -> str | ProbeWarning:
    """Each conversation is accepted, and its turn is in the prompt. A clear rejection is a warning: agents send all."""
    rejected: list[str] = []
    known: dict[str, int] = {}  # the same beginning is counted once

    async def prompt_tokens(turns: Sequence[ChatTurn]) -> int:
        return require_token_count(await session.chat(turns, max_tokens=1, allow_marks=True))

    rows = _REQUESTS["conversation"]
    for number, row in enumerate(rows):
        session.trial_progress = (number + 1, len(rows))
        title, without = row["title"], json.loads(row["without"])
        try:
            many = await prompt_tokens(json.loads(row["turns"].replace("PADDING", PADDING)))
        except ProbeFailed as problem:
            if problem.status in REJECTED_STATUSES:
                rejected.append(f"{title} ({problem})")
            else:
                session.failures.add("prompt", f"{title}: {problem}")
            continue
        key = row["without"]
        few = known[key] = known.get(key) or await prompt_tokens(without)
        reason = f"{title}: {few} prompt tokens without it and {many} with it: it is dropped"
        session.failures.expect("prompt", many >= few + row["growth"], reason)
    if rejected:
        return ProbeWarning(f"refused: {'; '.join(rejected)}")
    return f"{len(rows)} kinds of conversations read"


def prompt_grew(few: int | None, many: int | None, least: float) -> bool:
    """True if a prompt is `least` tokens longer than another, or the server counts none."""
    return few is None or many is None or many >= few + least


async def chat_or_skip(session: CheckSession, turns: list[Any], **more: Any) -> ChatAnswer:
    """Ask, or raise ProbeSkipped if the server rejects the request."""
    with skip_if_rejected("refused"):
        return await session.chat(turns, allow_marks=True, **{"max_tokens": 256, **more})


async def probe_request_fields(session: CheckSession) -> str | ProbeWarning:
    """Each field is documented, and SDKs send it by themselves: it is accepted. A clear rejection is a warning."""
    rejected: list[str] = []
    rows = _REQUESTS["fields"]
    for number, row in enumerate(rows):
        title, fields = row["title"], json.loads(row["request"])
        session.trial_progress = (number + 1, len(rows))
        stream = number % 2 == 1
        request = session.chat_request([HELLO], max_tokens=4, stream=stream) | fields
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
    return f"{len(rows)} kinds of requests accepted"
