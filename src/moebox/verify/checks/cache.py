"""cache: similar prompts are kept apart, other settings get another answer, and conversations that come back their own.

What a cache evicted, offloaded or restored after many other conversations must be theirs.
"""

import asyncio
import dataclasses
import random
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from moebox.phantom import vocabulary
from moebox.phantom.question import Question
from moebox.phantom.text_questions import haystack_questions
from moebox.units import format_count, format_percent, format_seconds
from moebox.verify.checks.turns import user_turn
from moebox.verify.completions import ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning
from moebox.verify.trials import CheckSession, Probes, judge_answer

PROMPT_CHARS = 1250  # many blocks of any prefix cache; a third of it in a short context
DEPTHS = {"early": 0.03, "in the middle": 0.5, "late": 0.97}
TWICE = "in the middle"  # the first of these two prompts is sent again, for its own cached prefix
FEW_TOKENS = 4
TURNS = ("first turn", "next turn", "return after the others")
CHARS_PER_TOKEN = 1.9  # of the phantom, the least of the tokenizers tried; larger models get fewer tokens
CODE_DEPTHS = (0.1, 0.4, 0.7)  # a code for each turn; the phantom misses codes at the very beginning
TOOLS_EVERY = 4  # of so many conversations one knows tools instead of codes
MIN_CONVERSATIONS = 4
SHORT_PREFIX = 180  # tokens of a conversation in a short context
AT_ONCE = 3  # conversations; more than a small server has slots would take the cache from each other
WRONG_TURNS = 2  # that are right without the cache: a store that returns wrong prefixes at all is broken
MISSED_SHARE = 0.5  # of a prompt; blocks, templates and the last question leave a correct cache above it
WARM: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95}  # as agents sample; almost all else is asked at 0


async def probe_similar_prompts(session: CheckSession) -> None:
    """Long prompts that differ early, in the middle or late each get their own answer, one of them twice."""

    async def attempt(stream: bool) -> str:
        chars = PROMPT_CHARS if session.is_roomy else PROMPT_CHARS // 3
        questions = haystack_questions(session.rng, chars=chars, depths=list(DEPTHS.values()))
        for where, first in zip(DEPTHS, questions, strict=True):
            (second,) = with_new_codes(session.rng, [first])
            right = []
            for mine, other in ((first, second), (second, first), (first, second))[: 3 if where == TWICE else 2]:
                answer = await session.ask_question(mine, stream=mine is second)
                if other.expect in answer.content and mine.expect not in answer.content:
                    return f"two prompts that differ {where}: one got the other's code {other.expect}"
                right.append(mine.expect in answer.content)
            if right[0] and not right[-1] and where == TWICE:
                return f"right at first; asked again, from the cache: {answer.content[:60]!r}"
        return ""

    with session.allow_slow_replies():  # long prompts, for faults that always show
        await session.run_trials("cache", attempt, 0.09, 1)


async def probe_other_settings(session: CheckSession) -> None:
    """The same question with other max_tokens, stop or streaming is not answered from the earlier answer."""

    async def attempt(stream: bool) -> str:
        question = session.draw("count", start=session.rng.randint(6, 9), end=18)
        cut = await session.ask_question(question, max_tokens=FEW_TOKENS, exact=True)
        full = await session.ask_question(question)
        stopped = await session.ask_question(question, stop=["12"])
        streamed = await session.ask_question(question, stream=True)
        full_wrong = judge_answer(question, full)
        wrong = "" if full_wrong else judge_answer(question, streamed)
        session.failures.add("cache", wrong, stream=True, where="right when whole, then streamed")
        if full_wrong and full.content == cut.content and cut.content:
            return f"asked with max_tokens {FEW_TOKENS}, then without: the short answer came again: {full.content!r}"
        repeated = "12" in stopped.content and stopped.content == full.content
        return "asked without a stop string, then with one: the long answer came again" if repeated else ""

    await session.run_trials("cache", attempt, 0.25)


async def probe_repetition(session: CheckSession) -> None:
    """The same question gets the same answer many times, the run's first question too."""
    first = [session.first_secret] if session.first_secret else []

    async def attempt(stream: bool) -> str:
        question = first.pop() if first else session.draw("secret")
        right = [not judge_answer(question, await session.ask_question(question)) for _ in range(2)]
        if not all(right):
            return "the same question was right once, and wrong once" if any(right) else ""
        wrong: list[str] = []
        for _ in range(3):  # sampled as agents do, most answers must be right too
            answer = await session.ask_question(question, **WARM)
            wrong += [answer.content[:60]] if judge_answer(question, answer) else []
            if not wrong:
                return ""
        settings = ", ".join(f"{key} {value}" for key, value in WARM.items())
        reason = f"right at temperature 0, and wrong {len(wrong)} times of 3 at {settings}: {wrong[0]!r}"
        return reason if len(wrong) > 1 else ""

    await session.run_trials("answer", attempt, 0.25)


def with_new_codes(rng: random.Random, questions: Sequence[Question]) -> list[Question]:
    """The questions about one text with other codes in it."""
    codes = {question.expect: vocabulary.draw_code(rng, 6) for question in questions}
    parts = [str(question.messages[0]["content"]).rpartition("\n\n") for question in questions]
    text = parts[0][0]
    for old, new in codes.items():
        text = text.replace(old, new)
    return [
        dataclasses.replace(question, messages=(user_turn(f"{text}\n\n{ask}"),), expect=codes[question.expect])
        for question, (_, _, ask) in zip(questions, parts, strict=True)
    ]


async def judge_turn(
    session: CheckSession, conversations: Sequence[Sequence[Question]], number: int, index: int, turn: str
) -> ChatAnswer | None:
    """Ask one question and count it. A wrong answer is the server's if the same prompt is right without the cache."""
    question = conversations[number][index]
    stream = (number + index) % 2 == 1
    where = f"{turn} of conversation {number + 1}"
    try:
        answer = await session.ask_question(question, stream=stream)
    except ProbeSkipped:
        return None  # a server may have no tool parser
    except ProbeFailed as problem:
        session.failures.add("cache", str(problem), where=where)
        return None
    wrong = judge_answer(question, answer)
    if wrong:
        role = "user" if session.refusals.get("system messages") else "system"
        salt = {"role": role, "content": f"Conversation {vocabulary.draw_code(session.rng, 6)}."}
        fresh = dataclasses.replace(question, messages=(salt, *question.messages))
        if judge_answer(question, await session.ask_question(fresh, stream=stream)):
            wrong = ""  # the model's own
    for other, questions in enumerate(conversations if wrong else ()):
        if other != number and any(str(each.expect) in answer.content for each in questions):
            wrong = f"it got the code of conversation {other + 1}"
    session.failures.add("cache", wrong, where=f"{where}, right without the cache")
    return answer


async def probe_returning(session: CheckSession) -> str | ProbeWarning:
    """Fill the cache with conversations, then come back to each after all the others, several at once.

    Cached tokens are counted by turn if the server reports them.
    """
    options = session.options
    count = options.conversations or max(MIN_CONVERSATIONS, options.trials // 3)
    tokens = options.prefix_tokens if session.is_roomy else min(options.prefix_tokens, SHORT_PREFIX)
    # The texts differ only in their codes, so a mix-up shows its origin; some conversations have tools of their own,
    # and each turn needs one of them
    base = haystack_questions(session.rng, chars=round(tokens * CHARS_PER_TOKEN), depths=CODE_DEPTHS)
    conversations: list[list[Question]] = []
    for number in range(count):
        if number % TOOLS_EVERY == TOOLS_EVERY - 1:
            session.offered_tools = ()
            conversations.append([session.draw("tool_call") for _ in TURNS])
        else:
            conversations.append(with_new_codes(session.rng, base))
    answers: list[list[ChatAnswer]] = [[] for _ in TURNS]
    before = session.failures.snapshot()

    async def converse(waiting: Iterator[int], late: int) -> None:
        for number in waiting:
            for place, index in enumerate((2, 0) if late else (0, 1)):
                session.trial_progress = (late * count + number + 1, 2 * count)
                turn = 2 if late else index
                answer = await judge_turn(session, conversations, number, index, TURNS[turn])
                if answer and not (late and place):  # only the first question of a return meets what was evicted
                    answers[turn].append(answer)

    # Each return has all other conversations before it, and asks for old and new; after a failure come more returns.
    for late in range(1 + options.patience):
        if late == 1 and session.restart:
            await asyncio.to_thread(session.restart)
        waiting = iter(range(count))
        with session.allow_slow_replies():
            await asyncio.gather(*(converse(waiting, late) for _ in range(min(options.parallel, count, AT_ONCE))))
        wrong = [failure for failure in session.failures.summarize(before) if failure.kind == "cache" and failure.seen]
        if wrong and wrong[0].seen >= WRONG_TURNS:
            raise ProbeFailed(f"{wrong[0].example}; {wrong[0].seen} of {wrong[0].of} turns")
        if late and not wrong:
            break
    if not answers[-1]:
        raise ProbeSkipped("the server accepts no such conversation")
    return describe_cache(session, answers)


def describe_cache(session: CheckSession, answers: Sequence[Sequence[ChatAnswer]]) -> str | ProbeWarning:
    """Shares of the prompts that came from the cache by turn, and a warning if they should have and did not."""
    prompts = [answer.token_count("prompt") or 0 for answer in answers[-1]]
    total = sum(prompts)
    title = f"{len(prompts)} conversations, {format_count(total)} tokens"
    shares: list[float] = []  # 0 if the server counts none
    for turn in answers:
        known = [(answer.cached_tokens, answer.token_count("prompt")) for answer in turn]
        counted = [cached / prompt for cached, prompt in known if cached is not None and prompt]
        shares.append(statistics.median(counted) if counted else 0.0)
    if not any(shares) and not session.options.cache_tokens:
        return f"{title}; the server reports no cached tokens"
    parts = [f"{name} {format_percent(share)}" for name, share in zip(TURNS, shares, strict=True)]
    text = f"{title}; from the cache: {', '.join(parts)}"
    expected = {"next turn": True, "return after the others": session.options.cache_tokens >= total > 0}
    for name, share in zip(TURNS, shares, strict=True):
        if not expected.get(name) or share >= MISSED_SHARE:
            continue
        lost = (1 - share) * statistics.median(prompts)
        cost = f"{format_count(round(lost))} tokens are computed again in each turn"
        if session.prefill_tok_s:
            cost += f", {format_seconds(lost / session.prefill_tok_s)}"
        return ProbeWarning(f"{text}; {name} should have been cached: {cost}")
    return text


PROBES: Probes = {
    "alike": probe_similar_prompts,
    "other settings": probe_other_settings,
    "repeated": probe_repetition,
    "returning": probe_returning,
}
