"""What `moebox connect --check` and `scripts/smoke_test_openai.py` ask, word for word, with fresh values."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.sums import working
from moebox.phantom.task import Call, Grade, Message, Reply, Task, no, room, short, user, yes

CODING_SYSTEM = "You are a coding assistant. Use the tools that are given."
READS = "Reads a file of the local filesystem."
HELLO = "Say hello in one word."
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


def clients(rng: random.Random, *, thinking: bool) -> Task:
    """One of the questions; products of two digits by two only where it may think."""
    kinds = [_read, _read, _weather, _hello, _sky, _code, _population]
    make = rng.choice([*kinds, _times, _times, _times] if thinking else kinds)
    messages, tools, sample = make(rng)
    return Task(
        family="clients",
        messages=messages,
        expect=sample,
        sample=sample,
        judge=judge_same,
        tools=tools,
        thinking=thinking,
        max_tokens=room(thinking),
    )


Question = tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...], Reply]


def _tool(name: str, about: str, parameter: Mapping[str, str], key: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {key: parameter}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _called(name: str, **given: str) -> Reply:
    call = Call(id=f"functions.{name}:0", name=name, arguments=json.dumps(given, ensure_ascii=False))
    return Reply(calls=(call,), reasoning=f"I call {name}.")


def _read(rng: random.Random) -> Question:
    """Claude Code's tool over the messages API, with its system message, or read_file of other clients."""
    stem = rng.choice(("srv", words.word(rng)))
    path = f"/{stem}/{rng.choice(('notes', words.word(rng)))}/{rng.choice(('shopping', words.word(rng)))}.txt"
    name = rng.choice(("Read", "read_file"))
    tool = _tool(name, READS, {"type": "string", "description": "absolute path"}, "file_path")
    ask = user(f"Read the file {path} with the tool.")
    system = ({"role": "system", "content": CODING_SYSTEM},) if name == "Read" else ()
    return (*system, ask), (tool,), _called(name, file_path=path)


def _weather(rng: random.Random) -> Question:
    city = rng.choice(("Lisbon", words.city(rng)))
    tool = _tool("lookup_weather", "Current weather of a city.", {"type": "string"}, "city")
    ask = user(f"What is the weather in {city} right now? Use the tool.")
    return (ask,), (tool,), _called("lookup_weather", city=city)


def _hello(_: random.Random) -> Question:
    return (user(HELLO),), (), Reply(content="Hello!", reasoning="The user wants one word.")


def _sky(_: random.Random) -> Question:
    blue = "The sky looks blue because the air scatters blue light more than red light."
    ask = user("In one sentence: why is the sky blue?")
    return (ask,), (), Reply(content=blue, reasoning="I know what to say.")


def _code(rng: random.Random) -> Question:
    name = rng.choice(("fibonacci", words.invented(rng)))
    ask = user(f"Write a Python function {name}(n) that returns the n-th number. Only the code.")
    code = f"```python\n{_FIBONACCI.format(name=name)}\n```"
    return (ask,), (), Reply(content=code, reasoning="The user wants a function.")


def _population(rng: random.Random) -> Question:
    city = rng.choice(("Paris", *_POPULATIONS))
    ask = user(f'Answer only with JSON: {{"city": "{city}", "population": <its number as an integer>}}')
    said = json.dumps({"city": city, "population": _POPULATIONS[city]})
    return (ask,), (), Reply(content=said, reasoning="The user wants a JSON object.")


def _times(rng: random.Random) -> Question:
    a, b = rng.randint(12, 98), rng.randint(12, 98)
    ask = user(f"What is {a} times {b}? Answer with the number alone.")
    return (ask,), (), Reply(content=str(a * b), reasoning=product(a, b))


def product(a: int, b: int) -> str:
    """A product of two digits by two, in steps that are each a line of the table or a sum by columns."""
    total, steps = 0, []
    for x in (a // 10 * 10, a % 10):
        for y in (b // 10 * 10, b % 10):
            steps.append(f"{x} * {y} = {x * y}.")
            if total and x * y:
                steps.append(working(total, "+", x * y))
            total += x * y
    return f"{' '.join(steps)} So {a} * {b} = {total}."


def judge_same(task: Task, reply: Reply) -> Grade:
    """The sample's calls, by id, name and arguments, or its text."""
    want: Reply = task.sample
    if want.calls:
        made = [(call.id, call.name, call.arguments) for call in reply.calls]
        good = made == [(call.id, call.name, call.arguments) for call in want.calls]
        return yes() if good else no(f"{want.calls[0].arguments} expected, got {short(str(made))}")
    return yes() if reply.content == want.content else no(f"«{want.content}» became «{short(reply.content)}»")
