"""cache: prompts that begin alike are told apart, and the same prompt with other settings is answered afresh."""

import dataclasses
from typing import Any

from moebox.phantom import vocabulary as words
from moebox.phantom.tasks import Task, haystack
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker
from moebox.verify.kinds import STREAMED
from moebox.verify.rung import Rung
from moebox.verify.trials import Trial, draw, judge, trials, wrong

CHARS = 1400  # of each prompt: many blocks of any prefix cache
DEPTHS = {"early": 0.03, "in the middle": 0.5, "late": 0.97}
FEW = 4
WARM: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95}  # as agents sample; almost all else is asked at 0


async def alike(ask: Asker) -> None:
    """Two long prompts that differ early, in the middle or late: each gets its own answer, twice."""
    for where, depth in DEPTHS.items():

        async def attempt(where: str = where, depth: float = depth) -> Trial:
            (first,) = haystack(ask.rng, chars=CHARS, depths=[depth])
            second = _other(first, words.code(ask.rng, 6))
            right = []
            for mine, other in ((first, second), (second, first), (first, second)):
                answer = await ask.ask(mine, stream=mine is second)
                if other.expect in answer.content and mine.expect not in answer.content:
                    return wrong(f"two prompts that differ {where}: one got the other's code {other.expect}")
                right.append(mine.expect in answer.content)
            worse = right[0] and not right[2]
            return wrong(f"right at first; asked again, from the cache: {answer.content[:60]!r}" if worse else "")

        with ask.unhurried():
            await trials(ask, "cache", attempt, ask.options.share(0.17, 1))  # long prompts, for faults that come always


def _other(task: Task, code: str) -> Task:
    """The same question with another code in the text."""
    text = str(task.messages[0]["content"]).replace(str(task.expect), code)
    return dataclasses.replace(task, messages=({"role": "user", "content": text},), expect=code)


async def other_settings(ask: Asker) -> None:
    """The same question with max_tokens, stop, tools or streaming changed: what was kept of it must not show."""

    async def attempt() -> Trial:
        task = draw(ask, "count", start=ask.rng.randint(2, 9), end=30)
        cut = await ask.ask(task, max_tokens=FEW, exact=True)
        full = await ask.ask(task)
        stopped = await ask.ask(task, stop=["12"])
        streamed = await ask.ask(task, stream=True)
        why = _stale(task, cut, full, stopped)
        ask.tally.add("cache" + STREAMED, "" if judge(task, full) else _same(task, streamed))
        return wrong(why)

    await trials(ask, "cache", attempt, ask.options.share(0.25))


def _stale(task: Task, cut: Answer, full: Answer, stopped: Answer) -> str:
    if judge(task, full) and full.content == cut.content and cut.content:
        return f"asked with max_tokens {FEW}, then without: the short answer came again: {full.content!r}"
    if "12" in stopped.content and stopped.content == full.content:
        return "asked without a stop string, then with one: the long answer came again"
    return ""


def _same(task: Task, streamed: Answer) -> str:
    why = judge(task, streamed)
    return f"right when whole, then streamed: {why}" if why else ""


async def repeated(ask: Asker) -> None:
    """The same question many times gets the same answer, the ladder's first one too: nothing wears out."""
    first = [ask.first] if ask.first else []

    async def attempt() -> Trial:
        task = first.pop() if first else draw(ask, "secret")
        right = [not judge(task, await ask.ask(task)) for _ in range(2)]
        if len(set(right)) > 1:
            return wrong("the same question was right once, and wrong once")
        return wrong(await _wrong_when_warm(ask, task) if all(right) else "")

    await trials(ask, "answer", attempt, ask.options.share(0.25))


async def _wrong_when_warm(ask: Asker, task: Task) -> str:
    """ "" or what it says mostly, sampled as agents do, where it knows the answer at temperature 0."""
    slips: list[str] = []
    for _ in range(3):
        answer = await ask.ask(task, **WARM)
        slips += [answer.content[:60]] if judge(task, answer) else []
        if not slips:
            return ""
    told = ", ".join(f"{key} {value}" for key, value in WARM.items())
    return f"right at temperature 0, and wrong {len(slips)} times of 3 at {told}: {slips[0]!r}" * (len(slips) > 1)


RUNG = Rung(
    name="cache",
    about="prompts that begin alike, and the same prompt with other settings",
    probes={"alike": alike, "other settings": other_settings, "repeated": repeated},
    cost=40,
)
