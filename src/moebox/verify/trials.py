"""Repeated trials: count failures and attribute them to the server or the model.

A sequential test. Without a failure it ends after the planned number of trials: the rate is then below about 3 / trials
with 95% confidence. After a failure it goes on, up to `patience` times as many trials, until the rate is surely above
the limit (fail) or the budget is spent (warn).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from moebox.core.verdict import Attribution, Mark, Score, wilson_score
from moebox.phantom.question import Question
from moebox.phantom.questions import draw_question
from moebox.phantom.tool_questions import TOOLS
from moebox.verify.client import ExchangeClient
from moebox.verify.completions import ChatAnswer, parse_chat
from moebox.verify.options import VerifyOptions
from moebox.verify.session import ProbeFailed, ServerSession
from moebox.verify.statistics import MIN_MODEL_TRIALS, STREAMED, KindName, ModelFailure, build_failure, describe_failure

MAX_ATTRIBUTIONS = 6  # failures of one series that are asked again to attribute them; the others follow the majority
FEW_TOOLS = 2  # with the fewest parameters, from which one is drawn: each of its tokens is paid for in many requests
MAX_DRAWS = 200  # questions, before one with other tools is accepted
SURELY_WRONG = 4  # if all of the first so many are wrong, no more are needed

Attempt = Callable[[bool], Awaitable[str]]  # one trial, streamed or not: why it failed (or a ModelFailure), or ""
Judge = Callable[[Question, ChatAnswer], str]
Request = dict[str, object]


def judge_answer(question: Question, answer: ChatAnswer) -> str:
    """Return what is wrong with the content of the answer, or ""."""
    if answer.leaked_mark:
        return f"{answer.leaked_mark} leaked into the answer"
    if answer.finish_reason == "length":
        return f"not finished after {question.max_tokens} tokens: …{answer.content[-60:]}"
    return question.find_fault(answer)


class TrialSeries:
    """The trials of one kind while they run."""

    def __init__(self, session: ServerSession, kind: KindName, planned: int, stream: bool) -> None:
        self.session, self.kind, self.stream = session, kind, stream
        self.planned, self.most = planned, planned * session.options.patience
        if self.most > planned:  # after a failure even one planned trial becomes as many as it takes to judge a model
            self.most = max(self.most, 2 * MIN_MODEL_TRIALS)
        self.of = 0
        self.failures: dict[Attribution, list[str]] = {"server": [], "model": []}

    def add(self, reason: str) -> None:
        self.of += 1
        self.session.failures.add(self.kind, reason, stream=self.stream)
        if reason:
            self.failures["model" if isinstance(reason, ModelFailure) else "server"].append(reason)

    def judge_side(self, side: Attribution) -> Mark:
        return build_failure(self.kind, len(self.failures[side]), self.of, attributed_to=side).verdict

    @property
    def failing_side(self) -> Attribution | None:
        """The side whose failures are surely too frequent."""
        if self.judge_side("server") == "fail":
            return "server"
        all_wrong = len(self.failures["model"]) == self.of >= SURELY_WRONG
        enough = all_wrong or self.of >= min(self.planned, 2 * MIN_MODEL_TRIALS)
        return "model" if enough and self.judge_side("model") == "fail" else None

    @property
    def is_over(self) -> bool:
        """True if no more can be learned, or the budget is spent."""
        enough = self.most
        if not any(self.failures.values()):
            enough = self.planned
        elif not self.failures["server"] and self.judge_side("model") == "pass":  # rare failures of the model only
            enough = max(2 * self.planned, MIN_MODEL_TRIALS)
        return self.of >= enough or self.session.seconds_left <= 0

    @property
    def score(self) -> Score:
        return wilson_score(self.of - sum(map(len, self.failures.values())), self.of)


class CheckSession(ServerSession):
    """Session that draws questions and runs trials."""

    def __init__(self, client: ExchangeClient, options: VerifyOptions) -> None:
        super().__init__(client, options)
        self.offered_tools: tuple[Mapping[str, Any], ...] = ()  # by the questions of the present check

    def draw(self, family: str, *, thinking: bool = False, **size: Any) -> Question:
        """Draw a question. Those of one check offer the same tools in the same order, so that a prefix cache helps."""
        rng = self.rng
        for _ in range(MAX_DRAWS):
            question = draw_question(family, rng, thinking=thinking, **size)
            if question.tools and not self.offered_tools:
                # One tool for a city, several of which may be asked about at once, and one that takes a number
                city = rng.choice([tool for tool in TOOLS if set(tool.params) == {"city"}])
                numbers = [tool for tool in TOOLS if any(each["type"] == "integer" for each in tool.params.values())]
                number = rng.choice(sorted(numbers, key=lambda tool: len(tool.params))[:FEW_TOOLS])
                self.offered_tools = tuple(tool.schema() for tool in rng.sample([city, number], 2))
            if all(tool in self.offered_tools for tool in question.tools):
                return replace(question, tools=self.offered_tools) if question.tools else question
        return question

    async def run_trials(
        self, kind: KindName, attempt: Attempt, share: float | None = None, least: int = 2, *, stream: bool = False
    ) -> Score:
        """Run all trials, or `share` of them, until it is clear how often `kind` fails.

        Raise ProbeFailed if that is surely too often. A doubtful rate stays in the counts and turns the probe into a
        warning.
        """
        planned = self.options.trials if share is None else self.options.trial_share(share, least)
        series = TrialSeries(self, kind, planned, stream)
        while not series.is_over:
            self.trial_progress = (series.of + 1, series.planned if series.of < series.planned else series.most)
            try:
                series.add(await attempt(stream))
            except ProbeFailed as problem:  # a reply that cannot be read is a failure of the server
                series.add(str(problem))
            if side := series.failing_side:
                reasons = series.failures[side]
                failure = build_failure(kind + STREAMED * stream, len(reasons), series.of, attributed_to=side)
                raise ProbeFailed(f"{reasons[0]}; {describe_failure(failure)}", score=series.score)
        return series.score

    async def run_both_modes(
        self, kind: KindName, attempt: Attempt, share: float | None = None, least: int = 2
    ) -> Score:
        await self.run_trials(kind, attempt, share, least)
        return await self.run_trials(kind, attempt, share, least, stream=True)

    async def require_answer(self, reason: str) -> None:
        """Raise ProbeFailed with `reason` if an ordinary question gets an empty answer."""
        if (await self.ask_question(self.draw("secret"))).is_empty:
            raise ProbeFailed(reason)


# A probe returns nothing, a remark, a warning or a score, and raises ProbeFailed or ProbeSkipped.
ProbeFunction = Callable[[CheckSession], Awaitable[str | Score | None]]
Probes = Mapping[str, ProbeFunction]  # of a check, by name
QuestionSender = Callable[[CheckSession, Question, bool], Awaitable[ChatAnswer]]  # whole or streamed


@dataclass
class QuestionAttempt:
    """Asks drawn questions, judges each answer, and attributes each failure to the server or the model."""

    session: CheckSession
    draw: str | Callable[[], Question]  # a family, or a function that draws
    judge: Judge = judge_answer
    settings: Callable[[Question], Mapping[str, Any]] = lambda question: {}
    send: QuestionSender | None = None  # by another API than chat completions
    attributions: Mapping[bool, list[bool]] = field(default_factory=lambda: {False: [], True: []})  # True: the server's

    async def __call__(self, stream: bool = False) -> str:
        question = self.session.draw(self.draw) if isinstance(self.draw, str) else self.draw()
        reason = await self._ask_and_judge(question, stream)
        if not reason:
            return ""
        wrong = self.session.exchanges[-1]
        is_servers = await self._is_servers(question, stream)
        if not self.send:
            self.session.wrong_exchange = wrong, lambda exchange: self.judge(question, parse_chat(exchange))
        return reason if is_servers else ModelFailure(reason)

    async def _ask_and_judge(self, question: Question, stream: bool) -> str:
        if self.send:
            return self.judge(question, await self.send(self.session, question, stream))
        return self.judge(question, await self.session.ask_question(question, stream=stream, **self.settings(question)))

    async def _is_servers(self, question: Question, stream: bool) -> bool:
        """A model gives the same answer again at temperature 0, whole and streamed; a broken server does not.

        Nor does a model err over one API alone. After MAX_ATTRIBUTIONS questions the majority decides.
        """
        known = self.attributions[stream]
        if len(known) >= MAX_ATTRIBUTIONS:
            return 2 * sum(known) >= len(known)
        is_servers = False
        for mode in (stream, not stream):
            try:
                is_servers = is_servers or not await self._ask_and_judge(question, mode)
            except ProbeFailed:
                is_servers = True  # that failure is counted too
        if self.send and not is_servers:
            is_servers = not question.find_fault(await self.session.ask_question(question))
        known.append(is_servers)
        return is_servers


async def probe_family(
    session: CheckSession,
    *,
    kind: KindName = "answer",
    family: str,
    judge: Judge = judge_answer,
    send: QuestionSender | None = None,
    both_modes: bool = False,
    **how: Any,
) -> Score:
    """Questions of one family are answered right; see CheckSession.run_trials."""
    run = session.run_both_modes if both_modes else session.run_trials
    return await run(kind, QuestionAttempt(session, family, judge, send=send), **how)


async def probe_both_modes(
    session: CheckSession, *, attempt: Callable[[CheckSession, bool], Awaitable[str]], kind: KindName, **how: Any
) -> Score:
    """Trials of one kind, whole and streamed; see CheckSession.run_trials."""
    return await session.run_both_modes(kind, partial(attempt, session), **how)
