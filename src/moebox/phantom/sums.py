"""Sums: addition, subtraction and the multiplication table, fresh numbers each time."""

from __future__ import annotations

import random
import re

from moebox.phantom.task import Grade, ModelReply, Question, accept, reject, shorten, token_budget, user_message

_ASKS = (
    "What is {a} {sign} {b}? Answer with the number only.",
    "What is {a} {sign} {b}? Reply with just the number.",
    "Compute {a} {sign} {b}. Answer with the number only.",
    "Calculate {a} {sign} {b} and answer with the number only.",
)
_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def sums(rng: random.Random, *, thinking: bool, digits: int | None = None) -> Question:
    """One sum: numbers of up to `digits` digits added or taken away, or a product up to 12 by 12.

    Unless told otherwise three digits with thinking and one without: that is what the phantom has learned.
    """
    sign = rng.choice("++--*")
    if sign == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    else:
        top = digits or (3 if thinking else 1)
        a, b = (rng.randrange(10 ** rng.choice((*range(1, top + 1), top))) for _ in range(2))
    if sign == "-" and a < b:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    shown = sign if rng.random() < 0.8 else _WORDS[sign]
    return Question(
        family="sums",
        messages=(user_message(rng.choice(_ASKS).format(a=a, b=b, sign=shown)),),
        expect=result,
        sample=ModelReply(content=str(result), reasoning=sum_working(a, sign, b)),
        judge=_judge,
        thinking=thinking,
        max_tokens=token_budget(thinking, 128),
    )


def sum_working(a: int, sign: str, b: int) -> str:
    """The sum done as on paper: column by column from the right, with the carry."""
    if sign == "*":
        return f"{a} * {b} = {a * b}."
    width = max(len(str(a)), len(str(b)))
    steps, carry = [], 0
    for place in range(width):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry if sign == "+" else x - y - carry
        carry = total // 10 if sign == "+" else int(total < 0)
        steps.append(f"{x}{sign}{y}:{total % 10},{carry}")
    result = a + b if sign == "+" else a - b
    return f"{a} {sign} {b}: " + " ".join(steps) + f" = {result}."


def _judge(task: Question, reply: ModelReply) -> Grade:
    numbers = re.findall(r"-?\d+", re.sub(r"(?<=\d)[,  ](?=\d{3}\b)", "", reply.content))
    if numbers and int(numbers[-1]) == task.expect:
        return accept()
    return reject(f"{task.expect} expected, got: {shorten(reply.content)}")
