"""A against B with judgement: does it say the same, is it as right, and is it faster.

Both sides are asked and measured in turn (A B, B A, …), never all of A and then all of B: a machine that warms up or
slows down meanwhile would be taken for a difference. Where only one engine fits the box, the order is A, B, A: the
first half of A's measurements before all of B's, the second half after them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.core.verdict import Gain
from moebox.flows import acceptance
from moebox.flows.answers import (
    QUESTIONS,
    AnswerComparison,
    ServerAnswer,
    collect_answers,
    collect_from_both,
    compare_answers,
)
from moebox.flows.gain import CONFIDENCE, paired_gain
from moebox.flows.pace import ROUNDS, SpeedMeter, SpeedRounds, measure_in_turn, measure_speed
from moebox.serve import ports
from moebox.store import Run

SMALL = 0.02  # a difference in speed below this is none that anybody would act on


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSide:
    """One of the two, asked and measured."""

    name: str
    said: tuple[ServerAnswer, ...]
    paces: tuple[SpeedRounds, ...]
    acceptance: float | None  # of draft tokens, where the engine counts them
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GainAtConcurrency:
    """Gain of B over A with so many streams."""

    concurrency: int
    a_tok_s: float
    b_tok_s: float
    a_ttft_ms: float
    b_ttft_ms: float
    gain: Gain | None

    @property
    def is_different(self) -> bool:
        """Seen, and large enough to matter."""
        return self.gain is not None and self.gain.is_significant and abs(self.gain.share) >= SMALL

    @property
    def is_slower(self) -> bool:
        """By more than is small, wherever in its interval the truth lies: a build may fail for it."""
        return self.gain is not None and self.gain.high < -SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides and the verdict on them."""

    a: str
    b: str
    answers: AnswerComparison
    gains: tuple[GainAtConcurrency, ...]
    acceptance_a: float | None
    acceptance_b: float | None
    verdict: str
    as_good: bool  # B answers nothing worse than A
    slower: bool  # B is slower than A at a load that was measured
    different: bool  # B is worse, faster or slower


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareEffort:
    """How much is asked and measured."""

    concurrency: tuple[int, ...] = (1, 4)
    questions: int = QUESTIONS
    rounds: int = ROUNDS
    seed: int = 0  # of the questions


CompareTarget = Endpoint | Recipe


def compare_targets(
    a: CompareTarget, b: CompareTarget, run: Run, effort: CompareEffort
) -> tuple[MeasuredSide, MeasuredSide]:
    """Ask and measure both, in turn; engines are started where a side is a recipe, and stopped again."""
    if isinstance(a, Recipe) and isinstance(b, Recipe):
        return _one_at_a_time(a, b, run, effort)
    with live_endpoint(a, "A", run) as left, live_endpoint(b, "B", run) as right:
        return measure_both(left, right, effort)


@contextmanager
def live_endpoint(target: CompareTarget, name: str, run: Run) -> Iterator[Endpoint]:
    """The side's server: as it is, or started for the while."""
    if isinstance(target, Endpoint):
        yield target
        return
    folder = run.path / f"{run.id}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with ports.start_on_free_port(deploy(target), Run(folder), notify=lambda text: None) as engine:
        yield engine.endpoint


def measure_both(a: Endpoint, b: Endpoint, effort: CompareEffort) -> tuple[MeasuredSide, MeasuredSide]:
    """Two servers that are both up, or one that is compared with itself."""
    before = acceptance.read_draft_counts(a), acceptance.read_draft_counts(b)
    said = collect_from_both(a, b, questions=effort.questions, seed=effort.seed)
    paces = [_in_turn(a, b, number, effort.rounds) for number in effort.concurrency]
    left, right = (
        MeasuredSide(
            name=name,
            said=tuple(said[side]),
            paces=tuple(pair[side] for pair in paces),
            acceptance=acceptance.acceptance_rate(before[side], acceptance.read_draft_counts(endpoint)),
        )
        for side, (name, endpoint) in enumerate((("A", a), ("B", b)))
    )
    return left, right


def _in_turn(a: Endpoint, b: Endpoint, concurrency: int, rounds: int) -> tuple[SpeedRounds, SpeedRounds]:
    with SpeedMeter(a, concurrency=concurrency) as left, SpeedMeter(b, concurrency=concurrency) as right:
        return measure_in_turn(left, right, rounds=rounds)


def _one_at_a_time(a: Recipe, b: Recipe, run: Run, effort: CompareEffort) -> tuple[MeasuredSide, MeasuredSide]:
    """Two engines of which only one fits: A, B, A."""
    early = replace(effort, rounds=(effort.rounds + 1) // 2)
    late = replace(effort, rounds=max(1, effort.rounds // 2), questions=0)
    with live_endpoint(a, "A", run) as endpoint:
        first = measure_side("A", endpoint, early)
    with live_endpoint(b, "B", run) as endpoint:
        second = measure_side("B", endpoint, replace(effort, rounds=early.rounds + late.rounds))
    with live_endpoint(a, "A2", run) as endpoint:
        third = measure_side("A", endpoint, late)
    paces = tuple(_joined(before, after) for before, after in zip(first.paces, third.paces, strict=True))
    return replace(first, paces=paces), second


def _joined(before: SpeedRounds, after: SpeedRounds) -> SpeedRounds:
    tok_s, ttft_ms = before.tok_s + after.tok_s, before.ttft_ms + after.ttft_ms
    return SpeedRounds(concurrency=before.concurrency, tok_s=tok_s, ttft_ms=ttft_ms)


def measure_side(name: str, endpoint: Endpoint, effort: CompareEffort) -> MeasuredSide:
    """Ask and measure one server that is up."""
    before = acceptance.read_draft_counts(endpoint)
    said = tuple(collect_answers(endpoint, questions=effort.questions, seed=effort.seed)) if effort.questions else ()
    paces = tuple(measure_speed(endpoint, concurrency=number, rounds=effort.rounds) for number in effort.concurrency)
    return MeasuredSide(
        name=name,
        said=said,
        paces=paces,
        acceptance=acceptance.acceptance_rate(before, acceptance.read_draft_counts(endpoint)),
    )


def compare_sides(a: MeasuredSide, b: MeasuredSide) -> Comparison:
    """Judge B against A. Intervals are as wide as several of them need to be right together in 19 of 20 runs."""
    answers = compare_answers(a.said, b.said)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(a.paces))
    gains = tuple(
        GainAtConcurrency(
            concurrency=left.concurrency,
            a_tok_s=left.output_tok_s,
            b_tok_s=right.output_tok_s,
            a_ttft_ms=left.mean_ttft_ms,
            b_ttft_ms=right.mean_ttft_ms,
            gain=paired_gain(left.tok_s, right.tok_s, confidence=confidence),
        )
        for left, right in zip(a.paces, b.paces, strict=True)
    )
    worse = _worse(answers)
    return Comparison(
        a=a.name,
        b=b.name,
        answers=answers,
        gains=gains,
        acceptance_a=a.acceptance,
        acceptance_b=b.acceptance,
        verdict=_sentence(answers, worse, gains),
        as_good=not worse,
        slower=any(row.is_slower for row in gains),
        different=bool(worse) or any(row.is_different for row in gains),
    )


def _worse(answers: AnswerComparison) -> str:
    """What B answers worse than A, or nothing."""
    change = next((change for change in answers.changes if change.is_worse), None)
    if change is None:
        return ""
    gained = f" and gained {change.gained}" if change.gained else ""
    return f"{change.what}: lost {change.lost} of {change.of}{gained}"


def _sentence(answers: AnswerComparison, worse: str, gains: Sequence[GainAtConcurrency]) -> str:
    if worse:
        return f"B is worse: {worse}"
    said = _sameness(answers)
    if not any(row.is_different for row in gains):
        return f"no difference: {said}, and as fast within what was measured"
    speed = "; ".join(f"at {row.concurrency}: {row.gain or 'not measured'}" for row in gains)
    slower = "B is slower: " if any(row.is_slower for row in gains) else ""
    return f"{slower}{said}; speed {speed}"


def _sameness(answers: AnswerComparison) -> str:
    if answers.same == answers.asked:
        return "the same words"
    return f"the same words in {answers.same} of {answers.asked} answers, and as many right"
