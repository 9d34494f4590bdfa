"""One boot's steps, timed one after another until all are or its time is up."""

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moebox.core.calibration import Boot, DecodeStep, PrefillStep
from moebox.core.model import Model
from moebox.errors import AnswerIsNo, ExternalError
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_depths import BootDepth
from moebox.flows.calibrate_grid import TimingPoint, timing_grid
from moebox.serve.faults import describe_exit
from moebox.serve.session import EngineSession
from moebox.serve.watch import Notify
from moebox.units import format_seconds

POINT_S = 1.5  # decoding at each point, in seconds
STEP_LIMITS = (12, 768)  # at least and at most
MAX_LOOKS = 5  # at most, at one point
DRIFT = 0.05  # by which the first point may differ when it is timed again at the end
WARM = 16  # tokens decoded before anything counts
WARM_S = 8.0  # longest prompt that is read for that alone


@dataclass(slots=True, kw_only=True)
class BootMeasurement:
    """A boot in the making; what it holds when it is interrupted is what was measured."""

    depth: BootDepth
    chunk: int  # prompt tokens a step
    ggml: bool = False  # see timing.Target
    known: Boot | None = None  # an earlier boot: the same points are timed, no others
    longest: int = 0  # tokens of one request, prompt and reply
    pace_s: float = 0.0  # of a step, as far as it is known before the first look
    looks: dict[TimingPoint, list[DecodeStep]] = field(default_factory=dict)
    prompts: dict[TimingPoint, list[PrefillStep]] = field(default_factory=dict)
    drift: float = 0.0  # by which speed moved while it was measured
    notes: list[str] = field(default_factory=list)
    weights_bytes: int = 0
    cache_tokens: int = 0
    startup_s: float = 0.0

    @property
    def decode(self) -> list[DecodeStep]:
        """Every point by what its looks agree on."""
        return [timing.combine_looks(looks) for looks in self.looks.values()]

    @property
    def prefill(self) -> list[PrefillStep]:
        """Every prompt by what its looks agree on; one that was seen once is doubted by half of what speed moved by."""
        return [doubted(timing.combine_looks(looks), len(looks), self.drift) for looks in self.prompts.values()]

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

    def is_wanted(self, point: TimingPoint) -> bool:
        """Whether the earlier boot has this point, or there is none."""
        if self.known is None:
            return True
        prompts = {TimingPoint(context=prompt.tokens) for prompt in self.known.prefill}
        steps = {TimingPoint(batch=step.batch, context=step.context) for step in self.known.decode}
        return point in prompts | steps

    def estimate_prefill_s(self, tokens: int) -> float:
        """About how long so many prompt tokens take to read."""
        rates = [prompt.seconds / prompt.tokens for prompt in self.prefill]
        return tokens * min(rates) if rates else 0.0

    def step_count(self, point: TimingPoint) -> int:
        """How many steps are decoded at a point: for about as long everywhere, and no more than its own context.

        So that most of the context is the prompt's, and none beyond what a request may hold.
        """
        alike = [step.seconds for step in self.decode if step.batch <= point.batch]
        pace = max(alike, default=self.pace_s)
        least, most = STEP_LIMITS
        wanted = max(least, min(most, point.context, round(POINT_S / pace))) if pace else 2 * least
        room = self.longest - point.context - timing.lead_tokens(point.batch, point.context, self.chunk)
        return max(timing.LEAST_STEPS, min(wanted, room)) if self.longest else wanted

    def time_point(self, target: timing.TimedEngine, point: TimingPoint, deadline: float) -> None:
        """Time a point, once more or for the first time: a step of streams, or a prompt alone."""
        if not point.batch:
            prompt = timing.time_prefill(target, point.context, deadline=deadline)
            self.prompts.setdefault(point, []).append(prompt)
            return
        steps, room = self.step_count(point), max(self.longest - point.context, 0)
        step = timing.time_decode(target, point.batch, point.context, chunk=self.chunk, steps=steps, room=room)
        self.looks.setdefault(point, []).append(step)

    def doubtful_points(self, *, all_again: bool) -> list[TimingPoint]:
        """Points that need another look, the quickest first: their shortest two differ, or one look is no proof.

        A step never is settled by one: another program that is busy for as long slows it evenly. A prompt has several
        tries in a look, and a long one is hardly disturbed.
        """
        steps = [point for point, looks in self.looks.items() if needs_another_look(looks)]
        prompts = [
            point
            for point, looks in self.prompts.items()
            if needs_another_look(looks, once=not all_again and looks[0].seconds >= timing.SHORT_S)
        ]
        return sorted([*prompts, *steps], key=self.estimate_s)

    def note_drift(self, off: float) -> None:
        """Doubt what was measured while speed moved."""
        text = f"{self.depth.text}: speed drifted by {off:+.0%} while it was measured; repeated, band widened"
        self.notes.append(text)
        self.drift = off

    def estimate_s(self, point: TimingPoint) -> float:
        """About how long a look takes."""
        return self.estimate_prefill_s(point.context * max(point.batch, 1)) + POINT_S


def doubted(prompt: PrefillStep, looks: int, drift: float) -> PrefillStep:
    """`prompt` with what a drift may have done to it; further looks, after the drift, show that themselves."""
    return replace(prompt, spread=max(prompt.spread, abs(drift) / 2)) if looks == 1 else prompt


def needs_another_look(looks: Sequence[DecodeStep | PrefillStep], *, once: bool = False) -> bool:
    """Whether these looks do not settle how long a step or a prompt takes; `once`: a single quiet one does."""
    if len(looks) >= MAX_LOOKS:
        return False
    if len(looks) > 1:
        return timing.look_disagreement([step.seconds for step in looks]) > timing.QUIET
    return not once or looks[0].spread > timing.QUIET


def measure_boot(
    work: BootMeasurement, session: EngineSession, model: Model, *, deadline: float, notify: Notify
) -> None:
    """Time every point of the grid, then the first again; raises AnswerIsNo when the engine dies of it."""
    copy_engine_facts(work, session, model)
    target = timing.TimedEngine(endpoint=session.endpoint, vocab=model.vocab, ggml=work.ggml)
    points = timing_grid(session.recipe, chunk=work.chunk, longest=work.longest, cache_tokens=work.cache_tokens)
    points = [point for point in points if work.is_wanted(point)]
    notify(f"{work.depth.text}: up after {format_seconds(session.startup_s)}; timing {len(points)} kinds of step")
    try:
        work.pace_s = warm_up(target, points)
        time_points(work, target, points, deadline=deadline, notify=notify)
        repeat_doubtful(work, target, deadline=deadline)
    except ExternalError as problem:
        raise explain_failure(session, work, problem) from None


def copy_engine_facts(work: BootMeasurement, session: EngineSession, model: Model) -> None:
    """What the engine said of itself at its start."""
    facts = session.facts
    work.startup_s = session.startup_s
    work.weights_bytes = round(max(place.weights_bytes or 0.0 for place in (facts, *facts.devices)))
    work.cache_tokens = round(facts.kv_tokens or 0.0)
    longest = min(int(facts.context or 0) or session.recipe.context or model.context, model.context)
    work.longest = min(longest, work.longest or longest)


def warm_up(target: timing.TimedEngine, points: list[TimingPoint]) -> float:
    """Prompts from short to long, and the widest batch: kernels are compiled and pages are read before anything counts.

    An engine so slow that a prompt would take long is not kept reading for the sake of it. Returns about the seconds
    of a step of one stream.
    """
    took, last, pace = 0.0, 0, 0.0
    for tokens in sorted({point.context for point in points}):
        if last and took * tokens / last > WARM_S:
            break
        began = time.monotonic()
        streams = timing.run_together(target, [target.request_body(tokens, WARM)])
        took, last = time.monotonic() - began, tokens
        gaps = timing.shared_gaps([stream.times for stream in streams])
        pace = statistics.median(gaps) if gaps else pace
    widest = max(point.batch for point in points)
    timing.run_together(target, [target.request_body(16, WARM, slot=slot) for slot in range(max(widest, 1))])
    return pace


def time_points(
    work: BootMeasurement, target: timing.TimedEngine, points: list[TimingPoint], *, deadline: float, notify: Notify
) -> None:
    """Every point for which there is time."""
    left_out = 0
    for number, point in enumerate(points, 1):
        takes = work.estimate_prefill_s(point.context * max(point.batch, 1))
        needed = not work.looks and point.batch == 1  # without the first step nothing can be said
        if time.monotonic() + takes > deadline and not needed:
            left_out += 1
            continue
        if number == 1 or number % 5 == 0:
            notify(f"{work.depth.text}: {number} of {len(points)}, {point.text}, {left(deadline)}")
        look_once(work, target, point, deadline, needed=needed)
    if left_out:
        work.notes.append(f"{work.depth.text}: {left_out} of {len(points)} kinds of step left out, time was up")


def look_once(
    work: BootMeasurement, target: timing.TimedEngine, point: TimingPoint, deadline: float, *, needed: bool
) -> None:
    """One look; a point that cannot be timed is noted and left out, unless it is needed."""
    try:
        work.time_point(target, point, deadline)
    except timing.StreamsNotConcurrent as problem:
        if needed:
            raise
        work.notes.append(f"{work.depth.text}: left out: {problem.message}")


def repeat_doubtful(work: BootMeasurement, target: timing.TimedEngine, *, deadline: float) -> None:
    """Further looks, minutes after the first: at steps and short prompts, and at everything where speed has moved.

    What a busy host adds comes and goes, so looks lie apart: all points once, then all doubtful ones once more.
    """
    first = next(iter(work.looks), None)
    if first is None:
        return
    work.time_point(target, first, deadline)
    sooner, later = (step.seconds for step in work.looks[first])
    off = later / sooner - 1
    drifted = abs(off) > DRIFT
    for _ in range(MAX_LOOKS - 1):
        look_again(work, target, work.doubtful_points(all_again=drifted), deadline)
    if drifted:
        work.note_drift(off)


def look_again(work: BootMeasurement, target: timing.TimedEngine, points: list[TimingPoint], deadline: float) -> None:
    """Every point once more for which there is time."""
    for point in points:
        if time.monotonic() + work.estimate_s(point) < deadline:
            with contextlib.suppress(timing.StreamsNotConcurrent):  # an earlier look stands
                work.time_point(target, point, deadline)


def explain_failure(
    session: EngineSession, work: BootMeasurement, problem: ExternalError
) -> AnswerIsNo | ExternalError:
    """A failed request in the words of what really happened."""
    session.wait_for_cause()
    cause = session.watch.search.cause
    hint = f"{cause.cause} {cause.remedy}" if cause else f"the log is {session.log}"
    if session.is_alive:
        return AnswerIsNo(f"{problem.message} ({work.depth.text})", hint=hint)
    how = describe_exit(session.instance.guard_state.code)
    return AnswerIsNo(f"{session.recipe.engine} {how} while {work.depth.text} were measured", hint=hint)


def left(deadline: float) -> str:
    """Time until this boot must be done."""
    return f"{format_seconds(max(deadline - time.monotonic(), 0))} left for this boot at most"
