"""Texts that must arrive as they were: characters outside ASCII, blanks and marks, in words, arguments and JSON."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from moebox.phantom import vocabulary as words
from moebox.verify.answer import Answer
from moebox.verify.ask import REFUSALS, Asker, Skipped
from moebox.verify.breach import strict_json
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Warned
from moebox.verify.rungs.turns import or_skipped, user
from moebox.verify.unicode import EXACT, LAYOUT, TEXTS, WIDE, garbled


async def characters(ask: Asker) -> str:
    """Text outside ASCII is read, and comes back as it was."""
    copied, unread = 0, ""
    texts = _some(ask)
    for number, text in enumerate(texts):
        ask.trial = (number + 1, len(texts))
        heard = await _heard(ask, text, first=number % 2 == 1)
        spoilt = _spoilt(ask, text, heard)
        same = any(text in said for said in heard.values())
        copied += same
        if not (same or spoilt or unread):
            unread = f"{text!r} became {next(iter(heard.values()))[:60]!r}"
    if not copied and unread:
        raise Skipped(f"model, not server: it cannot copy such text ({unread})")
    return f"{copied} of {len(texts)} texts copied" + (f"; {unread}" if unread else "")


async def _heard(ask: Asker, text: str, *, first: bool) -> dict[bool, str]:
    """What came back, streamed or not as `first` says, and the other way too where there is more to see."""
    heard = {first: await _repeated(ask, text, first)}
    if text in LAYOUT or text not in heard[first]:  # streams lose blanks and line ends at other places
        heard[not first] = await _repeated(ask, text, not first)
    return heard


def _spoilt(ask: Asker, text: str, heard: dict[bool, str]) -> bool:
    """Count how a text was spoilt on either way; whether it was."""
    whys = {stream: garbled(text, said) or _apart(text, heard, stream) for stream, said in heard.items()}
    for stream, why in whys.items():
        ask.tally.add("unicode" + STREAMED * stream, why)
    return any(whys.values())


def _apart(text: str, heard: dict[bool, str], stream: bool) -> str:
    """ "" or how a text came that was right the other way."""
    if text in heard[stream] or text not in heard.get(not stream, ""):
        return ""
    return f"{text!r} came back as {heard[stream][:60]!r} {_HOW[stream]}, and as it was {_HOW[not stream]}"


_HOW = {False: "whole", True: "streamed"}


async def _repeated(ask: Asker, text: str, stream: bool) -> str:
    request = ask.body([user(f"Repeat after me: {text}")], max_tokens=128, stream=stream or None)
    # llama.cpp writes what its grammar says whatever the model knows; others ignore the field
    exchange = await ask.send(request | {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}"})
    if exchange.status in REFUSALS:
        exchange = await ask.send(request)
    return ask.read(exchange, stream=stream, odd=True).content


async def in_arguments(ask: Asker) -> str | Warned:
    """The same in the arguments of a tool whose schema allows nothing else."""
    return await _forced(ask, _called, "arguments")


async def in_json(ask: Asker) -> str | Warned:
    """The same in JSON whose schema allows nothing else."""
    return await _forced(ask, _constrained, "JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """A value that a schema forced, and what it stood in; no value where that could not be read."""

    value: str | None = None
    written: str = ""

    def garbled(self, text: str) -> str:
        """ "" or how `text` was spoilt on its way."""
        return "" if self.value is None else garbled(text, self.value)

    def other(self, text: str) -> str:
        """ "" or what came instead of `text` and is not `text` spoilt."""
        if not self.written or self.value == text or self.garbled(text):
            return ""
        shown = self.written[:120] if self.value is None else self.value
        return f"{text!r} came as {shown!r}, where the schema allows nothing else"


async def _forced(ask: Asker, make: Callable[[Asker, str, bool], Awaitable[Got]], where: str) -> str | Warned:
    """Texts that are the only value their schema allows; judged where the server holds to that at all."""
    plain = words.invented(ask.rng)  # a word that no server spoils shows whether schemas are held to
    texts = [plain, *(f"{text} {WIDE}" for text in _some(ask)), *EXACT]
    asked = [(text, stream) for text in texts for stream in (True, False)]
    kept, changed = 0, ""
    for number, (text, stream) in enumerate(asked):
        ask.trial = (number + 1, len(asked))
        got = await make(ask, text, stream)
        ask.tally.add("unicode" + STREAMED * stream, got.garbled(text))
        kept += got.value == text
        changed = changed or got.other(text)
        if number == 1 and not kept:
            raise Skipped(f"the server does not hold {where} to a schema with one value: not judged")
    enforced = kept > len(asked) / 2
    return Warned(changed) if changed and enforced else f"{kept} of {len(asked)} texts kept"


def _some(ask: Asker) -> list[str]:
    """All texts, some of them where little is to be asked, or all several times where much is."""
    wanted = ask.options.share(1.0)
    return ask.rng.sample(TEXTS, min(len(TEXTS), wanted)) * max(1, wanted // len(TEXTS))


async def _called(ask: Asker, text: str, stream: bool) -> Got:
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [text]}}, "required": ["city"]}
    about = "Get the current weather in a city."
    tool = {"type": "function", "function": {"name": "get_weather", "description": about, "parameters": schema}}
    turns = [user("What is the weather in the only city that there is?")]
    answer = await or_skipped(ask, turns, tools=[tool], tool_choice="required", stream=stream or None)
    return _city(answer, answer.calls[0].arguments) if answer.calls else Got()


async def _constrained(ask: Asker, text: str, stream: bool) -> Got:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": [text]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": schema}}
    turns = [user("Reply with a JSON object with the key city. There is one city only.")]
    answer = await or_skipped(ask, turns, response_format=form, stream=stream or None)
    return _city(answer, answer.content)


def _city(answer: Answer, text: str) -> Got:
    """What is written under `city`; an answer that was cut says nothing."""
    if answer.finish == "length":
        return Got()
    try:
        found = strict_json(text)
    except ValueError:
        return Got(written=text)
    value = found.get("city") if isinstance(found, dict) else None
    return Got(value=value if isinstance(value, str) else None, written=text)
