"""Small Python functions: name and behaviour are given, the code is judged here by reading, by cases in a sandbox."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.task import (
    FunctionCase,
    Grade,
    ModelReply,
    Question,
    accept,
    reject,
    shorten,
    token_budget,
    user_message,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionSpec:
    """A family of functions: what it takes and does, its body, and the truth to test against."""

    takes: str
    does: str
    body: str
    truth: Callable[..., Any]
    slots: Callable[[random.Random], dict[str, Any]] = lambda rng: {}
    inputs: Callable[[random.Random], Any]


def _num(rng: random.Random) -> int:
    return rng.randint(-50, 50)


def _nums(rng: random.Random) -> list[int]:
    return [rng.randint(-50, 50) for _ in range(rng.randint(1, 6))]


def _text(rng: random.Random) -> str:
    return " ".join(words.draw_word(rng) for _ in range(rng.randint(1, 3)))


def _k(low: int, high: int) -> Callable[[random.Random], dict[str, Any]]:
    return lambda rng: {"k": rng.randint(low, high)}


def _bounds(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(0, 40)
    return {"k": low, "m": low + rng.randint(1, 50)}


def _letter(rng: random.Random) -> dict[str, Any]:
    return {"k": rng.choice("abcdefghiklmnoprstu")}


def _r(
    takes: str,
    does: str,
    body: str,
    truth: Callable[..., Any],
    inputs: Callable[[random.Random], Any],
    slots: Callable[[random.Random], dict[str, Any]] = lambda rng: {},
) -> FunctionSpec:
    return FunctionSpec(takes=takes, does=does, body=body, truth=truth, inputs=inputs, slots=slots)


RECIPES: tuple[FunctionSpec, ...] = (
    _r("a number x", "returns x plus {k}", "return x + {k}", lambda x, k: x + k, _num, _k(2, 99)),
    _r("a number x", "returns x minus {k}", "return x - {k}", lambda x, k: x - k, _num, _k(2, 99)),
    _r("a number x", "returns x times {k}", "return x * {k}", lambda x, k: x * k, _num, _k(2, 99)),
    _r("a number x", "returns x to the power of {k}", "return x ** {k}", lambda x, k: x**k, _num, _k(2, 9)),
    _r(
        "a number x",
        "returns x limited to the range from {k} to {m}",
        "return max({k}, min({m}, x))",
        lambda x, k, m: max(k, min(m, x)),
        _num,
        _bounds,
    ),
    _r(
        "a number x",
        "returns True if x is divisible by {k} and False otherwise",
        "return x % {k} == 0",
        lambda x, k: x % k == 0,
        _num,
        _k(2, 20),
    ),
    _r(
        "a number x",
        "returns True if x is greater than {k} and False otherwise",
        "return x > {k}",
        lambda x, k: x > k,
        _num,
        _k(0, 40),
    ),
    _r("a string s", "returns s reversed", "return s[::-1]", lambda s: s[::-1], _text),
    _r("a string s", "returns s in upper case", "return s.upper()", lambda s: s.upper(), _text),
    _r(
        "a string s",
        "returns how often the letter {k} occurs in s",
        'return s.count("{k}")',
        lambda s, k: s.count(k),
        _text,
        _letter,
    ),
    _r("a string s", "returns s repeated {k} times", "return s * {k}", lambda s, k: s * k, _text, _k(2, 9)),
    _r("a string s", "returns the first {k} characters of s", "return s[:{k}]", lambda s, k: s[:k], _text, _k(1, 9)),
    _r("a list of numbers v", "returns the largest number in v", "return max(v)", max, _nums),
    _r("a list of numbers v", "returns the smallest number in v", "return min(v)", min, _nums),
    _r("a list of numbers v", "returns the sum of the numbers in v", "return sum(v)", sum, _nums),
    _r("a list of numbers v", "returns v sorted in ascending order", "return sorted(v)", sorted, _nums),
    _r(
        "a list of numbers v",
        "returns a list with each number of v times {k}",
        "return [x * {k} for x in v]",
        lambda v, k: [x * k for x in v],
        _nums,
        _k(2, 99),
    ),
    _r(
        "a list of numbers v",
        "returns a list of the numbers in v that are greater than {k}",
        "return [x for x in v if x > {k}]",
        lambda v, k: [x for x in v if x > k],
        _nums,
        _k(0, 40),
    ),
)
_ASKS = (
    "Write a Python function called {name} that takes {takes} and {does}. Reply with the code only.",
    "Write a Python function named {name} that takes {takes} and {does}. Answer with a Python code block only.",
    "Please write a Python function {name} that takes {takes} and {does}. Reply with the code only.",
)


def code(rng: random.Random, *, thinking: bool) -> Question:
    """One function under a fresh name."""
    recipe = rng.choice(RECIPES)
    slots = recipe.slots(rng)
    name = f"{words.invent_word(rng) if rng.random() < 0.5 else rng.choice(words.NOUNS)}_{words.draw_word(rng)}"
    ask = rng.choice(_ASKS).format(name=name, takes=recipe.takes, does=recipe.does.format(**slots))
    param = recipe.takes[-1]
    body = recipe.body.format(**slots)
    values = [recipe.inputs(rng) for _ in range(5)]
    return Question(
        family="code",
        messages=(user_message(ask),),
        expect=name,
        sample=ModelReply(
            content=f"```python\ndef {name}({param}):\n    {body}\n```",
            reasoning=f"The user wants a function called {name}.",
        ),
        judge=_judge,
        thinking=thinking,
        max_tokens=token_budget(thinking),
        cases=tuple(FunctionCase(args=(value,), want=recipe.truth(value, **slots)) for value in values),
    )


def extract_code(text: str) -> str:
    """The Python code of a reply: its fenced block, or all of it."""
    fence = re.search(r"```[a-zA-Z]*\n(.*?)```", text, re.DOTALL)
    return (fence.group(1) if fence else text).strip() + "\n"


def _judge(task: Question, reply: ModelReply) -> Grade:
    try:
        tree = ast.parse(extract_code(reply.content))
    except (SyntaxError, ValueError) as error:
        return reject(f"not Python ({error}): {shorten(reply.content)}")
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == task.expect]
    if not made:
        return reject(f"no function {task.expect} in: {shorten(reply.content)}")
    return accept() if made[-1].args.args else reject(f"{task.expect} takes no argument")
