"""concurrency: many requests at once, each with its own secret: none crosses over, none is lost."""

import asyncio
import contextlib
from collections.abc import Collection

from moebox.phantom.question import Question
from moebox.verify.checks.thinking import mixed_reasoning
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped
from moebox.verify.statistics import ModelFailure
from moebox.verify.trials import CheckSession, Probes, judge_answer

MIXED_FAMILIES = ("json_schema", "tool_call", "secret", "sums", "json_object", "copy", "tool_none", "count")


async def probe_secrets(session: CheckSession) -> str:
    """Secrets at once, every other one streamed, half of the last ones with thinking.

    Thorough runs have several rounds, one of them with twice as many. `trends` sends more of them at once. The session
    itself looks for codes of other questions in each reply.
    """
    usual, rounds = session.options.parallel, session.options.trials // 4
    sizes = [*[usual] * (rounds - 3), 2 * usual, usual] if session.options.effort == "thorough" else [usual]
    for number, size in session.track(sizes):
        thinking = session.model_thinks and number == len(sizes) - 1  # reasoning must not cross over either
        questions = [session.draw("secret", thinking=thinking and index % 4 > 1) for index in range(size)]
        with session.allow_slow_replies() if size > usual else contextlib.nullcontext():  # a long queue takes longer
            await _ask_together(session, questions, range(1, size, 2))
    return f"{', '.join(map(str, sizes))} concurrent requests"


async def probe_long_streams(session: CheckSession) -> str:
    """Streams of numbers from different starts run side by side, and none has a number of another."""
    number = session.options.parallel
    starts = [2 + 7 * (index % 8) for index in range(number)]
    questions = [session.draw("count", start=start, end=start + 10) for start in starts]
    await _ask_together(session, questions, range(number))
    return f"{number} concurrent streams"


async def probe_mixed_requests(session: CheckSession) -> str:
    """Schemas, tools, numbers and plain words side by side: no request is bound by another's grammar."""
    number = session.options.parallel
    for odd in (True, False) if session.options.effort == "thorough" else (session.rng.random() < 0.5,):
        questions = [session.draw(MIXED_FAMILIES[index % len(MIXED_FAMILIES)]) for index in range(number)]
        await _ask_together(session, questions, range(int(odd), number, 2))
    return f"{number} requests of {len(MIXED_FAMILIES)} sorts at once"


async def _ask_together(session: CheckSession, questions: list[Question], streamed: Collection[int]) -> None:
    """Ask all at once and judge the answers. Raise ProbeFailed if many are lost, or right only if asked alone."""
    before, failures = session.failures.snapshot(), session.failures
    requests = [session.ask_question(question, stream=at in streamed) for at, question in enumerate(questions)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    for result in results:
        if isinstance(result, ProbeFailed):
            failures.add("crowd", f"lost among others: {result}")
        elif isinstance(result, ChatAnswer):
            failures.add("crowd")
        elif not isinstance(result, ProbeSkipped):  # the server does not offer what the question needs
            raise result
    answered = [
        (at, question, answer)
        for at, (question, answer) in enumerate(zip(questions, results, strict=True))
        if isinstance(answer, ChatAnswer)
    ]
    for _, question, answer in answered:
        wrong = judge_answer(question, answer)
        if wrong and judge_answer(question, await session.ask_question(question)):
            failures.add("crowd", ModelFailure(f"wrong alone and among others: {wrong}"))
        else:
            failures.add("crowd", wrong, where="right when asked alone, wrong among others")
    for at, question, answer in answered:
        if not question.thinking:
            continue
        # A model that did not think this time does not if asked alone
        reason = mixed_reasoning(answer)
        if not answer.reasoning and (await session.ask_question(question, stream=at in streamed)).reasoning:
            reason = f"reasoning is apart if asked alone, and in the answer among others: {answer.content[:60]!r}"
        failures.add("crowd", reason)
    for failure in failures.summarize(before):
        if failure.kind in ("crosstalk", "crowd") and failure.verdict == "fail":
            raise ProbeFailed(f"{failure.example}; {failure.seen} of {failure.of}")


PROBES: Probes = {"secrets": probe_secrets, "long streams": probe_long_streams, "mixed": probe_mixed_requests}
