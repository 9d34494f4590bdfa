"""Trials: asking again and again, counting every slip, and finding out whose it was.

A sequential test. Without a slip it ends after the planned number of trials: the rate is then below about 3 / trials
with 95% confidence. A slip buys more trials, `patience` times as many at most, until the rate is surely above the limit
(red) or the budget is spent (yellow).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moebox.core.verdict import Attribution, Mark, Score, wilson_score
from moebox.phantom.tasks import FAMILIES, Question
from moebox.phantom.toolbox import TOOLS, ExampleTool
from moebox.verify.answer import ChatAnswer
from moebox.verify.ask import CheckSession, EndpointUnusable, ProbeFailed, ProbeSkipped
from moebox.verify.kinds import MIN_MODEL_TRIALS, STREAMED, build_failure, describe_failure, failure_mark

MAX_ATTRIBUTIONS = 6  # slips of one series that are asked again to learn whose they are; the others are like them
ON_OFFER = 3  # tools that the tasks of a probe share
DRAWS = 200  # tasks, before one with other tools is taken
SURE_WRONG = 4  # all of the first so many wrong: no more are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What came of one attempt: "" when it went well."""

    reason: str = ""
    attributed_to: Attribution = "server"


PASSED = TrialOutcome()
Attempt = Callable[[], Awaitable[TrialOutcome]]


def server_failure(reason: str) -> TrialOutcome:
    """A slip of the server's, or no slip where `why` is empty."""
    return TrialOutcome(reason=reason)


async def require_answer(session: CheckSession, reason: str) -> None:
    """Failed, `gone` being why, where an ordinary question gets an empty answer."""
    if (await session.ask_question(draw_question(session, "secret"))).is_empty:
        raise ProbeFailed(reason)


def pass_if(good: object, reason: str) -> TrialOutcome:
    """No slip where it is `good`, else one of the server's."""
    return PASSED if good else server_failure(reason)


def draw_question(session: CheckSession, family: str, *, thinking: bool = False, **size: Any) -> Question:
    """A fresh task. Those of one probe offer the same tools in the same order, as agents do: a prefix cache helps."""
    task = FAMILIES[family].draw(session.rng, thinking=thinking, **size)
    if not task.tools:
        return task
    session.offered_tools = session.offered_tools or _offer(session)
    for _ in range(DRAWS):
        if all(tool in session.offered_tools for tool in task.tools):
            return replace(task, tools=session.offered_tools)
        task = FAMILIES[family].draw(session.rng, thinking=thinking, **size)
    return task


def _offer(session: CheckSession) -> tuple[Mapping[str, Any], ...]:
    """Some tools: one for a city, of which several may be asked about at once, and one that takes a number."""
    city = session.rng.choice([tool for tool in TOOLS if set(tool.params) == {"city"}])
    number = session.rng.choice([tool for tool in TOOLS if _takes_number(tool)])
    others = [tool for tool in TOOLS if tool not in (city, number)]
    offered = [city, number, *session.rng.sample(others, ON_OFFER - 2)]
    return tuple(tool.schema() for tool in session.rng.sample(offered, ON_OFFER))


def _takes_number(tool: ExampleTool) -> bool:
    return any(kind == "integer" for kind, _ in tool.params.values())


def judge_answer(task: Question, answer: ChatAnswer) -> str:
    """ "" or what is wrong with the answer's substance."""
    if answer.leaked_mark:
        return f"{answer.leaked_mark} leaked into the answer"
    if answer.finish_reason == "length":
        return f"not finished after {task.max_tokens} tokens: …{answer.content[-60:]}"
    grade = task.grade(answer.reply)
    return "" if grade.ok else grade.reason


Judge = Callable[[Question, ChatAnswer], str]


class QuestionAttempt:
    """Asks tasks of one family one after the other, each judged, each slip traced to the server or the model."""

    def __init__(
        self,
        session: CheckSession,
        draw: Callable[[], Question],
        *,
        judge: Judge = judge_answer,
        stream: bool = False,
        settings: Callable[[Question], dict[str, object]] = lambda task: {},
        **more: Any,
    ) -> None:
        self.session, self.draw, self.judge, self.stream, self.more = session, draw, judge, stream, more
        self.settings = settings  # of the request, which hang on the task
        self.attributions: list[Attribution] = []

    async def __call__(self) -> TrialOutcome:
        """One attempt."""
        task = self.draw()
        why = await self._wrong(task, self.stream)
        return TrialOutcome(reason=why, attributed_to=await self._attribute(task)) if why else PASSED

    async def _wrong(self, task: Question, stream: bool) -> str:
        return self.judge(
            task, await self.session.ask_question(task, stream=stream, **self.more, **self.settings(task))
        )

    async def _attribute(self, task: Question) -> Attribution:
        """A model says the same thing again at temperature 0, whole and streamed; a broken server does not."""
        if len(self.attributions) >= MAX_ATTRIBUTIONS:
            return max(set(self.attributions), key=self.attributions.count)
        whose: Attribution = "model"
        for stream in (self.stream, not self.stream):
            try:
                again = await self._wrong(task, stream)
            except EndpointUnusable:
                raise
            except ProbeFailed:
                again = ""  # that is the server's, and is counted
            if not again:
                whose = "server"
                break
        self.attributions.append(whose)
        return whose


def family_attempt(
    session: CheckSession, family: str, *, thinking: bool = False, stream: bool = False, **more: Any
) -> QuestionAttempt:
    """Attempts that draw a task of `family`, ask it and judge it."""
    return QuestionAttempt(session, lambda: draw_question(session, family, thinking=thinking), stream=stream, **more)


class TrialSeries:
    """The trials of one kind, while they run."""

    def __init__(self, session: CheckSession, kind: str, planned: int) -> None:
        self.session, self.kind = session, kind
        self.planned, self.most = planned, planned * session.options.patience
        self.of = 0
        self.wrong: Counter[Attribution] = Counter()
        self.first: dict[Attribution, str] = {}

    def add(self, trial: TrialOutcome) -> None:
        """Count it."""
        self.of += 1
        self.session.failures.add(self.kind, trial.reason, trial.attributed_to)
        if trial.reason:
            self.first.setdefault(trial.attributed_to, trial.reason)
            self.wrong[trial.attributed_to] += 1

    @property
    def failing_side(self) -> Attribution | None:
        """Whose fault is surely too frequent."""
        if failure_mark(self.kind, self.wrong["server"], self.of) == "fail":
            return "server"
        all_wrong = self.wrong["model"] == self.of >= SURE_WRONG
        enough = all_wrong or self.of >= min(self.planned, 2 * MIN_MODEL_TRIALS)
        return "model" if enough and self._model_mark == "fail" else None

    @property
    def _model_mark(self) -> Mark:
        """What the model's own slips come to."""
        return failure_mark(self.kind, self.wrong["model"], self.of, "model")

    @property
    def is_over(self) -> bool:
        """Nothing more is to be learnt, or the budget is spent."""
        clean = not self.wrong
        lone = not self.wrong["server"] and self._model_mark == "pass"
        enough = self.planned if clean else 2 * self.planned if lone else self.most
        return self.of >= enough or self.session.seconds_left <= 0

    @property
    def score(self) -> Score:
        """How many went well."""
        return wilson_score(self.of - self.wrong.total(), self.of)


async def run_trials(session: CheckSession, kind: str, attempt: Attempt, planned: int | None = None) -> Score:
    """Attempts until it is clear how often `kind` goes wrong. Failed where that is surely too often.

    What stays in doubt is not raised: it stands in the tally and turns the probe yellow.
    """
    series = TrialSeries(session, kind, planned or session.options.trials)
    while not series.is_over:
        session.trial_progress = (series.of + 1, series.planned if series.of < series.planned else series.most)
        series.add(await run_attempt(attempt))
        if whose := series.failing_side:
            told = describe_failure(build_failure(kind, series.wrong[whose], series.of, whose=whose))
            raise ProbeFailed(f"{series.first[whose]}; {told}", score=series.score)
    return series.score


async def run_attempt(attempt: Attempt) -> TrialOutcome:
    """An attempt; a reply that cannot be read is a slip of the server's."""
    try:
        return await attempt()
    except EndpointUnusable:
        raise
    except ProbeFailed as problem:
        return TrialOutcome(reason=str(problem))


async def run_both_modes(
    session: CheckSession, kind: str, make: Callable[..., Attempt], planned: int | None = None
) -> Score:
    """The same trials whole and streamed; `make` takes `stream`."""
    await run_trials(session, kind, make(stream=False), planned)
    return await run_trials(session, kind + STREAMED, make(stream=True), planned)


async def require_capability(session: CheckSession, attempt: Attempt, what: str, times: int = 2) -> None:
    """Skipped unless the model can do this at all: what it cannot do proves nothing about its server."""
    found = [await run_attempt(attempt) for _ in range(times)]
    failed = [trial.reason for trial in found if trial.reason]
    if failed:
        raise ProbeSkipped(f"model, not server: it cannot {what} ({failed[0]})")
