"""Trials: asking again and again, counting every slip, and finding out whose it was.

A sequential test. Without a slip it ends after the planned number of trials: the rate is then below about 3 / trials
with 95% confidence. A slip buys more trials, `patience` times as many at most, until the rate is surely above the limit
(red) or the budget is spent (yellow).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from moebox.core.verdict import Mark, Score, Whose, wilson
from moebox.phantom.tasks import FAMILIES, Task
from moebox.phantom.toolbox import TOOLS, Tool
from moebox.verify.answer import Answer
from moebox.verify.ask import Asker, Failed, Skipped, Unusable
from moebox.verify.kinds import MODEL_TRIALS, STREAMED, in_words, mark_of, slip

BLAMES = 6  # slips of one series that are asked again to learn whose they are; the others are like them
ON_OFFER = 3  # tools that the tasks of a probe share
DRAWS = 200  # tasks, before one with other tools is taken
SURE_WRONG = 4  # all of the first so many wrong: no more are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one attempt: "" when it went well."""

    why: str = ""
    whose: Whose = "server"


GOOD = Trial()
Attempt = Callable[[], Awaitable[Trial]]


def wrong(why: str) -> Trial:
    """A slip of the server's, or no slip where `why` is empty."""
    return Trial(why=why)


async def need_answer(ask: Asker, gone: str) -> None:
    """Failed, `gone` being why, where an ordinary question gets an empty answer."""
    if (await ask.ask(draw(ask, "secret"))).is_empty:
        raise Failed(gone)


def right_if(good: object, why: str) -> Trial:
    """No slip where it is `good`, else one of the server's."""
    return GOOD if good else wrong(why)


def draw(ask: Asker, family: str, *, thinking: bool = False, **size: Any) -> Task:
    """A fresh task. Those of one probe offer the same tools in the same order, as agents do: a prefix cache helps."""
    task = FAMILIES[family].draw(ask.rng, thinking=thinking, **size)
    if not task.tools:
        return task
    ask.tools = ask.tools or _offer(ask)
    for _ in range(DRAWS):
        if all(tool in ask.tools for tool in task.tools):
            return replace(task, tools=ask.tools)
        task = FAMILIES[family].draw(ask.rng, thinking=thinking, **size)
    return task


def _offer(ask: Asker) -> tuple[Mapping[str, Any], ...]:
    """Some tools: one for a city, of which several may be asked about at once, and one that takes a number."""
    city = ask.rng.choice([tool for tool in TOOLS if set(tool.params) == {"city"}])
    number = ask.rng.choice([tool for tool in TOOLS if _takes_number(tool)])
    others = [tool for tool in TOOLS if tool not in (city, number)]
    offered = [city, number, *ask.rng.sample(others, ON_OFFER - 2)]
    return tuple(tool.schema() for tool in ask.rng.sample(offered, ON_OFFER))


def _takes_number(tool: Tool) -> bool:
    return any(kind == "integer" for kind, _ in tool.params.values())


def judge(task: Task, answer: Answer) -> str:
    """ "" or what is wrong with the answer's substance."""
    if answer.leak:
        return f"{answer.leak} leaked into the answer"
    if answer.finish == "length":
        return f"not finished after {task.max_tokens} tokens: …{answer.content[-60:]}"
    grade = task.grade(answer.reply)
    return "" if grade.ok else grade.why


Judge = Callable[[Task, Answer], str]


class Questions:
    """Asks tasks of one family one after the other, each judged, each slip traced to the server or the model."""

    def __init__(
        self,
        ask: Asker,
        draw: Callable[[], Task],
        *,
        judge: Judge = judge,
        stream: bool = False,
        settings: Callable[[Task], dict[str, object]] = lambda task: {},
        **more: Any,
    ) -> None:
        self.ask, self.draw, self.judge, self.stream, self.more = ask, draw, judge, stream, more
        self.settings = settings  # of the request, which hang on the task
        self.blamed: list[Whose] = []

    async def __call__(self) -> Trial:
        """One attempt."""
        task = self.draw()
        why = await self._wrong(task, self.stream)
        return Trial(why=why, whose=await self._whose(task)) if why else GOOD

    async def _wrong(self, task: Task, stream: bool) -> str:
        return self.judge(task, await self.ask.ask(task, stream=stream, **self.more, **self.settings(task)))

    async def _whose(self, task: Task) -> Whose:
        """A model says the same thing again at temperature 0, whole and streamed; a broken server does not."""
        if len(self.blamed) >= BLAMES:
            return max(set(self.blamed), key=self.blamed.count)
        whose: Whose = "model"
        for stream in (self.stream, not self.stream):
            try:
                again = await self._wrong(task, stream)
            except Unusable:
                raise
            except Failed:
                again = ""  # that is the server's, and is counted
            if not again:
                whose = "server"
                break
        self.blamed.append(whose)
        return whose


def asking(ask: Asker, family: str, *, thinking: bool = False, stream: bool = False, **more: Any) -> Questions:
    """Attempts that draw a task of `family`, ask it and judge it."""
    return Questions(ask, lambda: draw(ask, family, thinking=thinking), stream=stream, **more)


class Series:
    """The trials of one kind, while they run."""

    def __init__(self, ask: Asker, kind: str, planned: int) -> None:
        self.ask, self.kind = ask, kind
        self.planned, self.most = planned, planned * ask.options.patience
        self.of = 0
        self.wrong: Counter[Whose] = Counter()
        self.first: dict[Whose, str] = {}

    def add(self, trial: Trial) -> None:
        """Count it."""
        self.of += 1
        self.ask.tally.add(self.kind, trial.why, trial.whose)
        if trial.why:
            self.first.setdefault(trial.whose, trial.why)
            self.wrong[trial.whose] += 1

    @property
    def red(self) -> Whose | None:
        """Whose fault is surely too frequent."""
        if mark_of(self.kind, self.wrong["server"], self.of) == "fail":
            return "server"
        all_wrong = self.wrong["model"] == self.of >= SURE_WRONG
        enough = all_wrong or self.of >= min(self.planned, 2 * MODEL_TRIALS)
        return "model" if enough and self._model_mark == "fail" else None

    @property
    def _model_mark(self) -> Mark:
        """What the model's own slips come to."""
        return mark_of(self.kind, self.wrong["model"], self.of, "model")

    @property
    def over(self) -> bool:
        """Nothing more is to be learnt, or the budget is spent."""
        clean = not self.wrong
        lone = not self.wrong["server"] and self._model_mark == "pass"
        enough = self.planned if clean else 2 * self.planned if lone else self.most
        return self.of >= enough or self.ask.left_s <= 0

    @property
    def score(self) -> Score:
        """How many went well."""
        return wilson(self.of - self.wrong.total(), self.of)


async def trials(ask: Asker, kind: str, attempt: Attempt, planned: int | None = None) -> Score:
    """Attempts until it is clear how often `kind` goes wrong. Failed where that is surely too often.

    What stays in doubt is not raised: it stands in the tally and turns the probe yellow.
    """
    series = Series(ask, kind, planned or ask.options.trials)
    while not series.over:
        ask.trial = (series.of + 1, series.planned if series.of < series.planned else series.most)
        series.add(await tried(attempt))
        if whose := series.red:
            told = in_words(slip(kind, series.wrong[whose], series.of, whose=whose))
            raise Failed(f"{series.first[whose]}; {told}", score=series.score)
    return series.score


async def tried(attempt: Attempt) -> Trial:
    """An attempt; a reply that cannot be read is a slip of the server's."""
    try:
        return await attempt()
    except Unusable:
        raise
    except Failed as problem:
        return Trial(why=str(problem))


async def both(ask: Asker, kind: str, make: Callable[..., Attempt], planned: int | None = None) -> Score:
    """The same trials whole and streamed; `make` takes `stream`."""
    await trials(ask, kind, make(stream=False), planned)
    return await trials(ask, kind + STREAMED, make(stream=True), planned)


async def able(ask: Asker, attempt: Attempt, what: str, times: int = 2) -> None:
    """Skipped unless the model can do this at all: what it cannot do proves nothing about its server."""
    found = [await tried(attempt) for _ in range(times)]
    failed = [trial.why for trial in found if trial.why]
    if failed:
        raise Skipped(f"model, not server: it cannot {what} ({failed[0]})")
