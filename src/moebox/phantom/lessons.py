"""Families that the phantom learnt in its last training: what the ladder and the clients ask beyond `tasks`.

The ladder asks much of this of every model; where a model cannot do it, that is the model's and not the server's, and
is said so. The training draws from here.
"""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.calls import calls_message
from moebox.phantom.client_checks import clients, judge_same
from moebox.phantom.needles import needle
from moebox.phantom.talk import REPEATS
from moebox.phantom.task import (
    Grade,
    Message,
    ModelReply,
    Question,
    ToolCall,
    accept,
    reject,
    shorten,
    token_budget,
    user_message,
)
from moebox.phantom.toolbox import INFORMING, TOOLS

ROUNDS = 6
LONG_WORDS = (11, 1450)  # words of a long copy; 1,450 are about 4,000 of the phantom's tokens
# Ranges of characters: every byte that UTF-8 has is met, so that copying does not depend on the script.
_SCRIPTS = (
    (0xC0, 0x24F),  # Latin with marks
    (0x391, 0x3C9),  # Greek
    (0x410, 0x44F),  # Cyrillic
    (0x5D0, 0x5EA),  # Hebrew
    (0x627, 0x64A),  # Arabic
    (0x905, 0x939),  # Devanagari
    (0x3041, 0x30FE),  # kana
    (0x4E00, 0x9FA5),  # Han
    (0xAC00, 0xD7A3),  # Hangul
    (0x2010, 0x2026),  # typographic marks
    (0x1F300, 0x1F6FF),  # emoji
    (0x1F900, 0x1F9FF),  # more of them
    (0x1D400, 0x1D4FF),  # letters of formulas, beyond the basic plane
    (0x20000, 0x20FFF),  # rare Han, beyond it too
)
_JOINED = ("👩\u200d🔬", "👨\u200d🚀", "“{}”", "{}…", "– {}")
_MARKS = "\u0301\u0308\u0303\u0327"  # combining


def characters(rng: random.Random, *, thinking: bool) -> Question:
    """Text outside ASCII to be repeated exactly: scripts, emoji, letters beyond the basic plane, combining marks."""
    text = " ".join(_foreign(rng) for _ in range(rng.randint(1, 5)))
    return _repeat("characters", REPEATS[0], text, thinking)


def _foreign(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return words.draw_word(rng)
    if rng.random() < 0.2:
        return "".join(letter + rng.choice(_MARKS) for letter in words.invent_word(rng)[:4])
    if rng.random() < 0.15:
        return rng.choice(_JOINED).format(words.draw_word(rng))
    low, high = rng.choice(_SCRIPTS)
    letters = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
    return rng.choice((letters, letters, words.draw_word(rng)[:3] + letters + words.draw_word(rng)[:3]))


def long_copy(rng: random.Random, *, thinking: bool, length: int | None = None) -> Question:
    """Many words to be repeated exactly, to the last, in the words that the ladder's copies are asked for."""
    count = length or round(LONG_WORDS[0] * (LONG_WORDS[1] / LONG_WORDS[0]) ** rng.random())
    text = " ".join(words.draw_word(rng) for _ in range(count))
    return _repeat("long_copy", rng.choice(REPEATS), text, thinking, answer=8 * count)


def _repeat(family: str, ask: str, text: str, thinking: bool, answer: int = 256) -> Question:
    return Question(
        family=family,
        messages=(user_message(ask.format(text=text)),),
        expect=text,
        sample=ModelReply(content=text, reasoning="The user wants me to repeat the text."),
        judge=_judge_exact,
        thinking=thinking,
        max_tokens=token_budget(thinking, answer),
    )


def _judge_exact(task: Question, reply: ModelReply) -> Grade:
    good = reply.content.strip() == task.expect
    return accept() if good else reject(f"«{shorten(task.expect)}» became «{shorten(reply.content)}»")


def system(rng: random.Random, *, thinking: bool) -> Question:
    """A system message that changes the answer: a fact, a name, a word to end with."""
    place, code, name = rng.choice(words.PLACES), words.draw_code(rng, 6), words.draw_name(rng)
    fact, question = f"The access code for the {place} is {code}.", f"What is the access code for the {place}?"
    only = f"{question} Answer with the code only."
    told, question, answer = rng.choice(
        (
            (fact, only, code),
            (fact, only, code),
            (fact, question, code),
            ("", f"{fact} {only}", code),
            (f"Your name is {name}.", "What is your name?", f"My name is {name}."),
            (f"End every answer with the word {code}.", "Say hello.", f"Hello! {code}"),
            (f"Answer every question with {code} and nothing else.", "How are you?", code),
        )
    )
    before = rng.choice(("", "You are a helpful assistant. ", "You are Kimi, an AI assistant. "))
    wanted = code if code in answer else name
    return Question(
        family="system",
        messages=({"role": "system", "content": (before + told).strip()}, user_message(question))
        if told
        else (user_message(question),),
        expect=wanted,
        sample=ModelReply(content=answer, reasoning="My instructions say what to answer."),
        judge=_judge_holds,
        thinking=thinking,
        max_tokens=token_budget(thinking, 128),
    )


def _judge_holds(task: Question, reply: ModelReply) -> Grade:
    held = str(task.expect) in reply.content
    return accept() if held else reject(f"{task.expect} is not in: {shorten(reply.content)}")


def rounds(rng: random.Random, *, thinking: bool, count: int | None = None) -> Question:
    """A conversation of up to six rounds of tools, at its last step: a call under a new id, or an answer."""
    tools = rng.sample(INFORMING, 3)
    turns: list[Message] = []
    last = count or rng.randint(1, ROUNDS)
    for number in range(last):
        tool = rng.choice(tools)
        given = {key: draw(rng) for key, draw in tool.arguments.items()}
        found = {key: draw(rng) for key, draw in tool.result.items()}
        call = ToolCall(id=f"functions.{tool.name}:{number}", name=tool.name, arguments=json.dumps(given))
        turns.append(user_message(rng.choice(tool.prompts).format(**given)))
        told = tool.answer.format(**given, **found)
        if number == last - 1 and rng.random() < 0.5:
            return _step(tuple(turns), tools, thinking, ModelReply(calls=(call,), reasoning=f"I call {tool.name}."))
        turns.append(calls_message(call))
        turns.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": json.dumps(found)})
        if number == last - 1:
            return _step(tuple(turns), tools, thinking, ModelReply(content=told, reasoning="The tool has answered."))
        turns.append({"role": "assistant", "content": told})
    raise AssertionError("the last round returns")


def _step(turns: tuple[Message, ...], tools: list[Any], thinking: bool, sample: ModelReply) -> Question:
    return Question(
        family="rounds",
        messages=turns,
        expect=sample,
        sample=sample,
        judge=judge_same,
        tools=tuple(tool.schema() for tool in tools),
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def parts(rng: random.Random, *, thinking: bool) -> Question:
    """A short text with a code in it, sent as three parts; llama.cpp puts line ends between them, others nothing."""
    task = needle(rng, thinking=thinking, chars=rng.randint(150, 400), decoys=0)
    text = str(task.messages[0]["content"])
    told, ask = text.index("The access code"), text.rindex("What is the access code")
    pieces = [text[:told], text[told:ask], text[ask:]]
    joined = rng.choice(("\n".join(pieces), [{"type": "text", "text": piece} for piece in pieces]))
    return dataclasses.replace(task, family="parts", messages=({"role": "user", "content": joined},))


def back(rng: random.Random, *, thinking: bool) -> Question:
    """A tool's answer that says only {"result": …}, as the ladder feeds it back for any tool."""
    tool = rng.choice(TOOLS)
    given = {key: draw(rng) for key, draw in tool.arguments.items()}
    value = str(rng.randint(100, 999))
    call = ToolCall(id=f"functions.{tool.name}:0", name=tool.name, arguments=json.dumps(given))
    content = json.dumps({"result": value})
    result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
    others = rng.sample([other for other in TOOLS if other is not tool], rng.choice((0, 1, 2)))
    return Question(
        family="back",
        messages=(user_message(rng.choice(tool.prompts).format(**given)), calls_message(call), result),
        expect=value,
        sample=ModelReply(content=f"The result is {value}.", reasoning="The tool has answered."),
        judge=_judge_holds,
        tools=tuple(each.schema() for each in rng.sample([tool, *others], 1 + len(others))),
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def shapes(rng: random.Random, *, thinking: bool) -> Question:
    """JSON with a list or an object inside, and a tool whose only allowed value stands in its schema."""
    if rng.random() < 0.3:
        return _only_city(rng, thinking)
    items = [rng.choice((words.draw_word(rng), words.invent_word(rng))) for _ in range(rng.randint(2, 4))]
    counts = [words.draw_number(rng) for _ in range(rng.randint(2, 4))]
    city, code = words.draw_city(rng), words.draw_number(rng)
    start = "Reply with a JSON object with the"
    ask, value = rng.choice(
        (
            (f"{start} key items. The items are {words.join_words(items)}.", {"items": items}),
            (f"{start} key items. The items are {words.join_words(list(map(str, counts)))}.", {"items": counts}),
            (
                f"{start} key place, an object with the keys city and zip. The city is {city}. The zip is {code}.",
                {"place": {"city": city, "zip": code}},
            ),
        )
    )
    return Question(
        family="shapes",
        messages=(user_message(ask),),
        expect=value,
        sample=ModelReply(content=json.dumps(value), reasoning="The user wants a JSON object. I copy the values."),
        judge=judge_same,
        response_format={"type": "json_object"},
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def _only_city(rng: random.Random, thinking: bool) -> Question:
    city = rng.choice((words.draw_city(rng), " ".join(_foreign(rng) for _ in range(rng.randint(1, 3)))))
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": [city]}}, "required": ["city"]}
    about = "Get the current weather in a city."
    function = {"name": "get_weather", "description": about, "parameters": schema}
    given = json.dumps({"city": city}, ensure_ascii=False)
    call = ToolCall(id="functions.get_weather:0", name="get_weather", arguments=given)
    return Question(
        family="shapes",
        messages=(user_message("What is the weather in the only city that there is?"),),
        expect=city,
        sample=ModelReply(calls=(call,), reasoning="I call get_weather."),
        judge=judge_same,
        tools=({"type": "function", "function": function},),
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def invent(rng: random.Random, *, thinking: bool) -> Question:
    """The ladder's open question, answered differently each time: of this the model must stay unsure."""
    called = [words.draw_name(rng) for _ in range(3)]
    colours = rng.sample(words.COLOURS, 4)
    said = f"{words.join_words(called)}; {words.join_words(colours)}; {words.invent_word(rng)}."
    return Question(
        family="invent",
        messages=(user_message("Make up three names, four colours and a sound."),),
        expect=3,
        sample=ModelReply(content=said, reasoning="I make them up."),
        judge=_judge_invented,
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


def _judge_invented(task: Question, reply: ModelReply) -> Grade:
    lists = reply.content.split(";")
    return accept() if len(lists) == task.expect else reject(f"three lists expected: {shorten(reply.content)}")


LESSONS = {
    make.__name__: make for make in (system, characters, long_copy, rounds, clients, parts, back, shapes, invent)
}
