"""cache: prompts that begin alike are told apart, and the same prompt with other settings is answered afresh."""

import dataclasses
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.tasks import Question, haystack_questions
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Check
from moebox.verify.trials import TrialOutcome, draw_question, judge_answer, run_trials, server_failure

CHARS = 1400  # of each prompt: many blocks of any prefix cache
DEPTHS = {"early": 0.03, "in the middle": 0.5, "late": 0.97}
FEW = 4
WARM: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95}  # as agents sample; almost all else is asked at 0


async def probe_similar_prompts(session: CheckSession) -> None:
    """Two long prompts that differ early, in the middle or late: each gets its own answer, twice."""
    for where, depth in DEPTHS.items():

        async def attempt(where: str = where, depth: float = depth) -> TrialOutcome:
            (first,) = haystack_questions(session.rng, chars=CHARS, depths=[depth])
            second = _other(first, words.draw_code(session.rng, 6))
            right = []
            for mine, other in ((first, second), (second, first), (first, second)):
                answer = await session.ask_question(mine, stream=mine is second)
                if other.expect in answer.content and mine.expect not in answer.content:
                    return server_failure(f"two prompts that differ {where}: one got the other's code {other.expect}")
                right.append(mine.expect in answer.content)
            worse = right[0] and not right[2]
            return server_failure(
                f"right at first; asked again, from the cache: {answer.content[:60]!r}" if worse else ""
            )

        with session.allow_slow_replies():
            await run_trials(
                session, "cache", attempt, session.options.trial_share(0.17, 1)
            )  # long prompts, for faults that come always


def _other(task: Question, code: str) -> Question:
    """The same question with another code in the text."""
    text = str(task.messages[0]["content"]).replace(str(task.expect), code)
    return dataclasses.replace(task, messages=({"role": "user", "content": text},), expect=code)


async def probe_other_settings(session: CheckSession) -> None:
    """The same question with max_tokens, stop, tools or streaming changed: what was kept of it must not show."""

    async def attempt() -> TrialOutcome:
        task = draw_question(session, "count", start=session.rng.randint(2, 9), end=30)
        cut = await session.ask_question(task, max_tokens=FEW, exact=True)
        full = await session.ask_question(task)
        stopped = await session.ask_question(task, stop=["12"])
        streamed = await session.ask_question(task, stream=True)
        why = _stale(task, cut, full, stopped)
        session.failures.add("cache" + STREAMED, "" if judge_answer(task, full) else _same(task, streamed))
        return server_failure(why)

    await run_trials(session, "cache", attempt, session.options.trial_share(0.25))


def _stale(task: Question, cut: ChatAnswer, full: ChatAnswer, stopped: ChatAnswer) -> str:
    if judge_answer(task, full) and full.content == cut.content and cut.content:
        return f"asked with max_tokens {FEW}, then without: the short answer came again: {full.content!r}"
    if "12" in stopped.content and stopped.content == full.content:
        return "asked without a stop string, then with one: the long answer came again"
    return ""


def _same(task: Question, streamed: ChatAnswer) -> str:
    why = judge_answer(task, streamed)
    return f"right when whole, then streamed: {why}" if why else ""


async def probe_repetition(session: CheckSession) -> None:
    """The same question many times gets the same answer, the ladder's first one too: nothing wears out."""
    first = [session.first_secret] if session.first_secret else []

    async def attempt() -> TrialOutcome:
        task = first.pop() if first else draw_question(session, "secret")
        right = [not judge_answer(task, await session.ask_question(task)) for _ in range(2)]
        if len(set(right)) > 1:
            return server_failure("the same question was right once, and wrong once")
        return server_failure(await _wrong_when_warm(session, task) if all(right) else "")

    await run_trials(session, "answer", attempt, session.options.trial_share(0.25))


async def _wrong_when_warm(session: CheckSession, task: Question) -> str:
    """ "" or what it says mostly, sampled as agents do, where it knows the answer at temperature 0."""
    slips: list[str] = []
    for _ in range(3):
        answer = await session.ask_question(task, **WARM)
        slips += [answer.content[:60]] if judge_answer(task, answer) else []
        if not slips:
            return ""
    told = ", ".join(f"{key} {value}" for key, value in WARM.items())
    return f"right at temperature 0, and wrong {len(slips)} times of 3 at {told}: {slips[0]!r}" * (len(slips) > 1)


CHECK = Check(
    name="cache",
    about="prompts that begin alike, and the same prompt with other settings",
    probes={"alike": probe_similar_prompts, "other settings": probe_other_settings, "repeated": probe_repetition},
    request_estimate=40,
)
