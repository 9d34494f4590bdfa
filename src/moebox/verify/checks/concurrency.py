"""concurrency: many requests at once, each with its own secret: none crosses over, none is lost."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from moebox.phantom.question import Question
from moebox.verify.checks.thinking import mixed_reasoning
from moebox.verify.completions import ChatAnswer
from moebox.verify.options import TRIALS
from moebox.verify.session import EndpointUnusable, ProbeFailed, ProbeSkipped
from moebox.verify.statistics import FailureCount
from moebox.verify.trials import Check, CheckSession, judge_answer

MIXED_FAMILIES = ("json_schema", "tool_call", "secret", "sums", "json_object", "copy", "tool_none", "count")


async def probe_secrets(session: CheckSession) -> str:
    """Secrets at once, every other one streamed, half of the last ones with thinking.

    Thorough runs have several rounds, one of them with twice as many. `trends` sends more of them at once.

    The session itself looks for codes of other questions in each reply.
    """
    usual, rounds = session.options.parallel, session.options.trials // 4
    sizes = [*[usual] * (rounds - 3), 2 * usual, usual] if session.options.trials >= TRIALS["thorough"] else [usual]
    before = session.failures.snapshot()
    for number, size in enumerate(sizes):
        session.trial_progress = (number + 1, len(sizes))
        thinking = session.model_thinks and number == len(sizes) - 1  # reasoning must not cross over either
        questions = [session.draw("secret", thinking=thinking and index % 4 > 1) for index in range(size)]
        with session.allow_slow_replies() if size > usual else contextlib.nullcontext():  # a long queue takes longer
            answers = await _ask_together(session, questions, lambda index: index % 2 == 1)
        await _judge_together(session, questions, answers)
        if thinking:
            await _check_reasoning(session, questions, answers)
        _stop_if_failed(session, before)
    return f"{', '.join(map(str, sizes))} concurrent requests"


async def _check_reasoning(session: CheckSession, questions: list[Question], answers: list[ChatAnswer | None]) -> None:
    """Reasoning stays apart among others too; a model that did not think this time does not if asked alone."""
    for index, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        if answer is None or not question.thinking:
            continue
        reason = mixed_reasoning(answer)
        if not answer.reasoning and (await session.ask_question(question, stream=index % 2 == 1)).reasoning:
            content = answer.content[:60]
            reason = f"reasoning is apart if asked alone, and in the answer among others: {content!r}"
        session.failures.add("crowd", reason)


async def probe_long_streams(session: CheckSession) -> str:
    """Streams of numbers from different starts run side by side, and none has a number of another."""
    before = session.failures.snapshot()
    starts = [2 + 7 * (index % 8) for index in range(session.options.parallel)]
    questions = [session.draw("count", start=start, end=start + 10) for start in starts]
    await _judge_together(session, questions, await _ask_together(session, questions, lambda index: True))
    _stop_if_failed(session, before)
    return f"{len(questions)} concurrent streams"


async def probe_mixed_requests(session: CheckSession) -> str:
    """Schemas, tools, numbers and plain words side by side: no request is bound by another's grammar."""
    before = session.failures.snapshot()
    number = session.options.parallel
    for odd in (True, False) if session.options.trials >= TRIALS["thorough"] else (session.rng.random() < 0.5,):
        families = [MIXED_FAMILIES[index % len(MIXED_FAMILIES)] for index in range(number)]
        questions = [*map(session.draw, families)]
        streamed = {index for index in range(number) if (index % 2 == 1) == odd}
        answers = await _ask_together(session, questions, streamed.__contains__)
        await _judge_together(session, questions, answers)
        _stop_if_failed(session, before)
    return f"{number} requests of {len(MIXED_FAMILIES)} sorts at once"


def _stop_if_failed(session: CheckSession, before: Mapping[str, FailureCount]) -> None:
    for failure in session.failures.summarize(before):
        if failure.kind in ("crosstalk", "crowd") and failure.verdict == "fail":
            raise ProbeFailed(f"{failure.example}; {failure.seen} of {failure.of}")


async def _ask_together(
    session: CheckSession, questions: list[Question], is_streamed: Callable[[int], bool]
) -> list[ChatAnswer | None]:
    """Ask all at once; None for a lost reply, which is counted."""
    requests = [session.ask_question(question, stream=is_streamed(at)) for at, question in enumerate(questions)]
    answers: list[ChatAnswer | None] = []
    for result in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(result, ChatAnswer):
            session.failures.add("crowd")
            answers.append(result)
        elif isinstance(result, ProbeSkipped | ProbeFailed) and not isinstance(result, EndpointUnusable):
            if isinstance(result, ProbeFailed):  # else it does not offer what the question needs
                session.failures.add("crowd", f"lost among others: {result}")
            answers.append(None)
        else:
            raise result
    return answers


async def _judge_together(session: CheckSession, questions: list[Question], answers: list[ChatAnswer | None]) -> None:
    """Judge all answers; one that is wrong if asked alone too is the model's failure."""
    for question, answer in zip(questions, answers, strict=True):
        wrong = judge_answer(question, answer) if answer else ""
        if wrong and judge_answer(question, await session.ask_question(question)):
            session.failures.add("crowd", f"wrong alone and among others: {wrong}", "model")
        elif answer:
            session.failures.add("crowd", wrong, where="right when asked alone, wrong among others")


CHECK = Check(
    name="concurrency",
    probes={"secrets": probe_secrets, "long streams": probe_long_streams, "mixed": probe_mixed_requests},
)
