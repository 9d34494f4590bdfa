"""cache: similar prompts are kept apart, and the same prompt with other settings is answered anew."""

import dataclasses
from typing import Any

from moebox.phantom import vocabulary
from moebox.phantom.text_questions import haystack_questions
from moebox.verify.checks.returning import probe_returning
from moebox.verify.trials import PASSED, Check, CheckSession, TrialOutcome, judge_answer, server_failure

PROMPT_CHARS = 1250  # many blocks of any prefix cache; half of it in a short context
DEPTHS = {"early": 0.03, "in the middle": 0.5, "late": 0.97}
FEW_TOKENS = 4
WARM: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95}  # as agents sample; almost all else is asked at 0


async def probe_similar_prompts(session: CheckSession) -> None:
    """Long prompts that differ early, in the middle or late each get their own answer, twice."""

    async def attempt(stream: bool) -> TrialOutcome:
        chars = PROMPT_CHARS if session.is_roomy else PROMPT_CHARS // 2
        questions = haystack_questions(session.rng, chars=chars, depths=list(DEPTHS.values()))
        for where, first in zip(DEPTHS, questions, strict=True):
            code = vocabulary.draw_code(session.rng, 6)
            text = str(first.messages[0]["content"]).replace(str(first.expect), code)
            second = dataclasses.replace(first, messages=({"role": "user", "content": text},), expect=code)
            right = []
            for mine, other in ((first, second), (second, first), (first, second)):
                answer = await session.ask_question(mine, stream=mine is second)
                if other.expect in answer.content and mine.expect not in answer.content:
                    return server_failure(f"two prompts that differ {where}: one got the other's code {other.expect}")
                right.append(mine.expect in answer.content)
            if right[0] and not right[2]:
                return server_failure(f"right at first; asked again, from the cache: {answer.content[:60]!r}")
        return PASSED

    with session.allow_slow_replies():  # long prompts, for faults that always show
        await session.run_trials("cache", attempt, 0.09, 1)


async def probe_other_settings(session: CheckSession) -> None:
    """The same question with other max_tokens, stop or streaming is not answered from the earlier answer."""

    async def attempt(stream: bool) -> TrialOutcome:
        question = session.draw("count", start=session.rng.randint(6, 9), end=18)
        cut = await session.ask_question(question, max_tokens=FEW_TOKENS, exact=True)
        full = await session.ask_question(question)
        stopped = await session.ask_question(question, stop=["12"])
        streamed = await session.ask_question(question, stream=True)
        full_wrong = judge_answer(question, full)
        wrong = "" if full_wrong else judge_answer(question, streamed)
        session.failures.add("cache", wrong, stream=True, where="right when whole, then streamed")
        if full_wrong and full.content == cut.content and cut.content:
            again = f"the short answer came again: {full.content!r}"
            return server_failure(f"asked with max_tokens {FEW_TOKENS}, then without: {again}")
        if "12" in stopped.content and stopped.content == full.content:
            return server_failure("asked without a stop string, then with one: the long answer came again")
        return PASSED

    await session.run_trials("cache", attempt, 0.25)


async def probe_repetition(session: CheckSession) -> None:
    """The same question gets the same answer many times, the run's first question too."""
    first = [session.first_secret] if session.first_secret else []

    async def attempt(stream: bool) -> TrialOutcome:
        question = first.pop() if first else session.draw("secret")
        right = [not judge_answer(question, await session.ask_question(question)) for _ in range(2)]
        if len(set(right)) > 1:
            return server_failure("the same question was right once, and wrong once")
        if not all(right):
            return PASSED
        wrong: list[str] = []
        for _ in range(3):  # sampled as agents do, most answers must be right too
            answer = await session.ask_question(question, **WARM)
            wrong += [answer.content[:60]] if judge_answer(question, answer) else []
            if not wrong:
                return PASSED
        settings = ", ".join(f"{key} {value}" for key, value in WARM.items())
        reason = f"right at temperature 0, and wrong {len(wrong)} times of 3 at {settings}: {wrong[0]!r}"
        return server_failure(reason if len(wrong) > 1 else "")

    await session.run_trials("answer", attempt, 0.25)


CHECK = Check(
    name="cache",
    probes={
        "alike": probe_similar_prompts,
        "other settings": probe_other_settings,
        "repeated": probe_repetition,
        "returning": probe_returning,
    },
)
