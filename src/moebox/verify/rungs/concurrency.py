"""concurrency: many requests at once, each with its own secret: none crosses over, none is lost."""

import asyncio
import contextlib
import re
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from moebox.phantom.tasks import Question
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, EndpointUnusable, ProbeFailed
from moebox.verify.rung import Check
from moebox.verify.rungs.thinking import mixed_reasoning as run_together
from moebox.verify.tally import FailureCount
from moebox.verify.trials import draw_question, judge_answer

MIXED = ("json_schema", "tool_call", "secret", "sums", "json_object", "copy", "tool_none", "count")

Asked = Iterable[Coroutine[Any, Any, ChatAnswer]]


async def probe_secrets(session: CheckSession) -> str:
    """N secrets at once, every other one streamed, in several rounds, of which one is of twice as many."""
    sizes = _sizes(session)
    rounds = len(sizes)
    before = session.failures.snapshot()
    for number, many in enumerate(sizes):
        session.trial_progress = (number + 1, rounds)
        thinking = session.model_thinks and number == rounds - 1  # what is thought must not cross over either
        tasks = [draw_question(session, "secret", thinking=thinking) for _ in range(many)]
        answers = await _at_once(session, tasks)
        for index, answer in enumerate(answers):
            session.failures.add("crosstalk", _foreign(index, tasks, answer))
        await _all_right(session, tasks, answers)
        if thinking:
            await _apart(session, tasks, answers)
        _enough(session, before)
    return f"{', '.join(map(str, sizes))} concurrent requests"


async def _at_once(session: CheckSession, tasks: list[Question]) -> list[ChatAnswer | None]:
    """The answers, every other one streamed; where there are more than usual a queue may be long."""
    asked = (session.ask_question(task, stream=index % 2 == 1) for index, task in enumerate(tasks))
    with session.allow_slow_replies() if len(tasks) > session.options.parallel else contextlib.nullcontext():
        return await _together(session, asked)


def _sizes(session: CheckSession) -> list[int]:
    """Requests of each round; where there are many rounds, two of them at once."""
    usual, rounds = session.options.parallel, session.options.trial_share(0.34)
    return [usual] * rounds if rounds < 4 else [*[usual] * (rounds - 3), 2 * usual, usual]


async def _apart(session: CheckSession, tasks: list[Question], answers: list[ChatAnswer | None]) -> None:
    """Thoughts stay apart among others too; a model that did not think this time does not when it is asked alone."""
    for index, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
        if answer is None:
            continue
        why = run_together(answer)
        if not answer.reasoning and (await session.ask_question(task, stream=index % 2 == 1)).reasoning:
            why = f"thoughts come apart when asked alone, and in the answer among others: {answer.content[:60]!r}"
        session.failures.add("crowd", why)


async def probe_long_streams(session: CheckSession) -> str:
    """N streams of numbers from different starts run side by side, and none holds a number of another."""
    before = session.failures.snapshot()
    starts = [2 + 7 * (index % 8) for index in range(session.options.parallel)]
    tasks = [draw_question(session, "count", start=start, end=start + 30) for start in starts]
    await _all_right(
        session, tasks, await _together(session, (session.ask_question(task, stream=True) for task in tasks))
    )
    _enough(session, before)
    return f"{len(tasks)} concurrent streams"


async def probe_mixed_requests(session: CheckSession) -> str:
    """Schemas, tools, numbers and plain words side by side: no request is held to another's grammar."""
    before = session.failures.snapshot()
    for turn in range(2):
        tasks = [draw_question(session, MIXED[index % len(MIXED)]) for index in range(session.options.parallel)]
        asked = (session.ask_question(task, stream=(index + turn) % 2 == 1) for index, task in enumerate(tasks))
        await _all_right(session, tasks, await _together(session, asked))
        _enough(session, before)
    return f"{session.options.parallel} requests of {len(MIXED)} sorts at once, twice"


def _enough(session: CheckSession, before: Mapping[str, FailureCount]) -> None:
    """Failed once what this probe has seen is red: no need to go on."""
    for slip in session.failures.summarize(before):
        if slip.kind in ("crosstalk", "crowd") and slip.verdict == "fail":
            raise ProbeFailed(f"{slip.example}; {slip.seen} of {slip.of}")


async def _together(session: CheckSession, asked: Asked) -> list[ChatAnswer | None]:
    """All at once; None where one was lost, which is counted."""
    results = await asyncio.gather(*asked, return_exceptions=True)
    answers: list[ChatAnswer | None] = []
    for result in results:
        if isinstance(result, ChatAnswer):
            session.failures.add("crowd")
            answers.append(result)
        elif isinstance(result, ProbeFailed) and not isinstance(result, EndpointUnusable):
            session.failures.add("crowd", f"lost among others: {result}")
            answers.append(None)
        else:
            raise result
    return answers


def _foreign(index: int, tasks: list[Question], answer: ChatAnswer | None) -> str:
    """ "" or whose secret the answer holds."""
    told = set(re.findall(r"\w+", f"{answer.content} {answer.reasoning}")) if answer else set()  # whole codes
    for other, task in enumerate(tasks):
        if other != index and task.expect in told and task.expect != tasks[index].expect:
            return f"request {index} was given the secret of request {other}"
    return ""


async def _all_right(session: CheckSession, tasks: list[Question], answers: list[ChatAnswer | None]) -> None:
    """A wrong answer may be the model's own: then it is wrong when asked alone too."""
    for task, answer in zip(tasks, answers, strict=True):
        wrong = judge_answer(task, answer) if answer else ""
        if wrong and judge_answer(task, await session.ask_question(task)):
            session.failures.add("crowd", f"wrong alone and among others: {wrong}", "model")
        elif answer:
            session.failures.add("crowd", wrong, where="right when asked alone, wrong among others")


CHECK = Check(
    name="concurrency",
    about="concurrent requests: no cross-talk, none lost",
    probes={"secrets": probe_secrets, "long streams": probe_long_streams, "mixed": probe_mixed_requests},
    request_estimate=56,
)
