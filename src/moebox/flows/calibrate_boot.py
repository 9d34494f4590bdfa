"""One boot's steps, timed one after another until all are or its time is up."""

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moebox.core.calibration import Boot, DecodeStep, Prefill
from moebox.core.model import Model
from moebox.errors import AnswerIsNo, Outside
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_depths import Depth
from moebox.flows.calibrate_grid import Point, grid
from moebox.serve.faults import ending
from moebox.serve.session import Session
from moebox.serve.watch import Tell
from moebox.units import seconds

POINT_S = 1.5  # decoding at each point, in seconds
STEPS = (12, 768)  # at least and at most
LOOKS = 5  # at most, at one point
DRIFT = 0.05  # by which the first point may differ when it is timed again at the end
WARM = 16  # tokens decoded before anything counts
WARM_S = 8.0  # longest prompt that is read for that alone


@dataclass(slots=True, kw_only=True)
class Measuring:
    """A boot in the making; what it holds when it is interrupted is what was measured."""

    depth: Depth
    chunk: int  # prompt tokens a step
    ggml: bool = False  # see timing.Target
    known: Boot | None = None  # an earlier boot: the same points are timed, no others
    longest: int = 0  # tokens of one request, prompt and reply
    pace_s: float = 0.0  # of a step, as far as it is known before the first look
    looks: dict[Point, list[DecodeStep]] = field(default_factory=dict)
    prompts: dict[Point, list[Prefill]] = field(default_factory=dict)
    drift: float = 0.0  # by which speed moved while it was measured
    notes: list[str] = field(default_factory=list)
    weights_bytes: int = 0
    cache_tokens: int = 0
    startup_s: float = 0.0

    @property
    def decode(self) -> list[DecodeStep]:
        """Every point by what its looks agree on."""
        return [timing.together_seen(looks) for looks in self.looks.values()]

    @property
    def prefill(self) -> list[Prefill]:
        """Every prompt by what its looks agree on; one that was seen once is doubted by half of what speed moved by."""
        return [doubted(timing.together_seen(looks), len(looks), self.drift) for looks in self.prompts.values()]

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
        prompts = {Point(context=prompt.tokens) for prompt in self.known.prefill}
        steps = {Point(batch=step.batch, context=step.context) for step in self.known.decode}
        return point in prompts | steps

    def prefill_s(self, tokens: int) -> float:
        """About how long so many prompt tokens take to read."""
        rates = [prompt.seconds / prompt.tokens for prompt in self.prefill]
        return tokens * min(rates) if rates else 0.0

    def steps(self, point: Point) -> int:
        """How many steps are decoded at a point: for about as long everywhere, and no more than its own context.

        So that most of the context is the prompt's, and none beyond what a request may hold.
        """
        alike = [step.seconds for step in self.decode if step.batch <= point.batch]
        pace = max(alike, default=self.pace_s)
        least, most = STEPS
        wanted = max(least, min(most, point.context, round(POINT_S / pace))) if pace else 2 * least
        room = self.longest - point.context - timing.lead(point.batch, point.context, self.chunk)
        return max(timing.LEAST_STEPS, min(wanted, room)) if self.longest else wanted

    def look(self, target: timing.Target, point: Point, deadline: float) -> None:
        """Time a point, once more or for the first time: a step of streams, or a prompt alone."""
        if not point.batch:
            prompt = timing.prefill(target, point.context, deadline=deadline)
            self.prompts.setdefault(point, []).append(prompt)
            return
        steps, room = self.steps(point), max(self.longest - point.context, 0)
        step = timing.decode(target, point.batch, point.context, chunk=self.chunk, steps=steps, room=room)
        self.looks.setdefault(point, []).append(step)

    def doubtful(self, *, all_again: bool) -> list[Point]:
        """Points that need another look, the quickest first: their shortest two differ, or one look is no proof.

        A step never is settled by one: another program that is busy for as long slows it evenly. A prompt has several
        tries in a look, and a long one is hardly disturbed.
        """
        steps = [point for point, looks in self.looks.items() if unsure(looks)]
        prompts = [
            point
            for point, looks in self.prompts.items()
            if unsure(looks, once=not all_again and looks[0].seconds >= timing.SHORT_S)
        ]
        return sorted([*prompts, *steps], key=self.takes_s)

    def widen(self, off: float) -> None:
        """Doubt what was measured while speed moved."""
        text = f"{self.depth.text}: speed drifted by {off:+.0%} while it was measured; repeated, band widened"
        self.notes.append(text)
        self.drift = off

    def takes_s(self, point: Point) -> float:
        """About how long a look takes."""
        return self.prefill_s(point.context * max(point.batch, 1)) + POINT_S


def doubted(prompt: Prefill, looks: int, drift: float) -> Prefill:
    """`prompt` with what a drift may have done to it; further looks, after the drift, show that themselves."""
    return replace(prompt, spread=max(prompt.spread, abs(drift) / 2)) if looks == 1 else prompt


def unsure(looks: Sequence[DecodeStep | Prefill], *, once: bool = False) -> bool:
    """Whether these looks do not settle how long a step or a prompt takes; `once`: a single quiet one does."""
    if len(looks) >= LOOKS:
        return False
    if len(looks) > 1:
        return timing.disagreement([step.seconds for step in looks]) > timing.QUIET
    return not once or looks[0].spread > timing.QUIET


def measured_boot(work: Measuring, session: Session, model: Model, *, deadline: float, tell: Tell) -> None:
    """Time every point of the grid, then the first again; raises AnswerIsNo when the engine dies of it."""
    note_facts(work, session, model)
    target = timing.Target(endpoint=session.endpoint, vocab=model.vocab, ggml=work.ggml)
    points = grid(session.recipe, chunk=work.chunk, longest=work.longest, cache_tokens=work.cache_tokens)
    points = [point for point in points if work.wanted(point)]
    tell(f"{work.depth.text}: up after {seconds(session.startup_s)}; timing {len(points)} kinds of step")
    try:
        work.pace_s = warm(target, points)
        timed(work, target, points, deadline=deadline, tell=tell)
        again(work, target, deadline=deadline)
    except Outside as problem:
        raise died(session, work, problem) from None


def note_facts(work: Measuring, session: Session, model: Model) -> None:
    """What the engine said of itself at its start."""
    facts = session.facts
    work.startup_s = session.startup_s
    work.weights_bytes = round(max(place.weights_bytes or 0.0 for place in (facts, *facts.devices)))
    work.cache_tokens = round(facts.kv_tokens or 0.0)
    longest = min(int(facts.context or 0) or session.recipe.context or model.context, model.context)
    work.longest = min(longest, work.longest or longest)


def warm(target: timing.Target, points: list[Point]) -> float:
    """Prompts from short to long, and the widest batch: kernels are compiled and pages are read before anything counts.

    An engine so slow that a prompt would take long is not kept reading for the sake of it. Returns about the seconds
    of a step of one stream.
    """
    took, last, pace = 0.0, 0, 0.0
    for tokens in sorted({point.context for point in points}):
        if last and took * tokens / last > WARM_S:
            break
        began = time.monotonic()
        streams = timing.together(target, [target.body(tokens, WARM)])
        took, last = time.monotonic() - began, tokens
        gaps = timing.shared_gaps([stream.times for stream in streams])
        pace = statistics.median(gaps) if gaps else pace
    widest = max(point.batch for point in points)
    timing.together(target, [target.body(16, WARM, slot=slot) for slot in range(max(widest, 1))])
    return pace


def timed(work: Measuring, target: timing.Target, points: list[Point], *, deadline: float, tell: Tell) -> None:
    """Every point for which there is time."""
    left_out = 0
    for number, point in enumerate(points, 1):
        takes = work.prefill_s(point.context * max(point.batch, 1))
        needed = not work.looks and point.batch == 1  # without the first step nothing can be said
        if time.monotonic() + takes > deadline and not needed:
            left_out += 1
            continue
        if number == 1 or number % 5 == 0:
            tell(f"{work.depth.text}: {number} of {len(points)}, {point.text}, {left(deadline)}")
        look_once(work, target, point, deadline, needed=needed)
    if left_out:
        work.notes.append(f"{work.depth.text}: {left_out} of {len(points)} kinds of step left out, time was up")


def look_once(work: Measuring, target: timing.Target, point: Point, deadline: float, *, needed: bool) -> None:
    """One look; a point that cannot be timed is noted and left out, unless it is needed."""
    try:
        work.look(target, point, deadline)
    except timing.NotTogether as problem:
        if needed:
            raise
        work.notes.append(f"{work.depth.text}: left out: {problem.message}")


def again(work: Measuring, target: timing.Target, *, deadline: float) -> None:
    """Further looks, minutes after the first: at steps and short prompts, and at everything where speed has moved.

    What a busy host adds comes and goes, so looks lie apart: all points once, then all doubtful ones once more.
    """
    first = next(iter(work.looks), None)
    if first is None:
        return
    work.look(target, first, deadline)
    sooner, later = (step.seconds for step in work.looks[first])
    off = later / sooner - 1
    drifted = abs(off) > DRIFT
    for _ in range(LOOKS - 1):
        look_again(work, target, work.doubtful(all_again=drifted), deadline)
    if drifted:
        work.widen(off)


def look_again(work: Measuring, target: timing.Target, points: list[Point], deadline: float) -> None:
    """Every point once more for which there is time."""
    for point in points:
        if time.monotonic() + work.takes_s(point) < deadline:
            with contextlib.suppress(timing.NotTogether):  # an earlier look stands
                work.look(target, point, deadline)


def died(session: Session, work: Measuring, problem: Outside) -> AnswerIsNo | Outside:
    """A failed request in the words of what really happened."""
    session.settle()
    cause = session.watch.search.cause
    hint = f"{cause.cause} {cause.remedy}" if cause else f"the log is {session.log}"
    if session.alive:
        return AnswerIsNo(f"{problem.message} ({work.depth.text})", hint=hint)
    how = ending(session.instance.life.code)
    return AnswerIsNo(f"{session.recipe.engine} {how} while {work.depth.text} were measured", hint=hint)


def left(deadline: float) -> str:
    """Time until this boot must be done."""
    return f"{seconds(max(deadline - time.monotonic(), 0))} left for this boot at most"
