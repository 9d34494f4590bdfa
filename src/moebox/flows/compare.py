"""Compare B with A: the same answers, a loss of right ones, faster or slower.

Both sides are measured in turn (A B, B A, …); otherwise a machine that warms up or slows down would look like a
difference. If only one engine fits the box, the order is A, B, A: half of A's measurements before all of B's, the
other half after them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.core.upgrade_result import SMALL, GainAtConcurrency
from moebox.errors import ExternalError
from moebox.flows.answers import QUESTIONS, AnswerComparison, ServerAnswer, collect_answers, compare_answers
from moebox.flows.pace import (
    CONFIDENCE,
    ROUNDS,
    SpeedMeter,
    SpeedRounds,
    acceptance_rate,
    measure_in_turn,
    measure_speed,
    paired_gain,
    read_draft_counts,
)
from moebox.quality.judge import QualityVerdict
from moebox.quality.measure import QualityGate
from moebox.serve import ports
from moebox.serve.state import hold_endpoint
from moebox.store import Run
from moebox.units import plural

MARGIN = 0.10  # an interval of the difference beyond it is too wide to call two speeds the same


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSide:
    name: str
    answers_given: tuple[ServerAnswer, ...]
    paces: tuple[SpeedRounds, ...]
    acceptance: float | None  # of draft tokens, if the engine counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    a: str
    b: str
    answers: AnswerComparison
    gains: tuple[GainAtConcurrency, ...]
    acceptance_a: float | None
    acceptance_b: float | None
    verdict: str
    as_good: bool  # no kind of B's answers is worse than A's
    slower: bool  # B is slower than A at a measured load
    different: bool  # B is worse, faster or slower
    quality: QualityVerdict | None = None  # with a quality limit


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareEffort:
    concurrency: tuple[int, ...] = (1, 4)
    questions: int = QUESTIONS
    rounds: int = ROUNDS
    most_rounds: int = 0  # of two servers that are up together: measure on until the speed is decided
    prompt_words: int = 0  # of prompts whose reading is measured too; 0: it is not
    seed: int = 0  # of the questions
    quality_limit: float = 0.0  # nats by which B may be farther from the reference than A; 0 if quality is not judged
    reference: str = ""  # a file of `moebox quality --save`; "": A is the reference


CompareTarget = Endpoint | Recipe


class SideListener:
    """Follows a comparison. What `on_ready` raises ends it."""

    def on_start(self, name: str) -> None:
        """Side `name` is about to be started or measured."""

    def on_ready(self, name: str, endpoint: Endpoint, folder: Run) -> None:
        """Side `name` answers for the first time."""

    def on_load(self, text: str) -> None:
        """A load, such as "decode at 4 requests, load 2 of 3", is about to be measured."""


def compare_targets(
    a: CompareTarget,
    b: CompareTarget,
    run: Run,
    effort: CompareEffort,
    *,
    listener: SideListener | None = None,
    together: bool = False,
) -> tuple[MeasuredSide, MeasuredSide]:
    """Measure both sides in turn. Start and stop the engine of a side that is a recipe.

    Two recipes are started one after the other, unless the machine holds both `together`.
    """
    listener = listener or SideListener()
    if isinstance(a, Recipe) and isinstance(b, Recipe) and not together:
        return _measure_one_by_one(a, b, run, effort, listener)
    listener.on_start("A")
    with live_endpoint(a, "A", run) as left:
        listener.on_ready("A", left, run.make_folder(f"{run.id}-A"))
        listener.on_start("B")
        with live_endpoint(b, "B", run) as right:
            listener.on_ready("B", right, run.make_folder(f"{run.id}-B"))
            return measure_both(left, right, effort, listener)


def target_names(*sides: CompareTarget) -> dict[str, str]:
    """The URLs of servers and the names of recipes, under the keys that scripts rely on."""
    names = [side.base_url if isinstance(side, Endpoint) else side.name for side in sides]
    return {"target_a": names[0], "target_b": names[1]}


@contextmanager
def live_endpoint(target: CompareTarget, name: str, run: Run) -> Iterator[Endpoint]:
    """The endpoint of a side; a recipe is started for the length of the block.

    Raise ExternalError if its engine ended meanwhile: the other side may have got its port, and answered for it.
    """
    if isinstance(target, Endpoint):
        yield target
        return
    with ports.start_on_free_port(
        deploy(target), run.make_folder(f"{run.id}-{name}"), notify=lambda text: None
    ) as engine:
        yield engine.endpoint
        if not engine.is_alive:
            raise ExternalError(f"{engine.endpoint.base_url} ended while it was measured", hint=f"log: {engine.log}")


def measure_both(
    a: Endpoint, b: Endpoint, effort: CompareEffort, listener: SideListener = SideListener()
) -> tuple[MeasuredSide, MeasuredSide]:
    """Measure two servers that are both up, or one that is compared with itself."""
    before = read_draft_counts(a), read_draft_counts(b)
    answers = collect_answers(a, b, questions=effort.questions, seed=effort.seed)
    paces = []
    for load, words in _loads(effort, listener):
        with (
            SpeedMeter(a, concurrency=load, prompt_words=words) as meter_a,
            SpeedMeter(b, concurrency=load, prompt_words=words) as meter_b,
        ):
            paces.append(_measure_until_decided(meter_a, meter_b, effort))
    left, right = (
        MeasuredSide(
            name=name,
            answers_given=tuple(answers[side]),
            paces=tuple(pair[side] for pair in paces),
            acceptance=acceptance_rate(before[side], read_draft_counts(endpoint)),
        )
        for side, (name, endpoint) in enumerate((("A", a), ("B", b)))
    )
    return left, right


def _measure_until_decided(a: SpeedMeter, b: SpeedMeter, effort: CompareEffort) -> tuple[SpeedRounds, SpeedRounds]:
    """Measure in turn until a difference was seen twice, the speed is the same within the margin, or rounds end."""
    looks, was_different = max(1, effort.most_rounds // effort.rounds), False
    loads = len(effort.concurrency) + bool(effort.prompt_words)
    for _ in range(looks):
        pair = measure_in_turn(a, b, rounds=effort.rounds)
        rates, doubt = (pair[0].tok_s, pair[1].tok_s), (1 - CONFIDENCE) / loads
        gain = paired_gain(*rates, confidence=1 - doubt)
        wide = paired_gain(*rates, confidence=1 - doubt / looks)
        different = gain is not None and (gain.high < -SMALL or gain.low > SMALL)
        if was_different if different else wide and wide.low > -MARGIN and wide.high < MARGIN:
            break
        was_different = different
    return pair


def _loads(effort: CompareEffort, listener: SideListener) -> Iterator[tuple[int, int]]:
    """Yield concurrency and words of the prompt of each measurement, and report it."""
    loads = [*((load, 0) for load in effort.concurrency), *[(1, effort.prompt_words)] * bool(effort.prompt_words)]
    for number, (load, words) in enumerate(loads, 1):
        what = "prefill" if words else f"decode at {plural(load, 'request')}"
        listener.on_load(f"{what}, load {number} of {len(loads)}")
        yield load, words


def _measure_one_by_one(
    a: Recipe, b: Recipe, run: Run, effort: CompareEffort, listener: SideListener
) -> tuple[MeasuredSide, MeasuredSide]:
    """Measure two engines of which only one fits: A, B, A."""
    early = replace(effort, rounds=(effort.rounds + 1) // 2)
    late = replace(effort, rounds=max(1, effort.rounds // 2), questions=0)
    listener.on_start("A")
    with live_endpoint(a, "A", run) as endpoint:
        listener.on_ready("A", endpoint, run.make_folder(f"{run.id}-A"))
        first = measure_side("A", endpoint, early, listener)
    listener.on_start("B")
    with live_endpoint(b, "B", run) as endpoint:
        listener.on_ready("B", endpoint, run.make_folder(f"{run.id}-B"))
        second = measure_side("B", endpoint, replace(effort, rounds=early.rounds + late.rounds), listener)
    listener.on_start("A")
    with live_endpoint(a, "A2", run) as endpoint:
        third = measure_side("A", endpoint, late, listener)
    paces = tuple(
        replace(before, tok_s=before.tok_s + after.tok_s, ttft_ms=before.ttft_ms + after.ttft_ms)
        for before, after in zip(first.paces, third.paces, strict=True)
    )
    return replace(first, paces=paces), second


def measure_side(name: str, endpoint: Endpoint, effort: CompareEffort, listener: SideListener) -> MeasuredSide:
    with hold_endpoint(endpoint.base_url, "moebox compare"):
        before = read_draft_counts(endpoint)
        (answers,) = collect_answers(endpoint, questions=effort.questions, seed=effort.seed)
        paces = tuple(
            measure_speed(endpoint, concurrency=load, rounds=effort.rounds, prompt_words=words)
            for load, words in _loads(effort, listener)
        )
        acceptance = acceptance_rate(before, read_draft_counts(endpoint))
    return MeasuredSide(name=name, answers_given=tuple(answers), paces=paces, acceptance=acceptance)


class QualityListener(SideListener):
    """Scores both sides as soon as they answer."""

    def __init__(self, effort: CompareEffort) -> None:
        limit = effort.quality_limit
        self.gate = QualityGate(limit, reference=effort.reference) if limit else None
        self.judged: QualityVerdict | None = None

    def on_ready(self, name: str, endpoint: Endpoint, folder: Run) -> None:
        if self.gate:
            self.judged = self.gate.judge(endpoint, folder)


def compare_sides(a: MeasuredSide, b: MeasuredSide, quality: QualityVerdict | None = None) -> Comparison:
    """Judge B against A. The intervals of all loads hold together in 19 of 20 runs (Bonferroni)."""
    answers = compare_answers(a.answers_given, b.answers_given)
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(a.paces))
    gains = tuple(
        GainAtConcurrency(
            concurrency=left.concurrency,
            a_tok_s=left.output_tok_s,
            b_tok_s=right.output_tok_s,
            a_ttft_ms=left.mean_ttft_ms,
            b_ttft_ms=right.mean_ttft_ms,
            gain=paired_gain(left.tok_s, right.tok_s, confidence=confidence),
            what=left.what,
        )
        for left, right in zip(a.paces, b.paces, strict=True)
    )
    worse = ""
    if change := next((change for change in answers.changes if change.is_worse), None):
        gained = f" and gained {change.gained}" if change.gained else ""
        worse = f"{change.what}: lost {change.lost} of {change.of}{gained}"
    if quality and quality.different:
        worse = "; ".join(filter(None, (worse, f"quality: {quality.verdict}")))
    return Comparison(
        a=a.name,
        b=b.name,
        answers=answers,
        gains=gains,
        acceptance_a=a.acceptance,
        acceptance_b=b.acceptance,
        verdict=_verdict_text(answers, worse, gains, quality),
        as_good=not worse,
        slower=any(row.is_slower for row in gains),
        different=bool(worse) or any(row.is_different for row in gains),
        quality=quality,
    )


def _verdict_text(
    answers: AnswerComparison, worse: str, gains: Sequence[GainAtConcurrency], quality: QualityVerdict | None
) -> str:
    """What was found, and what the questions could not have shown."""
    if worse:
        return f"B is worse: {worse}"
    verdict, same = "no difference", "the same words" if answers.asked else "answers were not compared"
    if answers.same != answers.asked:
        verdict = "no loss shown"
        kinds = [change for change in answers.changes if change.of]
        missed = ", ".join(f"{change.least_visible_loss:.0%} of {change.what}" for change in kinds)
        same = f"{answers.right_a.passed} and {answers.right_b.passed} of {answers.asked} right, "
        same += f"other words in {answers.asked - answers.same}; a smaller loss than {missed} would not be seen"
        if not quality:
            same += ", nor worse prose (--set quality_limit=0.02 shows it)"
    if quality:
        same += f"; quality: {quality.verdict}"
    if not any(row.is_different for row in gains):
        known = [row.gain for row in gains if row.gain]
        low, high = min((gain.low for gain in known), default=0.0), max((gain.high for gain in known), default=0.0)
        interval = f"{low:+.1%} to {high:+.1%}"
        if not known:
            return f"{verdict}: {same}; speed was not measured"
        if low >= -MARGIN and high <= MARGIN:
            return f"{verdict}: {same}, and as fast within {interval}"
        verdict = verdict.removesuffix(" shown") + " shown"
        return f"{verdict}: {same}; speed is known only within {interval}, too wide to call it the same"
    speed = "; ".join(
        f"{'prompts' if row.what == 'prefill' else f'at {row.concurrency}'}: {row.gain or 'not measured'}"
        for row in gains
    )
    slower = "B is slower: " if any(row.is_slower for row in gains) else ""
    return f"{slower}{same}; speed {speed}"
