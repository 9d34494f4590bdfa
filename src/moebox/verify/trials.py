"""Judging answers, and telling a model's slip from a server's fault.

A good model errs now and then, a broken stack errs again: a wrong answer is asked for twice more with fresh questions,
and both must be right. Breaches of protocol have no second chance.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from moebox.core.verdict import Score
from moebox.phantom.tasks import FAMILIES, Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed
from moebox.verify.score import share_text, wilson

Attempt = Callable[[], Awaitable[str]]  # "" when it went well, else what was wrong


def draw(ask: Asker, family: str, *, thinking: bool = False, **size: Any) -> Task:
    """A fresh task."""
    return FAMILIES[family].draw(ask.rng, thinking=thinking, **size)


def judge(task: Task, answer: Answer) -> str:
    """ "" or what is wrong with the answer's substance; Failed at once for a leaked template mark."""
    no_leak(answer)
    if answer.finish == "length":
        return f"not finished after {task.max_tokens} tokens: …{answer.content[-60:]}"
    grade = task.grade(answer.reply)
    return "" if grade.ok else grade.why


def no_leak(answer: Answer) -> None:
    """Failed when a template mark or half a character reached the reader."""
    if answer.leak:
        raise Failed(f"{answer.leak} leaked into the answer")


def asking(
    ask: Asker, family: str, *, thinking: bool = False, size: dict[str, Any] | None = None, **more: Any
) -> Attempt:
    """An attempt that draws a task of `family`, asks it and judges it."""

    async def attempt() -> str:
        task = draw(ask, family, thinking=thinking)
        return judge(task, await ask.ask(task, **more))

    return attempt


async def sure(attempt: Attempt) -> None:
    """It goes well, or after one slip twice in a row; Failed otherwise."""
    first = await attempt()
    if not first:
        return
    for _ in range(2):
        if again := await attempt():
            raise Failed(first if again == first else f"{first}; and again: {again}")


async def most(attempt: Attempt, trials: int, slips: int) -> Score:
    """`trials` attempts of which at most `slips` may go wrong; Failed with the first reason otherwise."""
    reasons = [reason for _ in range(trials) if (reason := await attempt())]
    score = wilson(trials - len(reasons), trials)
    if len(reasons) > slips:
        raise Failed(f"right {share_text(score)}: {reasons[0]}", score=score)
    return score
