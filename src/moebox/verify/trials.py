"""Repeated trials: count failures and attribute them to the server or the model.

A sequential test. Without a failure it ends after the planned number of trials: the rate is then below about 3 / trials
with 95% confidence. After a failure it goes on, up to `patience` times as many trials, until the rate is surely above
the limit (fail) or the budget is spent (warn).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moebox.core import catalogue
from moebox.core.verdict import Attribution, HttpExchange, Score, wilson_score
from moebox.phantom.question import Question
from moebox.phantom.questions import QUESTION_FAMILIES
from moebox.phantom.tool_questions import TOOLS
from moebox.verify.causes import parse_chat
from moebox.verify.client import ExchangeClient
from moebox.verify.completions import ChatAnswer
from moebox.verify.options import VerifyOptions
from moebox.verify.session import (
    REJECTED_STATUSES,
    EndpointUnusable,
    ProbeFailed,
    ProbeSkipped,
    ServerSession,
    error_text,
    raise_for_failure,
    transport_problem,
)
from moebox.verify.statistics import MIN_MODEL_TRIALS, STREAMED, KindName, build_failure, describe_failure, failure_mark

MAX_ATTRIBUTIONS = 6  # failures of one series that are asked again to attribute them; the others follow the majority
FEW_TOOLS = 2  # with the fewest parameters, from which one is drawn: each of its tokens is paid for in many requests
MAX_DRAWS = 200  # questions, before one with other tools is accepted
NOT_OFFERED = (403, 404, 405, 501)  # replies of a server without that API; 403 of some gateways
SURELY_WRONG = 4  # if all of the first so many are wrong, no more are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """Result of one trial; `reason` is "" if it passed."""

    reason: str = ""
    attributed_to: Attribution = "server"


PASSED = TrialOutcome()
Attempt = Callable[[bool], Awaitable[TrialOutcome]]  # one trial, streamed or not
Judge = Callable[[Question, ChatAnswer], str]
Request = dict[str, object]
Headers = dict[str, str]
Parser = Callable[[HttpExchange], ChatAnswer]


def server_failure(reason: str) -> TrialOutcome:
    return TrialOutcome(reason=reason)


def model_failure(reason: str) -> TrialOutcome:
    return TrialOutcome(reason=reason, attributed_to="model")


def pass_if(good: object, reason: str) -> TrialOutcome:
    return PASSED if good else server_failure(reason)


def judge_answer(question: Question, answer: ChatAnswer) -> str:
    """Return what is wrong with the content of the answer, or ""."""
    if answer.leaked_mark:
        return f"{answer.leaked_mark} leaked into the answer"
    if answer.finish_reason == "length":
        return f"not finished after {question.max_tokens} tokens: …{answer.content[-60:]}"
    grade = question.grade(answer.reply)
    return "" if grade.ok else grade.reason


class TrialSeries:
    """The trials of one kind while they run."""

    def __init__(self, session: ServerSession, kind: KindName, planned: int, stream: bool) -> None:
        self.session, self.kind, self.stream = session, kind, stream
        self.planned, self.most = planned, planned * session.options.patience
        if self.most > planned:  # after a failure even one planned trial becomes as many as it takes to judge a model
            self.most = max(self.most, 2 * MIN_MODEL_TRIALS)
        self.of = 0
        self.failures: Counter[Attribution] = Counter()
        self.first: dict[Attribution, str] = {}

    def add(self, outcome: TrialOutcome) -> None:
        self.of += 1
        self.session.failures.add(self.kind, outcome.reason, outcome.attributed_to, stream=self.stream)
        if outcome.reason:
            self.first.setdefault(outcome.attributed_to, outcome.reason)
            self.failures[outcome.attributed_to] += 1

    @property
    def failing_side(self) -> Attribution | None:
        """The side whose failures are surely too frequent."""
        if failure_mark(self.kind, self.failures["server"], self.of) == "fail":
            return "server"
        all_wrong = self.failures["model"] == self.of >= SURELY_WRONG
        enough = all_wrong or self.of >= min(self.planned, 2 * MIN_MODEL_TRIALS)
        model_fails = failure_mark(self.kind, self.failures["model"], self.of, "model") == "fail"
        return "model" if enough and model_fails else None

    @property
    def is_over(self) -> bool:
        """True if no more can be learned, or the budget is spent."""
        only_rare_model_failures = (
            not self.failures["server"] and failure_mark(self.kind, self.failures["model"], self.of, "model") == "pass"
        )
        enough = self.most
        if not self.failures:
            enough = self.planned
        elif only_rare_model_failures:
            enough = max(2 * self.planned, MIN_MODEL_TRIALS)
        return self.of >= enough or self.session.seconds_left <= 0

    @property
    def score(self) -> Score:
        """How many trials passed."""
        return wilson_score(self.of - self.failures.total(), self.of)


class CheckSession(ServerSession):
    """Session that draws questions and runs trials."""

    def __init__(self, client: ExchangeClient, options: VerifyOptions) -> None:
        super().__init__(client, options)
        self.offered_tools: tuple[Mapping[str, Any], ...] = ()  # by the questions of the present check

    def draw(self, family: str, *, thinking: bool = False, **size: Any) -> Question:
        """Draw a question. Those of one check offer the same tools in the same order, so that a prefix cache helps."""
        rng = self.rng
        question = QUESTION_FAMILIES[family].draw(rng, thinking=thinking, **size)
        if not question.tools:
            return question
        if not self.offered_tools:
            # One tool for a city, several of which may be asked about at once, and one that takes a number
            city = rng.choice([tool for tool in TOOLS if set(tool.params) == {"city"}])
            numbers = [tool for tool in TOOLS if any(kind == "integer" for kind, _ in tool.params.values())]
            number = rng.choice(sorted(numbers, key=lambda tool: len(tool.params))[:FEW_TOOLS])
            self.offered_tools = tuple(tool.schema() for tool in rng.sample([city, number], 2))
        for _ in range(MAX_DRAWS):
            if all(tool in self.offered_tools for tool in question.tools):
                return replace(question, tools=self.offered_tools)
            question = QUESTION_FAMILIES[family].draw(rng, thinking=thinking, **size)
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
            series.add(await run_attempt(attempt, stream))
            if side := series.failing_side:
                failure = build_failure(kind + STREAMED * stream, series.failures[side], series.of, attributed_to=side)
                raise ProbeFailed(f"{series.first[side]}; {describe_failure(failure)}", score=series.score)
        return series.score

    async def run_both_modes(
        self, kind: KindName, attempt: Attempt, share: float | None = None, least: int = 2
    ) -> Score:
        await self.run_trials(kind, attempt, share, least)
        return await self.run_trials(kind, attempt, share, least, stream=True)

    async def send_request(
        self, path: str, body: Request, parse: Parser, *, headers: Headers | None = None, allow_marks: bool = False
    ) -> ChatAnswer:
        """Send one request of another API than chat completions, and count the violations of the reply.

        Raise ProbeSkipped if the API is not served, ProbeFailed if the reply cannot be parsed. `allow_marks`: the
        question may make a model write template marks.
        """
        url, stream = f"{self.endpoint.base_url}/{path}", bool(body["stream"])
        exchange = self.keep_evidence(await self.client.post(url, body, headers=headers))
        if exchange.status in (400, 422) and "chat_template_kwargs" in body:
            without = {key: value for key, value in body.items() if key != "chat_template_kwargs"}
            exchange = self.keep_evidence(await self.client.post(url, without, headers=headers))
        if exchange.status in NOT_OFFERED:
            raise ProbeSkipped(f"the server does not offer /v1/{path}")
        self.skip_if_context_too_short(exchange)
        plain = dict(body)
        if exchange.status in REJECTED_STATUSES and plain.pop("tools", None):
            plain.pop("tool_choice", None)
            if self.keep_evidence(await self.client.post(url, plain, headers=headers)).status == 200:
                check = {"messages": "anthropic"}.get(path, path)
                text = f"the server does not accept tools at /v1/{path}: HTTP {exchange.status}{error_text(exchange)}"
                raise ProbeSkipped(text, check)
        self.failures.add("transport", transport_problem(exchange), stream=stream)
        raise_for_failure(exchange)
        answer = parse(exchange)
        self.count_violations(answer.violations, stream=stream)
        leaked = "" if allow_marks else answer.leaked_mark
        self.failures.expect("template-leak", not leaked, f"{leaked} in the answer", stream=stream)
        return answer

    async def require_answer(self, reason: str) -> None:
        """Raise ProbeFailed with `reason` if an ordinary question gets an empty answer."""
        if (await self.ask_question(self.draw("secret"))).is_empty:
            raise ProbeFailed(reason)


# A probe returns nothing, a remark, a warning or a score, and raises ProbeFailed or ProbeSkipped.
ProbeFunction = Callable[[CheckSession], Awaitable[str | Score | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. If all probes of one set in `stop_if_failed` fail, every later check is meaningless."""

    name: str
    probes: Mapping[str, ProbeFunction]
    stop_if_failed: tuple[frozenset[str], ...] = ()

    @property
    def request_estimate(self) -> int:
        """Requests at normal effort, about, for the time left."""
        return int(catalogue.load_table("check_requests")["requests"][self.name])


class QuestionAttempt:
    """Asks questions of one family, judges each answer, and attributes each failure to the server or the model."""

    def __init__(
        self,
        session: CheckSession,
        draw: str | Callable[[], Question],
        *,
        judge: Judge = judge_answer,
        thinking: bool = False,
        settings: Callable[[Question], dict[str, object]] = lambda question: {},
        send: Callable[[Question, bool], Awaitable[Any]] | None = None,
        **more: Any,
    ) -> None:
        self.session, self.judge, self.more = session, judge, more
        self.send = send  # by another API than chat completions
        if isinstance(draw, str):
            self.draw_question: Callable[[], Question] = partial(session.draw, draw, thinking=thinking)
        else:
            self.draw_question = draw
        self.settings = settings  # of the request, by the question
        self.attributions: dict[bool, list[Attribution]] = {False: [], True: []}

    async def __call__(self, stream: bool = False) -> TrialOutcome:
        question = self.draw_question()
        reason = await self._ask_and_judge(question, stream)
        if not reason:
            return PASSED
        wrong = self.session.exchanges[-1]
        outcome = TrialOutcome(reason=reason, attributed_to=await self._attribute(question, stream))
        if not self.send:
            self.session.wrong_exchange = wrong, lambda exchange: self.judge(question, parse_chat(exchange))
        return outcome

    async def _ask_and_judge(self, question: Question, stream: bool) -> str:
        if self.send:
            return self.judge(question, await self.send(question, stream))
        settings = {**self.more, **self.settings(question)}
        return self.judge(question, await self.session.ask_question(question, stream=stream, **settings))

    async def _attribute(self, question: Question, stream: bool) -> Attribution:
        """A model gives the same answer again at temperature 0, whole and streamed; a broken server does not.

        Nor does a model err over one API alone. After MAX_ATTRIBUTIONS questions the majority decides.
        """
        known = self.attributions[stream]
        if len(known) >= MAX_ATTRIBUTIONS:
            return "server" if known.count("server") >= known.count("model") else "model"
        attribution: Attribution = "model"
        for mode in (stream, not stream):
            try:
                again = await self._ask_and_judge(question, mode)
            except EndpointUnusable:
                raise
            except ProbeFailed:
                again = ""  # a failure of the server, which is counted
            if not again:
                attribution = "server"
                break
        if self.send and attribution == "model":
            chat = await self.session.ask_question(question)
            attribution = "server" if question.grade(chat.reply).ok else "model"
        known.append(attribution)
        return attribution


async def run_attempt(attempt: Attempt, stream: bool = False) -> TrialOutcome:
    """Run one trial; a reply that cannot be read is a failure of the server."""
    try:
        return await attempt(stream)
    except EndpointUnusable:
        raise
    except ProbeFailed as problem:
        return server_failure(str(problem))


async def require_capability(attempt: Attempt, what: str) -> None:
    """Raise ProbeSkipped unless the model can do this at all: its limits prove nothing about the server."""
    outcomes = [await run_attempt(attempt) for _ in range(2)]
    failed = [outcome.reason for outcome in outcomes if outcome.reason]
    if failed:
        raise ProbeSkipped(f"model, not server: it cannot {what} ({failed[0]})")
