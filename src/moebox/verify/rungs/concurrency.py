"""concurrency: many requests at once, each with its own secret: none crosses over, none is lost."""

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from moebox.phantom.tasks import Task
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Unusable
from moebox.verify.rung import Rung
from moebox.verify.rungs.thinking import mixed as run_together
from moebox.verify.tally import Count
from moebox.verify.trials import draw, judge

MIXED = ("json_schema", "tool_call", "secret", "sums", "json_object", "copy", "tool_none", "count")

Asked = Iterable[Coroutine[Any, Any, Answer]]


async def secrets(ask: Asker) -> str:
    """N secrets at once, every other one streamed, in several rounds, of which one is of twice as many."""
    sizes = _sizes(ask)
    rounds = len(sizes)
    before = ask.tally.snapshot()
    for number, many in enumerate(sizes):
        ask.trial = (number + 1, rounds)
        thinking = ask.thinks and number == rounds - 1  # what is thought must not cross over either
        tasks = [draw(ask, "secret", thinking=thinking) for _ in range(many)]
        answers = await _at_once(ask, tasks)
        for index, answer in enumerate(answers):
            ask.tally.add("crosstalk", _foreign(index, tasks, answer))
        await _all_right(ask, tasks, answers)
        if thinking:
            await _apart(ask, tasks, answers)
        _enough(ask, before)
    return f"{', '.join(map(str, sizes))} concurrent requests"


async def _at_once(ask: Asker, tasks: list[Task]) -> list[Answer | None]:
    """The answers, every other one streamed; where there are more than usual a queue may be long."""
    asked = (ask.ask(task, stream=index % 2 == 1) for index, task in enumerate(tasks))
    with ask.unhurried() if len(tasks) > ask.options.parallel else contextlib.nullcontext():
        return await _together(ask, asked)


def _sizes(ask: Asker) -> list[int]:
    """Requests of each round; where there are many rounds, two of them at once."""
    usual, rounds = ask.options.parallel, ask.options.share(0.34)
    return [usual] * rounds if rounds < 4 else [*[usual] * (rounds - 3), 2 * usual, usual]


async def _apart(ask: Asker, tasks: list[Task], answers: list[Answer | None]) -> None:
    """Thoughts stay apart among others too; a model that did not think this time does not when it is asked alone."""
    for index, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
        if answer is None:
            continue
        why = run_together(answer)
        if not answer.reasoning and (await ask.ask(task, stream=index % 2 == 1)).reasoning:
            why = f"thoughts come apart when asked alone, and in the answer among others: {answer.content[:60]!r}"
        ask.tally.add("crowd", why)


async def long_streams(ask: Asker) -> str:
    """N streams of numbers from different starts run side by side, and none holds a number of another."""
    before = ask.tally.snapshot()
    starts = [2 + 7 * (index % 8) for index in range(ask.options.parallel)]
    tasks = [draw(ask, "count", start=start, end=start + 30) for start in starts]
    await _all_right(ask, tasks, await _together(ask, (ask.ask(task, stream=True) for task in tasks)))
    _enough(ask, before)
    return f"{len(tasks)} concurrent streams"


async def mixed(ask: Asker) -> str:
    """Schemas, tools, numbers and plain words side by side: no request is held to another's grammar."""
    before = ask.tally.snapshot()
    for turn in range(2):
        tasks = [draw(ask, MIXED[index % len(MIXED)]) for index in range(ask.options.parallel)]
        asked = (ask.ask(task, stream=(index + turn) % 2 == 1) for index, task in enumerate(tasks))
        await _all_right(ask, tasks, await _together(ask, asked))
        _enough(ask, before)
    return f"{ask.options.parallel} requests of {len(MIXED)} sorts at once, twice"


def _enough(ask: Asker, before: Mapping[str, Count]) -> None:
    """Failed once what this probe has seen is red: no need to go on."""
    for slip in ask.tally.slips(before):
        if slip.kind in ("crosstalk", "crowd") and slip.verdict == "fail":
            raise Failed(f"{slip.example}; {slip.seen} of {slip.of}")


async def _together(ask: Asker, asked: Asked) -> list[Answer | None]:
    """All at once; None where one was lost, which is counted."""
    results = await asyncio.gather(*asked, return_exceptions=True)
    answers: list[Answer | None] = []
    for result in results:
        if isinstance(result, Answer):
            ask.tally.add("crowd")
            answers.append(result)
        elif isinstance(result, Failed) and not isinstance(result, Unusable):
            ask.tally.add("crowd", f"lost among others: {result}")
            answers.append(None)
        else:
            raise result
    return answers


def _foreign(index: int, tasks: list[Task], answer: Answer | None) -> str:
    """ "" or whose secret the answer holds."""
    told = set(re.findall(r"\w+", f"{answer.content} {answer.reasoning}")) if answer else set()  # whole codes
    for other, task in enumerate(tasks):
        if other != index and task.expect in told and task.expect != tasks[index].expect:
            return f"request {index} was given the secret of request {other}"
    return ""


async def _all_right(ask: Asker, tasks: list[Task], answers: list[Answer | None]) -> None:
    """A wrong answer may be the model's own: then it is wrong when asked alone too."""
    for task, answer in zip(tasks, answers, strict=True):
        wrong = judge(task, answer) if answer else ""
        if wrong and judge(task, await ask.ask(task)):
            ask.tally.add("crowd", f"wrong alone and among others: {wrong}", "model")
        elif answer:
            ask.tally.add("crowd", wrong, where="right when asked alone, wrong among others")


RUNG = Rung(
    name="concurrency",
    about="concurrent requests: no cross-talk, none lost",
    probes={"secrets": secrets, "long streams": long_streams, "mixed": mixed},
    cost=56,
)
