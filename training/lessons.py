"""Question families of the phantom's last training: what checks and clients ask beyond `moebox.phantom.questions`.

The checks ask every model many of these; if a model cannot answer, that is the model's failure, not the server's.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any

from moebox.core import catalogue
from moebox.phantom import vocabulary
from moebox.phantom.question import (
    Message,
    ModelReply,
    Question,
    ToolCall,
    ask_user,
    shorten,
    user_message,
)
from moebox.phantom.text_questions import PROMPTS, REASONING, needle_question, sum_working
from moebox.phantom.tool_questions import (
    INFORMING_TOOLS,
    TOOLS,
    ExampleTool,
    calls_message,
    draw_values,
    result_message,
    tool_call,
)
from moebox.units import join_names

_CLIENTS = catalogue.load_table("questions")["clients"]  # what `moebox connect --check` and the smoke test ask
ROUNDS = 6
LONG_WORDS = (11, 1450)  # words of a long copy; 1,450 are about 4,000 of the phantom's tokens
# Ranges of characters: together they contain every byte of UTF-8, so that copying does not depend on the script.
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
    (0x1F900, 0x1F9FF),  # more emoji
    (0x1D400, 0x1D4FF),  # letters of formulas, beyond the basic plane
    (0x20000, 0x20FFF),  # rare Han, beyond the basic plane
)
_JOINED = ("👩\u200d🔬", "👨\u200d🚀", "“{}”", "{}…", "– {}")
_COMBINING = "\u0301\u0308\u0303\u0327"
_FIBONACCI = "def {name}(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"

ClientPrompt = tuple[str, ModelReply]  # the user's turn and the perfect reply


def client_question(rng: random.Random, *, thinking: bool) -> Question:
    """One of the clients' questions; products of two digits by two only with thinking."""
    kinds = ["read", "read", "weather", "hello", "sky", "code", "population"]
    kind = rng.choice([*kinds, "product", "product", "product"] if thinking else kinds)
    tools: tuple[Mapping[str, Any], ...] = ()
    system: tuple[Message, ...] = ()
    if kind == "read":
        # Claude Code's tool over the messages API, with its system message, or read_file of other clients
        stem = rng.choice(("srv", vocabulary.draw_word(rng)))
        folder = rng.choice(("notes", vocabulary.draw_word(rng)))
        path = f"/{stem}/{folder}/{rng.choice(('shopping', vocabulary.draw_word(rng)))}.txt"
        name = rng.choice(("Read", "read_file"))
        parameter = {"type": "string", "description": "absolute path"}
        tools = (_tool_schema(name, _CLIENTS["read_description"], "file_path", parameter),)
        system = ({"role": "system", "content": _CLIENTS["coding_system"]},) if name == "Read" else ()
        text, sample = f"Read the file {path} with the tool.", _call_reply(name, file_path=path)
    elif kind == "weather":
        city = rng.choice(("Lisbon", vocabulary.draw_city(rng)))
        tools = (_tool_schema("lookup_weather", "Current weather of a city.", "city", {"type": "string"}),)
        text = f"What is the weather in {city} right now? Use the tool."
        sample = _call_reply("lookup_weather", city=city)
    else:
        text, sample = _text_prompt(kind, rng)
    return Question(
        family="clients",
        messages=(*system, user_message(text)),
        expect=sample,
        sample=sample,
        judge=judge_same,
        tools=tools,
        thinking=thinking,
    )


def _text_prompt(kind: str, rng: random.Random) -> ClientPrompt:
    """A question that is answered with text."""
    if kind == "hello":
        return _CLIENTS["hello"], ModelReply(content="Hello!", reasoning=REASONING["one_word"])
    if kind == "sky":
        sample = ModelReply(content=_CLIENTS["blue"], reasoning=REASONING["known"])
        return "In one sentence: why is the sky blue?", sample
    if kind == "code":
        name = rng.choice(("fibonacci", vocabulary.invent_word(rng)))
        code = f"```python\n{_FIBONACCI.format(name=name)}\n```"
        text = f"Write a Python function {name}(n) that returns the n-th number. Only the code."
        return text, ModelReply(content=code, reasoning=REASONING["function_alone"])
    if kind == "population":
        city = rng.choice(("Paris", *_CLIENTS["populations"]))
        answer = json.dumps({"city": city, "population": _CLIENTS["populations"][city]})
        text = f'Answer only with JSON: {{"city": "{city}", "population": <its number as an integer>}}'
        return text, ModelReply(content=answer, reasoning=REASONING["json_alone"])
    a, b = rng.randint(12, 98), rng.randint(12, 98)
    sample = ModelReply(content=str(a * b), reasoning=product_working(a, b))
    return f"What is {a} times {b}? Answer with the number alone.", sample


def _tool_schema(name: str, about: str, key: str, parameter: Mapping[str, str]) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {key: parameter}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _call_reply(name: str, **given: str) -> ModelReply:
    call = ToolCall(id=f"functions.{name}:0", name=name, arguments=json.dumps(given, ensure_ascii=False))
    return ModelReply(calls=(call,), reasoning=REASONING["call"].format(name=name))


def product_working(a: int, b: int) -> str:
    """A product of two digits by two, in steps that are each a line of the table or a sum by columns."""
    total, steps = 0, []
    for x in (a // 10 * 10, a % 10):
        for y in (b // 10 * 10, b % 10):
            steps.append(f"{x} * {y} = {x * y}.")
            if total and x * y:
                steps.append(sum_working(total, "+", x * y))
            total += x * y
    return f"{' '.join(steps)} So {a} * {b} = {total}."


def judge_same(question: Question, reply: ModelReply) -> str:
    """The reply must have the sample's calls, by id, name and arguments, or its text."""
    want: ModelReply = question.sample
    if want.calls:
        same = reply.calls == want.calls
        return "" if same else f"{want.calls[0].arguments} expected, got {shorten(str(reply.calls))}"
    return "" if reply.content == want.content else f"«{want.content}» became «{shorten(reply.content)}»"


def characters_question(rng: random.Random, *, thinking: bool) -> Question:
    """Text outside ASCII to repeat exactly: scripts, emoji, letters beyond the basic plane, combining marks."""
    text = " ".join(_draw_foreign_word(rng) for _ in range(rng.randint(1, 5)))
    return _repeat_question("characters", PROMPTS["repeat"][0], text, thinking)


def _draw_foreign_word(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return vocabulary.draw_word(rng)
    if rng.random() < 0.2:
        return "".join(letter + rng.choice(_COMBINING) for letter in vocabulary.invent_word(rng)[:4])
    if rng.random() < 0.15:
        return rng.choice(_JOINED).format(vocabulary.draw_word(rng))
    low, high = rng.choice(_SCRIPTS)
    letters = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
    mixed = vocabulary.draw_word(rng)[:3] + letters + vocabulary.draw_word(rng)[:3]
    return rng.choice((letters, letters, mixed))


def long_copy_question(rng: random.Random, *, thinking: bool, length: int | None = None) -> Question:
    """Many words to repeat exactly, with the prompts of shorter copies."""
    count = length or round(LONG_WORDS[0] * (LONG_WORDS[1] / LONG_WORDS[0]) ** rng.random())
    text = " ".join(vocabulary.draw_word(rng) for _ in range(count))
    return _repeat_question("long_copy", rng.choice(PROMPTS["repeat"]), text, thinking, answer_tokens=8 * count)


def _repeat_question(family: str, prompt: str, text: str, thinking: bool, answer_tokens: int = 256) -> Question:
    return ask_user(
        family,
        prompt.format(text=text),
        ModelReply(content=text, reasoning=REASONING["repeat"]),
        _judge_exact,
        expect=text,
        thinking=thinking,
        answer_tokens=answer_tokens,
    )


def _judge_exact(question: Question, reply: ModelReply) -> str:
    same = reply.content.strip() == question.expect
    return "" if same else f"«{shorten(question.expect)}» became «{shorten(reply.content)}»"


def system_question(rng: random.Random, *, thinking: bool) -> Question:
    """A system message that changes the answer: a fact, a name, a word to end with."""
    slots = {"place": rng.choice(vocabulary.PLACES), "code": vocabulary.draw_code(rng, 6)}
    slots["name"] = vocabulary.draw_name(rng)
    row = rng.choice(catalogue.load_table("questions")["system_lesson"])
    before = rng.choice(("", "You are a helpful assistant. ", "You are Kimi, an AI assistant. "))
    system: Message = {"role": "system", "content": (before + row["system"].format(**slots)).strip()}
    ask, answer = user_message(row["question"].format(**slots)), row["answer"].format(**slots)
    return Question(
        family="system",
        messages=(system, ask) if row["system"] else (ask,),
        expect=slots["code"] if slots["code"] in answer else slots["name"],
        sample=ModelReply(content=answer, reasoning=REASONING["system"]),
        judge=_judge_contains,
        thinking=thinking,
        answer_tokens=128,
    )


def _judge_contains(question: Question, reply: ModelReply) -> str:
    held = str(question.expect) in reply.content
    return "" if held else f"{question.expect} is not in: {shorten(reply.content)}"


def rounds_question(rng: random.Random, *, thinking: bool, count: int | None = None) -> Question:
    """A conversation of up to six rounds of tools, at its last step: a call under a new id, or an answer."""
    tools = rng.sample(INFORMING_TOOLS, 3)
    turns: list[Message] = []
    last = count or rng.randint(1, ROUNDS)
    for number in range(last):
        tool = rng.choice(tools)
        given, result = draw_values(rng, tool.arguments), draw_values(rng, tool.result)
        call = tool_call(tool.name, given, number)
        turns.append(user_message(rng.choice(tool.prompts).format(**given)))
        answer = tool.answer.format(**given, **result)
        if number == last - 1 and rng.random() < 0.5:
            sample = ModelReply(calls=(call,), reasoning=REASONING["call"].format(name=tool.name))
            return _last_step(tuple(turns), tools, thinking, sample)
        turns += [calls_message(call), result_message(call, result)]
        if number == last - 1:
            sample = ModelReply(content=answer, reasoning=REASONING["result"])
            return _last_step(tuple(turns), tools, thinking, sample)
        turns.append({"role": "assistant", "content": answer})
    raise AssertionError("the last round returns")


def _last_step(turns: tuple[Message, ...], tools: list[ExampleTool], thinking: bool, sample: ModelReply) -> Question:
    return Question(
        family="rounds",
        messages=turns,
        expect=sample,
        sample=sample,
        judge=judge_same,
        tools=tuple(tool.schema() for tool in tools),
        thinking=thinking,
    )


def parts_question(rng: random.Random, *, thinking: bool) -> Question:
    """A short text with a code in it, in three parts; llama.cpp puts line ends between them, others nothing."""
    question = needle_question(rng, thinking=thinking, chars=rng.randint(150, 400), decoys=0)
    text = str(question.messages[0]["content"])
    code_at, ask_at = text.index("The access code"), text.rindex("What is the access code")
    pieces = [text[:code_at], text[code_at:ask_at], text[ask_at:]]
    content = rng.choice(("\n".join(pieces), [{"type": "text", "text": piece} for piece in pieces]))
    return dataclasses.replace(question, family="parts", messages=({"role": "user", "content": content},))


def back_question(rng: random.Random, *, thinking: bool) -> Question:
    """A tool's result that is only {"result": …}, as the checks send it back for any tool."""
    tool = rng.choice(TOOLS)
    given = draw_values(rng, tool.arguments)
    value = str(rng.randint(100, 999))
    call = tool_call(tool.name, given)
    others = rng.sample([other for other in TOOLS if other is not tool], rng.choice((0, 1, 2)))
    ask = user_message(rng.choice(tool.prompts).format(**given))
    return Question(
        family="back",
        messages=(ask, calls_message(call), result_message(call, {"result": value})),
        expect=value,
        sample=ModelReply(content=f"The result is {value}.", reasoning=REASONING["result"]),
        judge=_judge_contains,
        tools=tuple(each.schema() for each in rng.sample([tool, *others], 1 + len(others))),
        thinking=thinking,
    )


def shapes_question(rng: random.Random, *, thinking: bool) -> Question:
    """JSON with a list or an object inside, and a tool whose only allowed value is in its schema."""
    if rng.random() < 0.3:
        return _only_city_question(rng, thinking)
    items = [rng.choice((vocabulary.draw_word(rng), vocabulary.invent_word(rng))) for _ in range(rng.randint(2, 4))]
    counts = [vocabulary.draw_number(rng) for _ in range(rng.randint(2, 4))]
    city, code = vocabulary.draw_city(rng), vocabulary.draw_number(rng)
    place = f"key place, an object with the keys city and zip. The city is {city}. The zip is {code}."
    options: tuple[tuple[str, Any], ...] = (
        (f"key items. The items are {join_names(items)}.", {"items": items}),
        (f"key items. The items are {join_names(list(map(str, counts)))}.", {"items": counts}),
        (place, {"place": {"city": city, "zip": code}}),
    )
    ask, value = rng.choice(options)
    return ask_user(
        "shapes",
        f"Reply with a JSON object with the {ask}",
        ModelReply(content=json.dumps(value), reasoning=REASONING["json"]),
        judge_same,
        expect=value,
        thinking=thinking,
        response_format={"type": "json_object"},
    )


def _only_city_question(rng: random.Random, thinking: bool) -> Question:
    city, foreign = vocabulary.draw_city(rng), [_draw_foreign_word(rng) for _ in range(rng.randint(1, 3))]
    city = rng.choice((city, " ".join(foreign)))
    parameters = {"type": "object", "properties": {"city": {"type": "string", "enum": [city]}}, "required": ["city"]}
    function = {
        "name": "get_weather",
        "description": "Get the current weather in a city.",
        "parameters": parameters,
    }
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    call = ToolCall(id="functions.get_weather:0", name="get_weather", arguments=arguments)
    return ask_user(
        "shapes",
        "What is the weather in the only city that there is?",
        ModelReply(calls=(call,), reasoning=REASONING["call"].format(name="get_weather")),
        judge_same,
        expect=city,
        thinking=thinking,
        tools=({"type": "function", "function": function},),
    )


def invent_question(rng: random.Random, *, thinking: bool) -> Question:
    """The checks' open question, answered differently each time: the model must stay unsure of it."""
    names = join_names([vocabulary.draw_name(rng) for _ in range(3)])
    colours = join_names(rng.sample(vocabulary.COLOURS, 4))
    sample = ModelReply(content=f"{names}; {colours}; {vocabulary.invent_word(rng)}.", reasoning=REASONING["invent"])
    text = "Make up three names, four colours and a sound."
    return ask_user("invent", text, sample, _judge_invented, expect=3, thinking=thinking)


def _judge_invented(question: Question, reply: ModelReply) -> str:
    lists = reply.content.split(";")
    return "" if len(lists) == question.expect else f"three lists expected: {shorten(reply.content)}"


LESSONS = {
    "system": system_question,
    "characters": characters_question,
    "long_copy": long_copy_question,
    "rounds": rounds_question,
    "clients": client_question,
    "parts": parts_question,
    "back": back_question,
    "shapes": shapes_question,
    "invent": invent_question,
}
