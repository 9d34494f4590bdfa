"""A against B with judgement: does it say the same, is it as right, and is it faster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.flows import guesses
from moebox.flows.answers import QUESTIONS, Judgement, Said, collect, judge
from moebox.flows.gain import Gain, gain
from moebox.flows.pace import ROUNDS, Pace, pace
from moebox.serve import session
from moebox.store import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two, asked and measured."""

    name: str
    said: tuple[Said, ...]
    paces: tuple[Pace, ...]
    acceptance: float | None  # of guessed tokens, where the engine counts them
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AtConcurrency:
    """Gain of B over A with so many streams."""

    concurrency: int
    a_tok_s: float
    b_tok_s: float
    a_ttft_ms: float
    b_ttft_ms: float
    gain: Gain | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both sides and the verdict on them."""

    a: str
    b: str
    answers: Judgement
    gains: tuple[AtConcurrency, ...]
    acceptance_a: float | None
    acceptance_b: float | None
    verdict: str
    as_good: bool  # B says nothing worse than A


Tell = Callable[[str], None]


def ask_side(
    name: str, endpoint: Endpoint, *, concurrency: Sequence[int], questions: int = QUESTIONS, rounds: int = ROUNDS
) -> Side:
    """Ask and measure one server that is up."""
    before = guesses.count(endpoint)
    said = tuple(collect(endpoint, questions=questions))
    paces = tuple(pace(endpoint, concurrency=number, rounds=rounds) for number in concurrency)
    return Side(name=name, said=said, paces=paces, acceptance=guesses.accepted(before, guesses.count(endpoint)))


def start_side(
    name: str, recipe: Recipe, run: Run, *, concurrency: Sequence[int], questions: int = QUESTIONS, rounds: int = ROUNDS
) -> Side:
    """Start a recipe's engine, ask and measure it, and stop it."""
    folder = run.path / f"{run.id}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with session.start(deploy(recipe), Run(folder)) as live:
        return ask_side(name, live.endpoint, concurrency=concurrency, questions=questions, rounds=rounds)


def compare(a: Side, b: Side) -> Comparison:
    """Judge B against A."""
    answers = judge(a.said, b.said)
    gains = tuple(
        AtConcurrency(
            concurrency=left.concurrency,
            a_tok_s=left.output_tok_s,
            b_tok_s=right.output_tok_s,
            a_ttft_ms=left.mean_ttft_ms,
            b_ttft_ms=right.mean_ttft_ms,
            gain=gain(left.tok_s, right.tok_s),
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
    )


def _worse(answers: Judgement) -> str:
    """What B says worse than A, or nothing: more than one answer in twenty lost."""
    slack = max(1, answers.asked // 20)
    for what, left, right in (
        ("right answers", answers.right_a, answers.right_b),
        ("valid JSON", answers.json_a, answers.json_b),
        ("valid tool calls", answers.tools_a, answers.tools_b),
    ):
        if right.passed < left.passed - slack:
            return f"{what}: {left.passed} of {left.trials} before, {right.passed} after"
    return ""


def _sentence(answers: Judgement, worse: str, gains: Sequence[AtConcurrency]) -> str:
    if worse:
        return f"B says worse things: {worse}"
    said = (
        "the same words"
        if answers.same == answers.asked
        else f"the same words in {answers.same} of {answers.asked} answers, and as many right"
    )
    speed = "; ".join(f"at {row.concurrency}: {row.gain or 'not measured'}" for row in gains)
    return f"{said}; speed {speed}"
