"""Texts that must arrive as they were: characters outside ASCII, blanks and marks, in words, arguments and JSON."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from moebox.phantom import vocabulary as words
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import REJECTED_STATUSES, CheckSession, ProbeSkipped
from moebox.verify.breach import parse_strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import ProbeWarning
from moebox.verify.rungs.turns import chat_or_skip, user_turn
from moebox.verify.unicode import EXACT, LAYOUT, TEXTS, WIDE, garbling


async def probe_characters(session: CheckSession) -> str:
    """Text outside ASCII is read, and comes back as it was."""
    copied, unread = 0, ""
    texts = _some(session)
    for number, text in enumerate(texts):
        session.trial_progress = (number + 1, len(texts))
        heard = await _heard(session, text, first=number % 2 == 1)
        spoilt = _spoilt(session, text, heard)
        same = any(text in said for said in heard.values())
        copied += same
        if not (same or spoilt or unread):
            unread = f"{text!r} became {next(iter(heard.values()))[:60]!r}"
    if not copied and unread:
        raise ProbeSkipped(f"model, not server: it cannot copy such text ({unread})")
    return f"{copied} of {len(texts)} texts copied" + (f"; {unread}" if unread else "")


async def _heard(session: CheckSession, text: str, *, first: bool) -> dict[bool, str]:
    """What came back, streamed or not as `first` says, and the other way too where there is more to see."""
    heard = {first: await _repeated(session, text, first)}
    if text in LAYOUT or text not in heard[first]:  # streams lose blanks and line ends at other places
        heard[not first] = await _repeated(session, text, not first)
    return heard


def _spoilt(session: CheckSession, text: str, heard: dict[bool, str]) -> bool:
    """Count how a text was spoilt on either way; whether it was."""
    whys = {stream: garbling(text, said) or _apart(text, heard, stream) for stream, said in heard.items()}
    for stream, why in whys.items():
        session.failures.add("unicode" + STREAMED * stream, why)
    return any(whys.values())


def _apart(text: str, heard: dict[bool, str], stream: bool) -> str:
    """ "" or how a text came that was right the other way."""
    if text in heard[stream] or text not in heard.get(not stream, ""):
        return ""
    return f"{text!r} came back as {heard[stream][:60]!r} {_HOW[stream]}, and as it was {_HOW[not stream]}"


_HOW = {False: "whole", True: "streamed"}


async def _repeated(session: CheckSession, text: str, stream: bool) -> str:
    request = session.chat_request([user_turn(f"Repeat after me: {text}")], max_tokens=128, stream=stream or None)
    # llama.cpp writes what its grammar says whatever the model knows; others ignore the field
    exchange = await session.post_chat(request | {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"})
    if exchange.status in REJECTED_STATUSES:
        exchange = await session.post_chat(request)
    return session.read_answer(exchange, stream=stream, allow_marks=True).content


async def probe_characters_in_arguments(session: CheckSession) -> str | ProbeWarning:
    """The same in the arguments of a tool whose schema allows nothing else."""
    return await _forced(session, _called, "arguments")


async def probe_characters_in_json(session: CheckSession) -> str | ProbeWarning:
    """The same in JSON whose schema allows nothing else."""
    return await _forced(session, _constrained, "JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedValue:
    """A value that a schema forced, and what it stood in; no value where that could not be read."""

    value: str | None = None
    written: str = ""

    def garbling(self, text: str) -> str:
        """ "" or how `text` was spoilt on its way."""
        return "" if self.value is None else garbling(text, self.value)

    def other_value(self, text: str) -> str:
        """ "" or what came instead of `text` and is not `text` spoilt."""
        if not self.written or self.value == text or self.garbling(text):
            return ""
        shown = self.written[:120] if self.value is None else self.value
        return f"{text!r} came as {shown!r}, where the schema allows nothing else"


async def _forced(
    session: CheckSession, make: Callable[[CheckSession, str, bool], Awaitable[ForcedValue]], where: str
) -> str | ProbeWarning:
    """Texts that are the only value their schema allows; judged where the server holds to that at all."""
    plain = words.invent_word(session.rng)  # a word that no server spoils shows whether schemas are held to
    texts = [plain, *(f"{text} {WIDE}" for text in _some(session)), *EXACT]
    asked = [(text, stream) for text in texts for stream in (True, False)]
    kept, changed = 0, ""
    for number, (text, stream) in enumerate(asked):
        session.trial_progress = (number + 1, len(asked))
        got = await make(session, text, stream)
        session.failures.add("unicode" + STREAMED * stream, got.garbling(text))
        kept += got.value == text
        changed = changed or got.other_value(text)
        if number == 1 and not kept:
            raise ProbeSkipped(f"the server does not hold {where} to a schema with one value: not judged")
    enforced = kept > len(asked) / 2
    return ProbeWarning(changed) if changed and enforced else f"{kept} of {len(asked)} texts kept"


def _some(session: CheckSession) -> list[str]:
    """All texts, some of them where little is to be asked, or all several times where much is."""
    wanted = session.options.trial_share(1.0)
    return session.rng.sample(TEXTS, min(len(TEXTS), wanted)) * max(1, wanted // len(TEXTS))


async def _called(session: CheckSession, text: str, stream: bool) -> ForcedValue:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [text]}}, "required": ["city"]}
    about = "Get the current weather in a city."
    tool = {"type": "function", "function": {"name": "get_weather", "description": about, "parameters": schema}}
    turns = [user_turn("What is the weather in the only city that there is?")]
    answer = await chat_or_skip(session, turns, tools=[tool], tool_choice="required", stream=stream or None)
    return _city(answer, answer.calls[0].arguments) if answer.calls else ForcedValue()


async def _constrained(session: CheckSession, text: str, stream: bool) -> ForcedValue:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": [text]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
    turns = [user_turn("Reply with a JSON object with the key city. There is one city only.")]
    answer = await chat_or_skip(session, turns, response_format=form, stream=stream or None)
    return _city(answer, answer.content)


def _city(answer: ChatAnswer, text: str) -> ForcedValue:
    """What is written under `city`; an answer that was cut says nothing."""
    if answer.finish_reason == "length":
        return ForcedValue()
    try:
        found = parse_strict_json(text)
    except ValueError:
        return ForcedValue(written=text)
    value = found.get("city") if isinstance(found, dict) else None
    return ForcedValue(value=value if isinstance(value, str) else None, written=text)
