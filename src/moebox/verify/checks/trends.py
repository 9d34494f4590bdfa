"""trends: accuracy over length, turns, concurrent requests, temperature, time; by Cochran and Armitage's exact test."""

import asyncio
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from moebox.core.verdict import Attribution
from moebox.phantom.question import Question
from moebox.verify.checks.turns import assistant_turn, user_turn
from moebox.verify.completions import NO_LOGPROBS, ChatAnswer
from moebox.verify.session import ProbeFailed, ProbeSkipped, ProbeWarning, skip_if_rejected
from moebox.verify.statistics import ModelFailure, failure_mark
from moebox.verify.trials import CheckSession, Probes, judge_answer

ALARM_RATE = 0.001  # false alarms on a healthy server, at most, for each dimension and run: all looks share it
MAX_ROUNDS, PER_ROUND = 6, 2  # of the doses, a second one only after a wrong answer; times of each dose in a round
COPY_WORDS, WORD_TOKENS = (10, 40, 120, 360), 4  # as far as a tenth of the context holds them
TURNS = (1, 4, 9, 18)  # pairs of turns between something that is mentioned and the question about it
STREAMS = (1, 2, 4, 8)  # as far as the run may send so many at once
TEMPERATURES = (0.0, 0.3, 0.6, 1.0)
CERTAIN_DRAWS = 4  # questions, to find one that the model is certain of
SURE_NATS = 0.02  # of a whole answer: the model then gives another one in fifty at temperature 1
REPEATS = 3  # of a wrong answer, until it differs: only a model gives the same one each time
SUSTAINED_S, TIME_PARTS = 180.0, 4  # of load, in a thorough run
AskDose = Callable[[int], Awaitable[Any]]  # of a dose's number


def trend_probability(counts: Sequence[tuple[int, int]]) -> float:
    """Chance of wrong answers at such high doses if the dose does not matter; `counts` has (wrong, all) by dose."""
    wrong, total = sum(bad for bad, _ in counts), sum(dose * bad for dose, (bad, _) in enumerate(counts))
    ways = {(0, 0): 1}  # by the number of wrong answers and the sum of their doses
    for dose, (_, of) in enumerate(counts):
        choices = [math.comb(of, more) for more in range(of + 1)]
        grown: dict[tuple[int, int], int] = {}
        for (bad, place), number in ways.items():
            for more, choice in enumerate(choices[: wrong - bad + 1]):
                key = bad + more, place + dose * more
                grown[key] = grown.get(key, 0) + number * choice
        ways = grown
    possible = {place: number for (bad, place), number in ways.items() if bad == wrong}
    return sum(number for place, number in possible.items() if place >= total) / sum(possible.values())


class DoseSeries:
    """Answers at rising doses, counted as right or wrong and attributed to the server or the model."""

    def __init__(self, session: CheckSession, doses: Sequence[str]) -> None:
        self.session, self.doses = session, doses
        self.of = [0] * len(doses)
        self.wrong: dict[Attribution, list[int]] = {"server": [0] * len(doses), "model": [0] * len(doses)}
        self.examples: dict[int, str] = {}  # the first wrong answer of each dose

    async def ask(self, dose: int, *questions: Question, repeat: Any = None, **more: Any) -> ChatAnswer | None:
        """Ask at once and count. A wrong answer is the server's if it differs when asked again, alone with `repeat`."""
        answer: ChatAnswer | None = None
        replies = await asyncio.gather(*(self._judge(question, more) for question in questions))
        for question, (wrong, answer) in zip(questions, replies, strict=True):
            if wrong:
                self.examples.setdefault(dose, f"{self.doses[dose]}: {wrong}")
                for _ in range(REPEATS if answer else 0):
                    _, other = await self._judge(question, {**more, **(repeat or {})})
                    if not other or not answer or other.content != answer.content:
                        break
                else:
                    wrong = ModelFailure(wrong) if answer else wrong
                self.wrong["model" if isinstance(wrong, ModelFailure) else "server"][dose] += 1
            self.of[dose] += 1
            self.session.failures.add("trend", wrong, where=self.doses[dose])
        return answer

    async def _judge(self, question: Question, more: dict[str, Any]) -> tuple[str, ChatAnswer | None]:
        try:
            answer = await self.session.ask_question(question, **more)
        except ProbeFailed as problem:
            if problem.status in range(400, 500):
                raise
            return str(problem), None
        return judge_answer(question, answer), answer

    async def run(
        self, ask_dose: AskDose, rounds: int = MAX_ROUNDS, *, falling: bool = False, times: int = PER_ROUND
    ) -> str | ProbeWarning:
        """Ask at every dose, and again while there are wrong answers and no clear trend. Raise ProbeFailed for one.

        Raise ProbeSkipped if fewer than two doses have answers. `falling`: begin with the highest dose.
        """
        limit, chance, wrong = ALARM_RATE / rounds, 1.0, self.wrong["model"]
        for number in range(rounds):
            self.session.trial_progress = (number + 1, rounds)
            for dose in sorted([*range(len(self.doses))] * times, reverse=falling):
                await ask_dose(dose)
            wrong = [server + model for server, model in zip(self.wrong["server"], self.wrong["model"], strict=True)]
            chance = trend_probability(list(zip(wrong, self.of, strict=True)))
            if chance <= limit or not self.examples or self.session.seconds_left <= 0:
                break
        if 2 * wrong[0] > self.of[0]:
            whose = "" if self.wrong["server"][0] else "model, not server: "
            raise ProbeSkipped(f"{whose}wrong at the lowest dose already ({self.examples[0]})")
        parts = [part for part in zip(self.doses, wrong, self.of, strict=True) if part[2]]
        text = "right " + ", ".join(f"{of - bad} of {of} at {name}" for name, bad, of in parts)
        if len(parts) < 2:
            raise ProbeSkipped(f"one dose shows no trend: {text}")
        example, servers = next(iter(self.examples.values()), ""), self.wrong["server"]
        surely = chance <= limit and failure_mark("trend", sum(servers), sum(self.of)) == "fail"
        if surely or trend_probability(list(zip(servers, self.of, strict=True))) <= limit:
            raise ProbeFailed(f"accuracy falls: {text} (p = {chance:.1g}); {example}")
        if chance <= limit:
            cause = "the model's own limit, or damage that is the same each time"
            return ProbeWarning(f"accuracy falls: {text} (p = {chance:.1g}): {cause}; {example}")
        return text


async def probe_length(session: CheckSession) -> str | ProbeWarning:
    """Exact copies of growing length."""
    room = (session.context_limit or 4096) / 10 / WORD_TOKENS
    sizes = [size for size in COPY_WORDS if size <= room] or COPY_WORDS[:1]
    series = DoseSeries(session, [f"{size} words" for size in sizes])

    async def ask_dose(dose: int) -> None:
        limit, stream = 2 * WORD_TOKENS * sizes[dose] + 64, series.of[dose] % 2 == 1
        await series.ask(dose, session.draw("copy", length=sizes[dose]), stream=stream, max_tokens=limit)

    with session.allow_slow_replies():
        return await series.run(ask_dose)


async def probe_turns(session: CheckSession) -> str | ProbeWarning:
    """What was mentioned is remembered after more and more turns."""
    series = DoseSeries(session, [f"{2 * pairs} turns" for pairs in TURNS])
    memories = [session.draw("memory") for _ in range(MAX_ROUNDS * PER_ROUND)]  # each at every dose

    async def ask_dose(dose: int) -> None:
        memory = memories[series.of[dose]]
        *before, ask = memory.messages
        between = [user_turn("Go on."), assistant_turn("I will.")] * (TURNS[dose] - 1)
        await series.ask(dose, dataclasses.replace(memory, messages=(*before, *between, ask)))

    return await series.run(ask_dose, falling=True)  # a prefix cache then knows all but the question


async def probe_streams(session: CheckSession) -> str | ProbeWarning:
    """Codes asked for by more and more requests at once."""
    sizes = [size for size in STREAMS if size <= session.options.parallel]
    series = DoseSeries(session, [f"{size} at once" for size in sizes])
    draw: Callable[[int], list[Question]] = lambda dose: [session.draw("secret") for _ in range(sizes[dose])]  # noqa: E731
    return await series.run(lambda dose: series.ask(dose, *draw(dose), stream=dose % 2 == 1), times=1)


async def probe_temperature(session: CheckSession) -> str | ProbeWarning:
    """Codes that the model is certain of stay right at higher temperatures, with a fixed seed."""
    series = DoseSeries(session, [f"temperature {heat:g}" for heat in TEMPERATURES])
    certain: list[Question] = []

    async def ask_dose(dose: int) -> None:
        if dose and not certain:
            raise ProbeSkipped("no code was found that the model is certain of, by its log-probabilities")
        if dose:
            heat = {"temperature": TEMPERATURES[dose], "seed": 7 + series.of[dose]}
            await series.ask(dose, certain[-1], repeat={"temperature": 0}, **heat)
        for _ in range(0 if dose else CERTAIN_DRAWS):
            question = session.draw("secret")
            answer = await series.ask(0, question, logprobs=True)
            if answer and answer.tokens and sum(answer.logprobs) > -SURE_NATS:
                certain.append(question)
                break

    with skip_if_rejected(NO_LOGPROBS):
        return await series.run(ask_dose)


async def probe_sustained(session: CheckSession) -> str | ProbeWarning:
    """Codes asked for by several requests at once for minutes."""
    if session.options.effort != "thorough":
        raise ProbeSkipped("takes minutes: --effort thorough")
    series = DoseSeries(session, [f"part {part + 1} of {TIME_PARTS}" for part in range(TIME_PARTS)])

    async def ask_dose(dose: int) -> None:
        ends = time.monotonic() + SUSTAINED_S / TIME_PARTS / PER_ROUND
        while time.monotonic() < min(ends, session.ends_at):
            await series.ask(dose, *(session.draw("secret") for _ in range(session.options.parallel)))

    return await series.run(ask_dose, rounds=1)


PROBES: Probes = {
    "length": probe_length,
    "turns": probe_turns,
    "streams": probe_streams,
    "temperature": probe_temperature,
    "sustained": probe_sustained,
}
