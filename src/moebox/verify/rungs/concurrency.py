"""concurrency: many requests at once, each with its own secret: none crosses over, none is lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed
from moebox.verify.rung import Rung
from moebox.verify.trials import draw, judge

ROUNDS = 2
SLIPS = 0.25  # share of answers that may be wrong whether asked alone or not, before nothing is proved any more


async def secrets(ask: Asker) -> str:
    """N secrets at once, every other one streamed, each asked for twice."""
    for _ in range(ROUNDS):
        tasks = [draw(ask, "secret") for _ in range(ask.options.parallel)]
        answers = await _together(ask.ask(task, stream=index % 2 == 1) for index, task in enumerate(tasks))
        for index, answer in enumerate(answers):
            _own(index, tasks, answer)
        await _all_right(ask, tasks, answers)
    return f"{ask.options.parallel} at once, {ROUNDS} times"


async def long_streams(ask: Asker) -> str:
    """N streams of numbers from different starts run side by side, and none holds a number of another."""
    starts = [2 + 7 * (index % 8) for index in range(ask.options.parallel)]
    tasks = [draw(ask, "count", start=start, end=start + 30) for start in starts]
    await _all_right(ask, tasks, await _together(ask.ask(task, stream=True) for task in tasks))
    return f"{len(tasks)} streams at once"


async def _together(asked: Any) -> list[Answer]:
    """All at once; the first that is lost is the failure."""
    work: list[Coroutine[Any, Any, Answer]] = list(asked)
    results = await asyncio.gather(*work, return_exceptions=True)
    lost = [result for result in results if isinstance(result, BaseException)]
    for problem in lost:
        if isinstance(problem, Failed):
            raise type(problem)(f"{len(lost)} of {len(work)} requests at once went wrong: {problem}")
        raise problem
    return [result for result in results if isinstance(result, Answer)]


def _own(index: int, tasks: list[Task], answer: Answer) -> None:
    """Failed when the answer holds a neighbour's secret."""
    for other, task in enumerate(tasks):
        if other != index and task.expect in answer.content + answer.reasoning:
            raise Failed(f"request {index} was given the secret of request {other}: answers cross over")


async def _all_right(ask: Asker, tasks: list[Task], answers: list[Answer]) -> None:
    """A wrong answer may be the model's own: then it is wrong when asked alone too, and there are few of them."""
    slips = []
    for task, answer in zip(tasks, answers, strict=True):
        if not (wrong := judge(task, answer)):
            continue
        if not judge(task, await ask.ask(task)):
            raise Failed(f"right when asked alone, wrong among others: {wrong}")
        slips.append(wrong)
        if len(slips) > len(tasks) * SLIPS:
            raise Failed(f"wrong alone and among others, so crossing cannot be judged: {wrong}")


RUNG = Rung(
    name="concurrency",
    about="many at once, no cross-talk, none lost",
    probes={"secrets": secrets, "long streams": long_streams},
)
