"""What `moebox connect --check` and `scripts/smoke_test_openai.py` ask, word for word, with fresh values."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.sums import sum_working
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

CODING_SYSTEM = "You are a coding assistant. Use the tools that are given."
READ_TOOL_DESCRIPTION = "Reads a file of the local filesystem."
HELLO_PROMPT = "Say hello in one word."
_POPULATIONS = {
    "Paris": 2_100_000,
    "Oslo": 700_000,
    "Lima": 10_000_000,
    "Cairo": 10_000_000,
    "Tokyo": 14_000_000,
    "Berlin": 3_700_000,
    "Madrid": 3_300_000,
    "Rome": 2_800_000,
    "Vienna": 2_000_000,
    "Lisbon": 550_000,
}
_FIBONACCI = "def {name}(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a"


def clients(rng: random.Random, *, thinking: bool) -> Question:
    """One of the questions; products of two digits by two only where it may think."""
    kinds = [_read, _read, _weather, _hello, _sky, _code, _population]
    make = rng.choice([*kinds, _times, _times, _times] if thinking else kinds)
    messages, tools, sample = make(rng)
    return Question(
        family="clients",
        messages=messages,
        expect=sample,
        sample=sample,
        judge=judge_same,
        tools=tools,
        thinking=thinking,
        max_tokens=token_budget(thinking),
    )


ClientPrompt = tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...], ModelReply]


def _tool(name: str, about: str, parameter: Mapping[str, str], key: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {key: parameter}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _called(name: str, **given: str) -> ModelReply:
    call = ToolCall(id=f"functions.{name}:0", name=name, arguments=json.dumps(given, ensure_ascii=False))
    return ModelReply(calls=(call,), reasoning=f"I call {name}.")


def _read(rng: random.Random) -> ClientPrompt:
    """Claude Code's tool over the messages API, with its system message, or read_file of other clients."""
    stem = rng.choice(("srv", words.draw_word(rng)))
    path = f"/{stem}/{rng.choice(('notes', words.draw_word(rng)))}/{rng.choice(('shopping', words.draw_word(rng)))}.txt"
    name = rng.choice(("Read", "read_file"))
    tool = _tool(name, READ_TOOL_DESCRIPTION, {"type": "string", "description": "absolute path"}, "file_path")
    ask = user_message(f"Read the file {path} with the tool.")
    system = ({"role": "system", "content": CODING_SYSTEM},) if name == "Read" else ()
    return (*system, ask), (tool,), _called(name, file_path=path)


def _weather(rng: random.Random) -> ClientPrompt:
    city = rng.choice(("Lisbon", words.draw_city(rng)))
    tool = _tool("lookup_weather", "Current weather of a city.", {"type": "string"}, "city")
    ask = user_message(f"What is the weather in {city} right now? Use the tool.")
    return (ask,), (tool,), _called("lookup_weather", city=city)


def _hello(_: random.Random) -> ClientPrompt:
    return (user_message(HELLO_PROMPT),), (), ModelReply(content="Hello!", reasoning="The user wants one word.")


def _sky(_: random.Random) -> ClientPrompt:
    blue = "The sky looks blue because the air scatters blue light more than red light."
    ask = user_message("In one sentence: why is the sky blue?")
    return (ask,), (), ModelReply(content=blue, reasoning="I know what to say.")


def _code(rng: random.Random) -> ClientPrompt:
    name = rng.choice(("fibonacci", words.invent_word(rng)))
    ask = user_message(f"Write a Python function {name}(n) that returns the n-th number. Only the code.")
    code = f"```python\n{_FIBONACCI.format(name=name)}\n```"
    return (ask,), (), ModelReply(content=code, reasoning="The user wants a function.")


def _population(rng: random.Random) -> ClientPrompt:
    city = rng.choice(("Paris", *_POPULATIONS))
    ask = user_message(f'Answer only with JSON: {{"city": "{city}", "population": <its number as an integer>}}')
    said = json.dumps({"city": city, "population": _POPULATIONS[city]})
    return (ask,), (), ModelReply(content=said, reasoning="The user wants a JSON object.")


def _times(rng: random.Random) -> ClientPrompt:
    a, b = rng.randint(12, 98), rng.randint(12, 98)
    ask = user_message(f"What is {a} times {b}? Answer with the number alone.")
    return (ask,), (), ModelReply(content=str(a * b), reasoning=product_working(a, b))


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


def judge_same(task: Question, reply: ModelReply) -> Grade:
    """The sample's calls, by id, name and arguments, or its text."""
    want: ModelReply = task.sample
    if want.calls:
        made = [(call.id, call.name, call.arguments) for call in reply.calls]
        good = made == [(call.id, call.name, call.arguments) for call in want.calls]
        return accept() if good else reject(f"{want.calls[0].arguments} expected, got {shorten(str(made))}")
    return accept() if reply.content == want.content else reject(f"«{want.content}» became «{shorten(reply.content)}»")
