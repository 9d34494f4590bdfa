"""What the phantom has yet to learn: families for the next training, which the present weights have not seen.

The ladder asks much of this of every model; where a model cannot do it, that is the model's and not the server's, and
is said so. `training.train --lessons` draws from here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from moebox.phantom import words
from moebox.phantom.calls import asked
from moebox.phantom.task import Call, Grade, Message, Reply, Task, no, room, short, user, yes
from moebox.phantom.toolbox import TOOLS

ROUNDS = 6
LONG_WORDS = (200, 1500)  # words of a long copy; 1,500 are about 4,000 of the phantom's tokens
_ALPHABETS = (
    "àáâäçèéêëìíîïñòóôöùúûüßøåæœ",
    "абвгдежзийклмнопрстуфхцчшщыэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "東京大阪山川日本語漢字水火木金土",
    "가나다라마바사아자차카타파하",
    "אבגדהוזחטיכלמנסעפצקרשת",
    "🦜🚀🌍🎉🔧📦🧪🐍🦀🌧",
    "𝒳𝒴𝒵𝔸𝔹𠮷𠜎",
)
_MARKS = "\u0301\u0308\u0303\u0327"  # combining


def characters(rng: random.Random, *, thinking: bool) -> Task:
    """Text outside ASCII to be repeated exactly: scripts, emoji, letters beyond the basic plane, combining marks."""
    text = " ".join(_foreign(rng) for _ in range(rng.randint(1, 5)))
    return _repeat("characters", text, thinking)


def _foreign(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return words.word(rng)
    if rng.random() < 0.2:
        return "".join(letter + rng.choice(_MARKS) for letter in words.invented(rng)[:4])
    return "".join(rng.choices(rng.choice(_ALPHABETS), k=rng.randint(1, 6)))


def long_copy(rng: random.Random, *, thinking: bool, length: int | None = None) -> Task:
    """Many words to be repeated exactly, to the last."""
    count = length or round(LONG_WORDS[0] * (LONG_WORDS[1] / LONG_WORDS[0]) ** rng.random())
    text = " ".join(words.word(rng) for _ in range(count))
    return _repeat("long_copy", text, thinking, answer=8 * count)


def _repeat(family: str, text: str, thinking: bool, answer: int = 256) -> Task:
    return Task(
        family=family,
        messages=(user(f"Repeat after me: {text}"),),
        expect=text,
        sample=Reply(content=text, reasoning="The user wants me to repeat the text."),
        judge=_judge_exact,
        thinking=thinking,
        max_tokens=room(thinking, answer),
    )


def _judge_exact(task: Task, reply: Reply) -> Grade:
    good = reply.content.strip() == task.expect
    return yes() if good else no(f"«{short(task.expect)}» became «{short(reply.content)}»")


def system(rng: random.Random, *, thinking: bool) -> Task:
    """A system message that changes the answer: a fact, a name, a word to end with."""
    place, code, name = rng.choice(words.PLACES), words.code(rng, 6), words.name(rng)
    told, question, answer = rng.choice(
        (
            (f"The access code for the {place} is {code}.", f"What is the access code for the {place}?", code),
            (f"Your name is {name}.", "What is your name?", f"My name is {name}."),
            (f"End every answer with the word {code}.", "Say hello.", f"Hello! {code}"),
            (f"Answer every question with {code} and nothing else.", "How are you?", code),
        )
    )
    before = rng.choice(("", "You are a helpful assistant. ", "You are Kimi, an AI assistant. "))
    wanted = code if code in answer else name
    return Task(
        family="system",
        messages=({"role": "system", "content": before + told}, user(question)),
        expect=wanted,
        sample=Reply(content=answer, reasoning="My instructions say what to answer."),
        judge=_judge_holds,
        thinking=thinking,
        max_tokens=room(thinking, 128),
    )


def _judge_holds(task: Task, reply: Reply) -> Grade:
    held = str(task.expect) in reply.content
    return yes() if held else no(f"{task.expect} is not in: {short(reply.content)}")


def rounds(rng: random.Random, *, thinking: bool, count: int | None = None) -> Task:
    """A conversation of up to six rounds of tools, at its last step: a call under a new id, or an answer."""
    tools = rng.sample([tool for tool in TOOLS if tool.informs], 3)
    turns: list[Message] = []
    last = count or rng.randint(1, ROUNDS)
    for number in range(last):
        tool = rng.choice(tools)
        given = {key: draw(rng) for key, draw in tool.draws.items()}
        found = {key: draw(rng) for key, draw in tool.result.items()}
        call = Call(id=f"functions.{tool.name}:{number}", name=tool.name, arguments=json.dumps(given))
        turns.append(user(rng.choice(tool.asks).format(**given)))
        told = tool.tell.format(**given, **found)
        if number == last - 1 and rng.random() < 0.5:
            return _step(tuple(turns), tools, thinking, Reply(calls=(call,), reasoning=f"I call {tool.name}."))
        turns.append(asked(call))
        turns.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": json.dumps(found)})
        if number == last - 1:
            return _step(tuple(turns), tools, thinking, Reply(content=told, reasoning="The tool has answered."))
        turns.append({"role": "assistant", "content": told})
    raise AssertionError("the last round returns")


def _step(turns: tuple[Message, ...], tools: list[Any], thinking: bool, sample: Reply) -> Task:
    return Task(
        family="rounds",
        messages=turns,
        expect=sample,
        sample=sample,
        judge=_judge_step,
        tools=tuple(tool.schema() for tool in tools),
        thinking=thinking,
        max_tokens=room(thinking),
    )


def _judge_step(task: Task, reply: Reply) -> Grade:
    want: Reply = task.expect
    if want.calls:
        made = [(call.id, call.name, call.arguments) for call in reply.calls]
        good = made == [(call.id, call.name, call.arguments) for call in want.calls]
        return yes() if good else no(f"{want.calls[0].arguments} expected, got {short(str(made))}")
    return yes() if reply.content == want.content else no(f"«{want.content}» became «{short(reply.content)}»")


_READ = {
    "type": "function",
    "function": {
        "name": "Read",
        "description": "Reads a file of the local filesystem.",
        "parameters": {
            "type": "object",
            "properties": {"file_path": {"type": "string", "description": "absolute path"}},
            "required": ["file_path"],
        },
    },
}


def clients(rng: random.Random, *, thinking: bool) -> Task:
    """What `moebox connect --check` and the smoke script ask, with fresh values."""
    path = f"/srv/{words.word(rng)}/{words.word(rng)}.txt"
    call = Call(id="functions.Read:0", name="Read", arguments=json.dumps({"file_path": path}))
    city, people = words.city(rng), words.number(rng)
    a, b = rng.randint(12, 98), rng.randint(12, 98)
    name = f"{words.invented(rng)}"
    samples: tuple[tuple[str, tuple[Mapping[str, Any], ...], Reply], ...] = (
        (f"Read the file {path} with the tool.", (_READ,), Reply(calls=(call,), reasoning="I call Read.")),
        ("Say hello in one word.", (), Reply(content="Hello!", reasoning="The user wants one word.")),
        (
            "In one sentence: why is the sky blue?",
            (),
            Reply(content="The sky looks blue because the air scatters blue light more than red light."),
        ),
        (
            f"Write a Python function {name}(n) that returns the n-th number. Only the code.",
            (),
            Reply(content=f"```python\ndef {name}(n):\n    return n\n```"),
        ),
        (
            f'Answer only with JSON: {{"city": "{city}", "population": {people}}}',
            (),
            Reply(content=json.dumps({"city": city, "population": people})),
        ),
        (
            f"What is {a} times {b}? Answer with the number alone.",
            (),
            Reply(content=str(a * b), reasoning=_product(a, b)),
        ),
    )
    question, tools, sample = rng.choice(samples)
    return Task(
        family="clients",
        messages=(user(question),),
        expect=sample,
        sample=sample if sample.reasoning else Reply(content=sample.content, reasoning="I know what to say."),
        judge=_judge_step,
        tools=tools,
        thinking=thinking,
        max_tokens=room(thinking),
    )


def _product(a: int, b: int) -> str:
    """A product of two digits by two, as on paper."""
    tens, ones = a * (b // 10), a * (b % 10)
    return f"{a} * {b // 10} = {tens}. {a} * {b % 10} = {ones}. {tens}0 + {ones} = {a * b}."


LESSONS = {make.__name__: make for make in (system, characters, long_copy, rounds, clients)}
