"""The same questions to two servers at temperature 0: what they say, and how far it is the same."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moebox.core.endpoint import Endpoint
from moebox.core.verdict import Score, wilson_score
from moebox.errors import ExternalError
from moebox.flows.pace import alternate_order
from moebox.phantom.questions import QUESTION_FAMILIES as FAMILIES
from moebox.phantom.questions import Question
from moebox.stream import run_to_end
from moebox.verify import tokens
from moebox.verify.checks.alive import probe_models
from moebox.verify.checks.json_modes import schema_violation
from moebox.verify.checks.tools import call_problem
from moebox.verify.client import ExchangeClient
from moebox.verify.completions import ChatAnswer
from moebox.verify.options import VerifyOptions
from moebox.verify.session import EndpointUnusable, ProbeFailed
from moebox.verify.trials import CheckSession

# What is asked: open questions diverge first, closed ones show whether it matters.
FAMILY_MIX = ("plain", "story", "sums", "count", "copy", "code", "json_schema", "tool_call", "tool_parallel", "memory")
QUESTIONS = 30
SIGNIFICANCE = 0.05  # how often chance alone may be taken for a loss
CLEAR_SHARE = 0.2  # of a kind's questions: losing so many of few is no chance either


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """One answer."""

    family: str
    question: str
    text: str  # content, and calls in words
    right: bool
    valid: bool = True  # JSON or tool arguments fit their schema
    pieces: tuple[int, ...] = ()  # the text's tokens, where the server tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two answers to one question part."""

    family: str
    question: str
    at: int  # which token, or word where the servers do not tokenize
    unit: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """What B lost and gained of one kind of good answer, question by question."""

    what: str
    of: int  # questions of that kind
    lost: int  # good on A, not on B
    gained: int

    @property
    def is_worse(self) -> bool:
        """B lost more than chance would take: by the sign test, or a good part of the few there are."""
        clearly = self.lost - self.gained >= max(2, self.of * CLEAR_SHARE)
        return clearly or sign_test(self.lost, self.gained) <= SIGNIFICANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Two servers' answers, side by side."""

    asked: int
    same: int
    right_a: Score
    right_b: Score
    json_a: Score
    json_b: Score
    tools_a: Score
    tools_b: Score
    changes: tuple[AnswerChange, ...] = ()
    divergences: tuple[Divergence, ...] = ()


def collect_answers(endpoint: Endpoint, *, questions: int = QUESTIONS, seed: int = 0) -> list[ServerAnswer]:
    """Ask a fixed set of questions; the same seed asks the same. Outside-of-order answers count as wrong."""
    return run_to_end(_collect(endpoint, draw_tasks(questions, seed)))


def collect_from_both(
    a: Endpoint, b: Endpoint, *, questions: int, seed: int
) -> tuple[list[ServerAnswer], list[ServerAnswer]]:
    """Ask two servers the same, question by question and in turn: A B, B A, A B …"""
    return run_to_end(_collect_both(a, b, draw_tasks(questions, seed)))


def draw_tasks(questions: int, seed: int) -> list[Question]:
    """The questions of a seed."""
    rng = random.Random(seed)
    return [FAMILIES[FAMILY_MIX[index % len(FAMILY_MIX)]].draw(rng, thinking=False) for index in range(questions)]


async def _collect(endpoint: Endpoint, tasks: Sequence[Question]) -> list[ServerAnswer]:
    async with ExchangeClient(endpoint) as client:
        ask = CheckSession(client, VerifyOptions())
        with _broken_off(endpoint):
            await probe_models(ask)
            return [await _answer(ask, task) for task in tasks]


async def _collect_both(
    a: Endpoint, b: Endpoint, tasks: Sequence[Question]
) -> tuple[list[ServerAnswer], list[ServerAnswer]]:
    said: tuple[list[ServerAnswer], list[ServerAnswer]] = ([], [])
    async with ExchangeClient(a) as client_a, ExchangeClient(b) as client_b:
        asks = (CheckSession(client_a, VerifyOptions()), CheckSession(client_b, VerifyOptions()))
        for endpoint, ask in zip((a, b), asks, strict=True):
            with _broken_off(endpoint):
                await probe_models(ask)
        for number, task in enumerate(tasks):
            for side in alternate_order(number, (0, 1)):
                with _broken_off((a, b)[side]):
                    said[side].append(await _answer(asks[side], task))
    return said


@contextlib.contextmanager
def _broken_off(endpoint: Endpoint) -> Iterator[None]:
    """Outside where nobody is there any more: no answer is not a wrong answer."""
    try:
        yield
    except ProbeFailed as problem:
        raise ExternalError(f"{endpoint.base_url} broke off while it was asked: {problem}") from None


async def _answer(ask: CheckSession, task: Question) -> ServerAnswer:
    question = str(task.messages[-1]["content"])[-200:]
    try:
        answer = await ask.ask_question(task)
    except EndpointUnusable:
        raise
    except ProbeFailed as problem:
        return ServerAnswer(family=task.family, question=question, text=f"({problem})", right=False, valid=False)
    calls = [f"{call.name}({call.arguments})" for call in answer.calls]
    text = "\n".join([answer.content, *calls]).strip()
    pieces = tuple(await tokens.tokenize_text(ask, text)) if text else ()
    right = task.grade(answer.reply).ok
    return ServerAnswer(
        family=task.family,
        question=question,
        text=text,
        right=right,
        valid=_fits(task, answer),
        pieces=pieces,
    )


def _fits(task: Question, answer: ChatAnswer) -> bool:
    """Whether tool arguments or JSON fit the schema they were asked in; true where none was."""
    if task.tools:
        return not call_problem(task, answer)
    if task.response_format:
        return not schema_violation(answer.content, task.response_format["json_schema"]["schema"])
    return True


def compare_answers(a: Sequence[ServerAnswer], b: Sequence[ServerAnswer]) -> AnswerComparison:
    """Compare answers to the same questions."""
    pairs = list(zip(a, b, strict=True))
    apart = tuple(_where(left, right) for left, right in pairs if left.text != right.text)
    return AnswerComparison(
        asked=len(pairs),
        same=len(pairs) - len(apart),
        right_a=_share(a, _right),
        right_b=_share(b, _right),
        json_a=_share(_of(a, "json"), _valid),
        json_b=_share(_of(b, "json"), _valid),
        tools_a=_share(_of(a, "tool"), _valid),
        tools_b=_share(_of(b, "tool"), _valid),
        changes=(
            _change("right answers", pairs, _right),
            _change("valid JSON", list(zip(_of(a, "json"), _of(b, "json"), strict=True)), _valid),
            _change("valid tool calls", list(zip(_of(a, "tool"), _of(b, "tool"), strict=True)), _valid),
        ),
        divergences=apart,
    )


def _right(said: ServerAnswer) -> bool:
    return said.right


def _valid(said: ServerAnswer) -> bool:
    return said.valid


def _change(
    what: str, pairs: Sequence[tuple[ServerAnswer, ServerAnswer]], good: Callable[[ServerAnswer], bool]
) -> AnswerChange:
    lost = sum(good(a) and not good(b) for a, b in pairs)
    gained = sum(good(b) and not good(a) for a, b in pairs)
    return AnswerChange(what=what, of=len(pairs), lost=lost, gained=gained)


def sign_test(lost: int, gained: int) -> float:
    """How likely chance alone would lose at least so many of those that changed; 1 where nothing did."""
    changed = lost + gained
    return math.fsum(math.comb(changed, number) * 0.5**changed for number in range(lost, changed + 1))


def _of(said: Sequence[ServerAnswer], kind: str) -> list[ServerAnswer]:
    return [answer for answer in said if answer.family.startswith(kind)]


def _share(said: Sequence[ServerAnswer], good: Callable[[ServerAnswer], bool]) -> Score:
    return wilson_score(sum(map(good, said)), len(said))


def _parting(left: Sequence[object], right: Sequence[object]) -> int:
    """Where two sequences first differ."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))


def _where(a: ServerAnswer, b: ServerAnswer) -> Divergence:
    """The first token that differs, or word where a server has no tokenizer to ask."""
    by_token = bool(a.pieces and b.pieces)
    left, right = (a.pieces, b.pieces) if by_token else (a.text.split(), b.text.split())
    spot = _parting(a.text, b.text)
    begin = max(0, spot - 20)
    return Divergence(
        family=a.family,
        question=a.question,
        at=_parting(left, right),
        unit="token" if by_token else "word",
        a=a.text[begin : spot + 40],
        b=b.text[begin : spot + 40],
    )
