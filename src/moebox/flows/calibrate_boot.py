"""One boot's steps, timed one after another until all are or its time is up."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from moebox.core.calibration import Boot, DecodeStep, Prefill
from moebox.core.model import Model
from moebox.errors import AnswerIsNo, Outside
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_depths import Depth
from moebox.flows.calibrate_grid import Point, grid
from moebox.serve.faults import ending
from moebox.serve.session import Session
from moebox.units import seconds

POINT_S = 1.5  # decoding at each point, in seconds
STEPS = (12, 96)  # at least and at most
DRIFT = 0.05  # by which the first point may differ when it is timed again at the end
WARM = 16  # tokens decoded before anything counts
WARM_S = 8.0  # longest prompt that is read for that alone


@dataclass(slots=True, kw_only=True)
class Measuring:
    """A boot in the making; what it holds when it is interrupted is what was measured."""

    depth: Depth
    chunk: int  # prompt tokens a step
    sampled: bool = False  # see timing.Target
    known: Boot | None = None  # an earlier boot: the same points are timed, no others
    decode: list[DecodeStep] = field(default_factory=list)
    prefill: list[Prefill] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    weights_bytes: int = 0
    cache_tokens: int = 0
    startup_s: float = 0.0

    @property
    def boot(self) -> Boot:
        """As a fact."""
        return Boot(
            layers=self.depth.layers,
            gpu_experts=self.depth.gpu_experts,
            decode=tuple(self.decode),
            prefill=tuple(self.prefill),
            weights_bytes=self.weights_bytes,
            cache_tokens=self.cache_tokens,
            startup_s=round(self.startup_s, 1),
        )

    def wanted(self, point: Point) -> bool:
        """Whether the earlier boot has this point, or there is none."""
        if self.known is None:
            return True
        if not point.batch:
            return any(prompt.tokens == point.context for prompt in self.known.prefill)
        return any((step.batch, step.context) == (point.batch, point.context) for step in self.known.decode)

    def prefill_s(self, tokens: int) -> float:
        """About how long so many prompt tokens take to read."""
        rates = [prompt.seconds / prompt.tokens for prompt in self.prefill]
        return tokens * min(rates) if rates else 0.0

    def steps(self, point: Point) -> int:
        """How many steps are decoded at a point: for about as long everywhere."""
        alike = [step.seconds for step in self.decode if step.batch <= point.batch]
        least, most = STEPS
        return max(least, min(most, round(POINT_S / max(alike)))) if alike else 2 * least


def measured_boot(
    work: Measuring, session: Session, model: Model, *, deadline: float, tell: Callable[[str], None]
) -> None:
    """Time every point of the grid, then the first again; raises AnswerIsNo when the engine dies of it."""
    facts = session.facts
    devices = facts.get("devices") or [{}]
    work.startup_s = session.startup_s
    work.weights_bytes = round(max(float(row.get("weights_bytes", 0)) for row in [facts, *devices]))
    work.cache_tokens = round(float(facts.get("kv_tokens", 0)))
    target = timing.Target(endpoint=session.endpoint, vocab=model.vocab, sampled=work.sampled)
    longest = min(int(facts.get("context") or 0) or session.recipe.context or model.context, model.context)
    points = grid(session.recipe, chunk=work.chunk, longest=longest, cache_tokens=work.cache_tokens)
    points = [point for point in points if work.wanted(point)]
    tell(f"{work.depth.text}: up after {seconds(session.startup_s)}; timing {len(points)} kinds of step")
    try:
        warm(target, points)
        timed(work, target, points, deadline=deadline, tell=tell)
        again(work, target, points, deadline=deadline)
    except Outside as problem:
        raise died(session, work, problem) from None


def warm(target: timing.Target, points: list[Point]) -> None:
    """Prompts from short to long, and the widest batch: kernels are compiled and pages are read before anything counts.

    An engine so slow that a prompt would take long is not kept reading for the sake of it.
    """
    took, last = 0.0, 0
    for tokens in sorted({point.context for point in points}):
        if last and took * tokens / last > WARM_S:
            break
        began = time.monotonic()
        timing.together(target, [target.body(tokens, WARM)])
        took, last = time.monotonic() - began, tokens
    widest = max(point.batch for point in points)
    timing.together(target, [target.body(16, WARM) for _ in range(max(widest, 1))])


def timed(
    work: Measuring, target: timing.Target, points: list[Point], *, deadline: float, tell: Callable[[str], None]
) -> None:
    """Every point for which there is time."""
    left_out = 0
    for number, point in enumerate(points, 1):
        takes = work.prefill_s(point.context * max(point.batch, 1))
        if time.monotonic() + takes > deadline and (work.decode or point.batch != 1):
            left_out += 1
            continue
        if number == 1 or number % 5 == 0:
            tell(f"{work.depth.text}: {number} of {len(points)}, {point.text}, {left(deadline)}")
        if point.batch:
            steps = work.steps(point)
            work.decode.append(timing.decode(target, point.batch, point.context, chunk=work.chunk, steps=steps))
        else:
            work.prefill.append(timing.prefill(target, point.context, deadline=deadline))
    if left_out:
        work.notes.append(f"{work.depth.text}: {left_out} of {len(points)} kinds of step left out, time was up")


def again(work: Measuring, target: timing.Target, points: list[Point], *, deadline: float) -> None:
    """The first decode point once more; clocks that moved meanwhile widen every band, after one more look at all."""
    first = next((step for step in work.decode), None)
    if first is None:
        return
    point = Point(batch=first.batch, context=first.context)
    off = second_look(work, target, point).seconds / first.seconds - 1
    if abs(off) <= DRIFT:
        return
    for step in list(work.decode):
        if time.monotonic() > deadline:
            break
        repeated = second_look(work, target, Point(batch=step.batch, context=step.context))
        mean = statistics.fmean((step.seconds, repeated.seconds))
        apart = abs(step.seconds - repeated.seconds) / 2 / mean
        work.decode[work.decode.index(step)] = replace(step, seconds=mean, spread=max(step.spread, apart))
    work.decode = [replace(step, spread=max(step.spread, abs(off) / 2)) for step in work.decode]
    work.prefill = [replace(prompt, spread=max(prompt.spread, abs(off) / 2)) for prompt in work.prefill]
    work.notes.append(f"{work.depth.text}: speed drifted by {off:+.0%} while it was measured; repeated, band widened")


def second_look(work: Measuring, target: timing.Target, point: Point) -> DecodeStep:
    """A decode point timed again."""
    return timing.decode(target, point.batch, point.context, chunk=work.chunk, steps=work.steps(point))


def died(session: Session, work: Measuring, problem: Outside) -> AnswerIsNo | Outside:
    """A failed request in the words of what really happened."""
    session.settle()
    cause = session.watch.search.cause
    hint = f"{cause.cause} {cause.remedy}" if cause else f"the log is {session.log}"
    if session.alive:
        return AnswerIsNo(f"{problem.message} ({work.depth.text})", hint=hint)
    how = ending(session.instance.life.get("code"))
    return AnswerIsNo(f"{session.recipe.engine} {how} while {work.depth.text} were measured", hint=hint)


def left(deadline: float) -> str:
    """Time until this boot must be done."""
    return f"{seconds(max(deadline - time.monotonic(), 0))} left for this boot at most"
