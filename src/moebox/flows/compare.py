"""Compare B with A: the same answers, a loss of right ones, faster or slower.

Both sides are measured in turn (A B, B A, …); otherwise a machine that warms up or slows down would look like a
difference. If only one engine fits the box, all of B is measured between two halves of A.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.core.upgrade_result import SMALL, GainAtConcurrency
from moebox.errors import ExternalError
from moebox.flows import pace
from moebox.flows.answers import QUESTIONS, AnswerComparison, ServerAnswer, collect_answers, compare_answers
from moebox.flows.pace import CONFIDENCE, SpeedMeter, SpeedRounds, measure_in_turn, measure_speed, paired_gain
from moebox.quality.judge import QualityVerdict
from moebox.quality.measure import QualityGate
from moebox.serve import ports
from moebox.serve.state import hold_endpoint
from moebox.store import Run
from moebox.units import plural

NO_USAGE = {
    "char/s": "; speed is in characters, because a server does not count tokens",
    "event/s": "; speed cannot be compared, because a server does not count tokens",
}
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
    rounds: int = pace.ROUNDS
    most_rounds: int = 0  # measure on until the speed is decided, or of one server at a time, until it is known
    prompt_words: int = 0  # of prompts whose reading is measured too; 0: it is not
    seed: int = 0  # of the questions
    quality_limit: float = 0.0  # nats by which B may be farther from the reference than A; 0 if quality is not judged
    reference: str = ""  # a file of `moebox quality --save`; "": A is the reference


CompareTarget = Endpoint | Recipe


class SideListener:
    """Follows a comparison, and scores both sides if there is a quality limit. What `on_ready` raises ends it."""

    def __init__(self, effort: CompareEffort = CompareEffort()) -> None:
        limit = effort.quality_limit
        self.gate = QualityGate(limit, reference=effort.reference) if limit else None
        self.judged: QualityVerdict | None = None

    def on_start(self, name: str) -> None:
        """Side `name` is about to be started or measured."""

    def on_ready(self, name: str, endpoint: Endpoint, folder: Run) -> None:
        """Side `name` answers for the first time."""
        if self.gate:
            self.judged = self.gate.judge(endpoint, folder)

    def on_load(self, text: str) -> None:
        """A load, such as "decode at 4 requests, load 2 of 3", is about to be measured."""


def compare_targets(
    a: CompareTarget, b: CompareTarget, run: Run, effort: CompareEffort, listener: SideListener, together: bool = False
) -> tuple[MeasuredSide, MeasuredSide]:
    """Measure both sides in turn. Start and stop the engine of a side that is a recipe.

    Two recipes are started one after the other, unless the machine holds both `together`. Then a difference in speed
    counts as far as two other starts have it too: a server may stay slower for what is left in its cache.
    """
    if isinstance(a, Recipe) and isinstance(b, Recipe) and not together:
        return _measure_one_by_one(a, b, run, effort, listener)
    with open_side("A", a, run, listener) as left, open_side("B", b, run, listener) as right:
        one, other = measure_sides({"A": left, "B": right}, effort, listener)
    pairs = [*zip(one.paces, other.paces, strict=True)]

    def score(pair: tuple[SpeedRounds, SpeedRounds]) -> float:
        """How far two speeds are from the same: above 1 if they differ by SMALL for sure, or may differ by MARGIN."""
        gain = paired_gain(pair[0].tok_s, pair[1].tok_s, confidence=1 - (1 - CONFIDENCE) / len(pairs))
        return max(gain.low / SMALL, -gain.high / SMALL, gain.high / MARGIN, -gain.low / MARGIN) if gain else 0.0

    if effort.most_rounds and max(map(score, pairs), default=0.0) > 1:
        with open_side("A2", a, run, listener) as left, open_side("B2", b, run, listener) as right:
            again = measure_sides({"A": left, "B": right}, replace(effort, questions=0), listener)
        both = zip(pairs, zip(again[0].paces, again[1].paces, strict=True), strict=True)
        pairs = [min(each, key=score) for each in both]
    old, new = (tuple(pair[place] for pair in pairs) for place in (0, 1))
    return replace(one, paces=old), replace(other, paces=new)


def target_names(a: CompareTarget, b: CompareTarget) -> dict[str, str]:
    """The URLs of servers and the names of recipes, under the keys that scripts rely on."""
    sides = {"target_a": a, "target_b": b}
    return {key: side.base_url if isinstance(side, Endpoint) else side.name for key, side in sides.items()}


@contextmanager
def open_side(name: str, target: CompareTarget, run: Run, listener: SideListener) -> Iterator[Endpoint]:
    """Report a side, start its engine, and let the listener look at it unless it is started again as "A2" or "B2"."""
    listener.on_start(name[0])
    with live_endpoint(target, name, run) as endpoint:
        if name in ("A", "B"):
            listener.on_ready(name, endpoint, run.make_folder(f"{run.id}-{name}"))
        yield endpoint


@contextmanager
def live_endpoint(target: CompareTarget, name: str, run: Run) -> Iterator[Endpoint]:
    """The endpoint of a side; a recipe is started, and held, for the length of the block.

    Raise ExternalError if its engine ended meanwhile: the other side may have got its port, and answered for it.
    """
    if isinstance(target, Endpoint):
        yield target
        return
    folder = run.make_folder(f"{run.id}-{name}")
    with ports.start_on_free_port(deploy(target), folder, notify=lambda text: None) as engine:
        url = engine.endpoint.base_url
        with hold_endpoint(url, "moebox compare"):
            yield engine.endpoint
        if not engine.is_alive:
            raise ExternalError(f"{url} ended while it was measured", hint=f"log: {engine.log}")


def measure_sides(
    sides: Mapping[str, Endpoint], effort: CompareEffort, listener: SideListener, rounds: Sequence[int] = ()
) -> list[MeasuredSide]:
    """Ask and measure two servers in turn, or one alone, with so many `rounds` of each load if they are given."""
    endpoints = [*sides.values()]
    before = [*map(pace.read_metrics, endpoints)]
    answers = collect_answers(*endpoints, questions=effort.questions, seed=effort.seed)
    loads = [*((load, 0) for load in effort.concurrency), *[(1, effort.prompt_words)] * bool(effort.prompt_words)]
    paces: list[tuple[SpeedRounds, ...]] = []
    for number, (load, words) in enumerate(loads):
        what = "prefill" if words else f"decode at {plural(load, 'request')}"
        listener.on_load(f"{what}, load {number + 1} of {len(loads)}")
        if len(endpoints) > 1:
            a, b = (SpeedMeter(each, concurrency=load, prompt_words=words) for each in endpoints)
            paces.append(_measure_until_decided(a, b, effort, len(loads)))
        else:
            how = {"rounds": rounds[number] if rounds else effort.rounds, "most_rounds": effort.most_rounds}
            paces.append((measure_speed(endpoints[0], concurrency=load, prompt_words=words, **how),))
    return [
        MeasuredSide(
            name=name,
            answers_given=tuple(answers[place]),
            paces=tuple(speeds[place] for speeds in paces),
            acceptance=pace.acceptance_rate(before[place], pace.read_metrics(endpoints[place])),
        )
        for place, name in enumerate(sides)
    ]


def _measure_until_decided(a: SpeedMeter, b: SpeedMeter, effort: CompareEffort, loads: int) -> tuple[SpeedRounds, ...]:
    """Measure in turn until a difference was seen twice, the speed is the same within the margin, or rounds end."""
    looks, was_different, doubt = max(1, effort.most_rounds // effort.rounds), False, (1 - CONFIDENCE) / loads
    for _ in range(looks):
        pair = measure_in_turn(a, b, rounds=effort.rounds)
        gain, wide = (paired_gain(pair[0].tok_s, pair[1].tok_s, confidence=1 - doubt / by) for by in (1, looks))
        different = gain is not None and max(-gain.high, gain.low) > SMALL
        if was_different if different else wide and -MARGIN < wide.low <= wide.high < MARGIN:
            break
        was_different = different
    return pair


def _measure_one_by_one(
    a: Recipe, b: Recipe, run: Run, effort: CompareEffort, listener: SideListener
) -> tuple[MeasuredSide, MeasuredSide]:
    """Measure two engines of which only one fits: A, B, A. A's first half decides how many rounds the others take."""
    early = replace(effort, rounds=(effort.rounds + 1) // 2, most_rounds=effort.most_rounds // 2)
    late = replace(effort, most_rounds=0)
    with open_side("A", a, run, listener) as endpoint:
        (first,) = measure_sides({"A": endpoint}, early, listener)
    counts = [len(speed.tok_s) for speed in first.paces]
    with open_side("B", b, run, listener) as endpoint:
        (second,) = measure_sides({"B": endpoint}, late, listener, [2 * count for count in counts])
    with open_side("A2", a, run, listener) as endpoint:
        (third,) = measure_sides({"A": endpoint}, replace(late, questions=0), listener, counts)
    paces = tuple(
        replace(before, tok_s=before.tok_s + after.tok_s, ttft_ms=before.ttft_ms + after.ttft_ms)
        for before, after in zip(first.paces, third.paces, strict=True)
    )
    return replace(first, paces=paces), second


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
            gain=paired_gain(left.tok_s, right.tok_s, confidence=confidence) if unit != "event/s" else None,
            what=left.what,
            unit=unit,
        )
        for left, right in zip(a.paces, b.paces, strict=True)
        for unit in [left.unit if left.unit == right.unit else "event/s"]
    )
    losses = [change.text for change in answers.changes if change.is_worse][:1]
    worse = "; ".join([*losses, f"quality: {quality.verdict}"] if quality and quality.different else losses)
    return Comparison(
        a=a.name,
        b=b.name,
        answers=answers,
        gains=gains,
        acceptance_a=a.acceptance,
        acceptance_b=b.acceptance,
        verdict=_verdict_text(answers, worse, gains, quality) + NO_USAGE.get(gains[0].unit if gains else "", ""),
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
        if not known:
            return f"{verdict}: {same}; speed was not measured"
        low, high = min(gain.low for gain in known), max(gain.high for gain in known)
        interval = f"{low:+.1%} to {high:+.1%}"
        if -MARGIN <= low <= high <= MARGIN:
            return f"{verdict}: {same}, and as fast within {interval}"
        verdict = verdict.removesuffix(" shown") + " shown"
        return f"{verdict}: {same}; speed is known only within {interval}, too wide to call it the same"
    loads = ("prompts" if row.what == "prefill" else f"at {row.concurrency}" for row in gains)
    speed = "; ".join(f"{load}: {row.gain or 'not measured'}" for load, row in zip(loads, gains, strict=True))
    return f"{'B is slower: ' if any(row.is_slower for row in gains) else ''}{same}; speed {speed}"
