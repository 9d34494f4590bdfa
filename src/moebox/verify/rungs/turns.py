"""Conversations in the forms that clients send them. Whether a turn reaches the model shows in the prompt's tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Failed, Skipped, counted
from moebox.verify.rung import Warned

PADDING = "lantern orchard thimble " * 8
GROWTH = 16  # tokens that these 24 words are at least

Turn = dict[str, object]


def user(content: object) -> Turn:
    """A turn of the user's."""
    return {"role": "user", "content": content}


def assistant(content: object) -> Turn:
    """A turn of the assistant's."""
    return {"role": "assistant", "content": content}


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A conversation, and the same without the turn that is looked at."""

    turns: Sequence[Turn]
    without: Sequence[Turn]
    growth: int = GROWTH  # tokens that the turn is at least


HELLO = user("Hello!")
TALK = (HELLO, assistant("Hello, what can I do?"))
FORMS: dict[str, Form] = {
    "a developer message": Form(turns=[{"role": "developer", "content": PADDING}, HELLO], without=[HELLO]),
    "a system message in mid-conversation": Form(
        turns=[*TALK, {"role": "system", "content": PADDING}, HELLO], without=[*TALK, HELLO]
    ),
    "two turns in a row of users with names": Form(
        turns=[{**user(PADDING), "name": "ann"}, {**HELLO, "name": "bo"}], without=[HELLO]
    ),
    "an assistant's turn as parts": Form(
        turns=[HELLO, assistant([{"type": "text", "text": PADDING}]), HELLO], without=[HELLO, HELLO]
    ),
    "an empty turn of the assistant": Form(turns=[HELLO, assistant(""), HELLO], without=[HELLO], growth=1),
    # what gateways take for their own templates, and filters for marks of the model's
    "words in double braces": Form(turns=[user("Hello! " + "{{ lantern }} " * 8)], without=[HELLO]),
    "words like a template's marks": Form(turns=[user("Hello! " + "<|lantern|> " * 8)], without=[HELLO]),
}


async def forms(ask: Asker) -> str | Warned:
    """Each form is taken, and what it adds is in the prompt; a polite refusal is said, for agents send them all."""
    refused: list[str] = []
    known: dict[str, int] = {}  # the same beginning is counted once
    for number, (title, form) in enumerate(FORMS.items()):
        ask.trial = (number + 1, len(FORMS))
        try:
            many = await _prompt_tokens(ask, form.turns)
        except Failed as problem:
            if problem.status in REFUSALS:
                refused.append(f"{title} ({problem})")
            else:
                ask.tally.add("prompt", f"{title}: {problem}")
            continue
        key = json.dumps(form.without)
        few = known[key] = known.get(key) or await _prompt_tokens(ask, form.without)
        why = f"{title}: {few} prompt tokens without it and {many} with it: it is dropped"
        ask.tally.need("prompt", many >= few + form.growth, why)
    if refused:
        return Warned(f"refused: {'; '.join(refused)}")
    return f"{len(FORMS)} forms of conversations read"


async def _prompt_tokens(ask: Asker, turns: Sequence[Turn]) -> int:
    return counted(await ask.chat(turns, max_tokens=8, odd=True))


def grew(few: int | None, many: int | None, least: float) -> bool:
    """A prompt is `least` tokens longer than another, or nobody counts them."""
    return few is None or many is None or many >= few + least


async def or_skipped(ask: Asker, turns: list[Any], **more: Any) -> Answer:
    """An answer; Skipped where the server refuses what is asked."""
    try:
        return await ask.chat(turns, odd=True, max_tokens=256, **more)
    except Failed as problem:
        if problem.status in REFUSALS:
            raise Skipped(f"refused: {problem}") from None
        raise
