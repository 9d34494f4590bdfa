"""Ask two servers the same questions at temperature 0, and compare their answers."""

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moebox import codec
from moebox.core.endpoint import Endpoint
from moebox.core.verdict import Score, wilson_score
from moebox.errors import ExternalError
from moebox.phantom.question import Question
from moebox.phantom.questions import draw_question
from moebox.stream import run_to_end
from moebox.verify import tokens
from moebox.verify.checks.answers import probe_models
from moebox.verify.checks.schemas import schema_violation
from moebox.verify.checks.streaming import common_length
from moebox.verify.checks.tools import call_problem
from moebox.verify.client import ExchangeClient
from moebox.verify.options import VerifyOptions
from moebox.verify.session import EndpointUnusable, ProbeFailed
from moebox.verify.trials import CheckSession

# Open questions diverge first; closed ones show whether it matters.
FAMILY_MIX = ("plain", "story", "sums", "count", "copy", "code", "json_schema", "tool_call", "tool_parallel", "memory")
QUESTIONS = 200  # shows a loss of 3%; 30 miss one of 20%
POWER = 0.8  # chance at which a loss counts as one that would have been seen
SIGNIFICANCE = 0.05  # of the sign test
CLEAR_SHARE = 0.2  # of a kind's questions: losing as many is a loss, however few there are


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    family: str
    question: str
    text: str  # content, and tool calls as text
    right: bool
    valid: bool = True  # JSON or tool arguments fit their schema
    pieces: tuple[int, ...] = ()  # the text's tokens, if the server has a tokenizer endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two answers to one question differ first."""

    family: str
    question: str
    at: int  # number of the token, or of the word if the servers do not tokenize
    unit: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """Good answers of one kind that B lost and gained, question by question."""

    what: str
    of: int  # questions of that kind
    lost: int  # good on A, not on B
    gained: int

    @property
    def is_worse(self) -> bool:
        """B lost significantly many by the sign test, or a clear share of few questions."""
        clearly = self.lost - self.gained >= max(2, self.of * CLEAR_SHARE)
        return clearly or sign_test(self.lost, self.gained) <= SIGNIFICANCE

    @property
    def text(self) -> str:
        return f"{self.what}: lost {self.lost} of {self.of}{f' and gained {self.gained}' if self.gained else ''}"

    @property
    def least_visible_loss(self) -> float:
        """Smallest share of questions whose loss this test would show with POWER; 1 if it could show none."""
        needed = next((lost for lost in range(self.of + 1) if replace(self, lost=lost).is_worse), None)
        if needed is None:
            return 1.0
        for step in range(1, 1000):
            share = step / 1000
            fewer = math.fsum(math.comb(self.of, k) * share**k * (1 - share) ** (self.of - k) for k in range(needed))
            if 1 - fewer >= POWER:
                return share
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
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


def collect_answers(*endpoints: Endpoint, questions: int = QUESTIONS, seed: int = 0) -> list[list[ServerAnswer]]:
    """Ask the servers the questions of a seed; two are asked in turn: A B, B A, A B …"""

    async def ask_all() -> list[list[ServerAnswer]]:
        rng = random.Random(seed)
        asked: list[tuple[Endpoint, CheckSession, list[ServerAnswer]]] = []
        async with contextlib.AsyncExitStack() as stack:
            for endpoint in endpoints:
                client = await stack.enter_async_context(ExchangeClient(endpoint))
                asked.append((endpoint, CheckSession(client, VerifyOptions()), []))
                with _report_loss(endpoint):
                    await probe_models(asked[-1][1])
            for number in range(questions):
                task = draw_question(FAMILY_MIX[number % len(FAMILY_MIX)], rng, thinking=False)
                for endpoint, session, answers in asked[:: -1 if number % 2 else 1]:
                    with _report_loss(endpoint):
                        answers.append(await _ask_question(session, task))
        return [answers for _, _, answers in asked]

    return run_to_end(ask_all())


@contextlib.contextmanager
def _report_loss(endpoint: Endpoint) -> Iterator[None]:
    """Raise ExternalError if the server is gone: no answer is not a wrong answer."""
    try:
        yield
    except (ProbeFailed, EndpointUnusable) as problem:
        raise ExternalError(f"{endpoint.base_url} broke off while it was asked: {problem}") from None


async def _ask_question(session: CheckSession, task: Question) -> ServerAnswer:
    question = str(task.messages[-1]["content"])[-200:]
    try:
        answer = await session.ask_question(task)
    except ProbeFailed as problem:
        return ServerAnswer(family=task.family, question=question, text=f"({problem})", right=False, valid=False)
    calls = [f"{call.name}({call.arguments})" for call in answer.calls]
    text = "\n".join([answer.content, *calls]).strip()
    pieces = tuple(await tokens.tokenize_text(session, text)) if text else ()
    valid = True
    if task.tools:
        valid = not call_problem(task, answer)
    elif task.response_format:
        valid = not schema_violation(answer.content, task.response_format["json_schema"]["schema"])
    return ServerAnswer(
        family=task.family, question=question, text=text, right=not task.find_fault(answer), valid=valid, pieces=pieces
    )


def compare_answers(a: Sequence[ServerAnswer], b: Sequence[ServerAnswer]) -> AnswerComparison:
    pairs, partings = list(zip(a, b, strict=True)), []
    for left, other in pairs:
        if left.text == other.text:
            continue
        by_token = bool(left.pieces and other.pieces)  # of words if a server has no tokenizer endpoint
        parts = (left.pieces, other.pieces) if by_token else (left.text.split(), other.text.split())
        spot = common_length(left.text, other.text)
        shown = slice(max(0, spot - 20), spot + 40)
        asked, unit = codec.shared_fields(left, Divergence), "token" if by_token else "word"
        shown_a, shown_b = left.text[shown], other.text[shown]
        partings.append(Divergence(**asked, at=common_length(*parts), unit=unit, a=shown_a, b=shown_b))
    right = [(left.right, other.right) for left, other in pairs]
    json = [(left.valid, other.valid) for left, other in pairs if left.family.startswith("json")]
    tools = [(left.valid, other.valid) for left, other in pairs if left.family.startswith("tool")]
    kinds = {"right": ("right answers", right), "json": ("valid JSON", json), "tools": ("valid tool calls", tools)}
    changes, scores = [], {}
    for kind, (what, good) in kinds.items():
        lost, gained = sum(on_a > on_b for on_a, on_b in good), sum(on_b > on_a for on_a, on_b in good)
        changes.append(AnswerChange(what=what, of=len(good), lost=lost, gained=gained))
        scores[f"{kind}_a"] = wilson_score(sum(on_a for on_a, _ in good), len(good))
        scores[f"{kind}_b"] = wilson_score(sum(on_b for _, on_b in good), len(good))
    same = len(pairs) - len(partings)
    return AnswerComparison(asked=len(pairs), same=same, changes=tuple(changes), divergences=tuple(partings), **scores)


def sign_test(lost: int, gained: int) -> float:
    """The probability that chance alone loses at least as many of those that changed; 1 if none did."""
    changed = lost + gained
    return math.fsum(math.comb(changed, number) * 0.5**changed for number in range(lost, changed + 1))
