"""Time the steps of one boot, until all are timed or its time is up."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moebox.core.calibration import Boot, DecodeStep, PrefillStep, StepT
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.detect.conditions import ConditionsWatch, server_processes
from moebox.errors import AnswerIsNo, ExternalError
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_recipe import BootDepth
from moebox.flows.recipes import PHANTOM
from moebox.phantom import ENDLESS_TEXT
from moebox.serve.faults import describe_exit
from moebox.serve.session import EngineSession
from moebox.serve.watch import Notify
from moebox.units import format_seconds, plural

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (256, 4096, 16384)
PROMPTS = (128, 512, 2048)
LONG = 2.5  # the longest prompt, in chunks, to show attention to earlier chunks
MOST_TOKENS = 262_144  # cached in one point; more would only cost time for prompts
POINT_S = 1.5  # decoding at each point, in seconds
STEP_LIMITS = (12, 768)  # at least and at most
MAX_LOOKS = 5  # timings of one point
DRIFT = 0.05  # allowed difference of the first point when it is timed again at the end
WARM = 16  # tokens decoded for warm-up
WARM_S = 8.0  # longest prompt of the warm-up


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPoint:
    """A step to time: a prompt alone (`batch` 0), or `batch` streams decoding."""

    batch: int = 0
    context: int  # the prompt's tokens

    @property
    def text(self) -> str:
        if not self.batch:
            return f"a prompt of {self.context:,} tokens"
        return f"{plural(self.batch, 'stream')} at {self.context:,} tokens"


def timing_grid(recipe: Recipe, *, chunk: int, longest: int, cache_tokens: int) -> list[TimingPoint]:
    """All points, the most important first, because time may run out.

    `longest`: tokens of one request, prompt and reply; `cache_tokens`: of all requests together.
    """
    longest = max(longest - 192, 16)  # room for the reply
    room = min(MOST_TOKENS, cache_tokens or MOST_TOKENS)
    shortest, *longer = CONTEXTS
    contexts = sorted({min(shortest, longest // 4), *(min(size, longest) for size in longer)})
    prompts = sorted({min(size, longest) for size in (*PROMPTS, chunk, round(LONG * chunk))})
    sizes = [size for size in BATCHES if size <= recipe.slots]
    if recipe.slots not in sizes and recipe.slots <= BATCHES[-1]:
        sizes.append(recipe.slots)
    batches = order_outer_first(sizes)
    decode = [
        TimingPoint(batch=size, context=context)
        for context in (contexts[0], *reversed(contexts[1:]))
        for size in batches
        if size * context <= room
    ]
    reading = [TimingPoint(context=tokens) for tokens in order_outer_first(prompts)]
    first, second = reading[:1] + decode[:2], reading[1:3]
    return [*first, *second, *reading[3:], *decode[2:]]


def order_outer_first(sizes: list[int]) -> list[int]:
    """Order sizes from the ends to the middle, widest gap first: 1 64 8 2 32 4 16."""
    left = sorted(sizes)
    taken = [left[0], left[-1]] if len(left) > 1 else left
    while len(taken) < len(left):
        known = sorted(taken)
        gaps = [(left.index(high) - left.index(low), low, high) for low, high in itertools.pairwise(known)]
        _, low, high = max(gaps)
        taken.append(left[(left.index(low) + left.index(high)) // 2])
    return taken


@dataclass(slots=True, kw_only=True)
class BootMeasurement:
    depth: BootDepth
    chunk: int  # prompt tokens per step
    ggml: bool = False  # see timing.TimedEngine
    known: Boot | None = None  # an earlier boot: only its points are timed
    longest: int = 0  # tokens of one request, prompt and reply
    pace_s: float = 0.0  # of a step, estimated in the warm-up
    looks: dict[TimingPoint, list[DecodeStep]] = field(default_factory=dict)
    prompts: dict[TimingPoint, list[PrefillStep]] = field(default_factory=dict)
    drift: float = 0.0  # of the speed while it was measured
    left_out: int = 0  # kinds of step for which there was no time
    disturbed: tuple[str, ...] = ()  # by other programs while it was measured
    doubt: float = 0.0  # that this leaves
    notes: list[str] = field(default_factory=list)
    weights_bytes: int = 0
    cache_tokens: int = 0
    startup_s: float = 0.0

    @property
    def decode(self) -> list[DecodeStep]:
        """The combined timings of every point. The error of a single timing is at least the drift."""
        return [self._combine_looks(looks, abs(self.drift)) for looks in self.looks.values()]

    @property
    def prefill(self) -> list[PrefillStep]:
        """The combined timings of every prompt. The error of a single timing includes half of the drift."""
        return [self._combine_looks(looks, abs(self.drift) / 2) for looks in self.prompts.values()]

    @staticmethod
    def _combine_looks(looks: Sequence[StepT], least: float) -> StepT:
        """Combine the timings of a point; `least` is the least error of a single one."""
        found = timing.combine_looks(looks)
        return replace(found, spread=max(found.spread, least)) if len(looks) == 1 else found

    @property
    def boot(self) -> Boot:
        return Boot(
            layers=self.depth.layers,
            gpu_experts=self.depth.gpu_experts,
            decode=tuple(self.decode),
            prefill=tuple(self.prefill),
            weights_bytes=self.weights_bytes,
            cache_tokens=self.cache_tokens,
            startup_s=round(self.startup_s, 1),
            drift=round(self.drift, 3),
            left_out=self.left_out,
        )

    def should_time(self, point: TimingPoint) -> bool:
        """Whether the earlier boot has this point, or there is no earlier boot."""
        if self.known is None:
            return True
        prompts = {TimingPoint(context=prompt.tokens) for prompt in self.known.prefill}
        steps = {TimingPoint(batch=step.batch, context=step.context) for step in self.known.decode}
        return point in prompts | steps

    def estimate_prefill_s(self, tokens: int) -> float:
        """The estimated time to read so many prompt tokens."""
        rates = [prompt.seconds / prompt.tokens for prompt in self.prefill]
        return tokens * min(rates) if rates else 0.0

    def step_count(self, point: TimingPoint) -> int:
        """How many steps to decode at a point: about POINT_S, and at most its context, so that most is prompt."""
        pace = max((step.seconds for step in self.decode if step.batch <= point.batch), default=self.pace_s)
        least, most = STEP_LIMITS
        wanted = max(least, min(most, point.context, round(POINT_S / pace))) if pace else 2 * least
        room = self.longest - point.context - timing.lead_tokens(point.batch, point.context, self.chunk)
        return max(timing.LEAST_STEPS, min(wanted, room)) if self.longest else wanted

    def time_point(self, target: timing.TimedEngine, point: TimingPoint, deadline: float) -> None:
        """Time a point: a step of streams, or a prompt alone."""
        if not point.batch:
            prompt = timing.time_prefill(target, point.context, deadline=deadline)
            self.prompts.setdefault(point, []).append(prompt)
            return
        steps, room = self.step_count(point), max(self.longest - point.context, 0)
        step = timing.time_decode(target, point.batch, point.context, chunk=self.chunk, steps=steps, room=room)
        self.looks.setdefault(point, []).append(step)

    def doubtful_points(self, *, all_again: bool) -> list[TimingPoint]:
        """Points to time again, the quickest first: their two shortest timings differ, or there is only one.

        One timing of a step is never enough: another program may slow all of it evenly. A timing of a prompt has
        several tries, and a long prompt is hardly disturbed.
        """
        steps = [point for point, looks in self.looks.items() if needs_another_look(looks)]
        prompts = [
            point
            for point, looks in self.prompts.items()
            if needs_another_look(looks, once=not all_again and looks[0].seconds >= timing.SHORT_S)
        ]
        return sorted([*prompts, *steps], key=self.estimate_s)

    def estimate_s(self, point: TimingPoint) -> float:
        return self.estimate_prefill_s(point.context * max(point.batch, 1)) + POINT_S


def needs_another_look(looks: Sequence[DecodeStep | PrefillStep], *, once: bool = False) -> bool:
    """Whether these timings disagree, or are too few; with `once` a single quiet one is enough."""
    if len(looks) >= MAX_LOOKS:
        return False
    if len(looks) > 1:
        return timing.look_disagreement([step.seconds for step in looks]) > timing.QUIET
    return not once or looks[0].spread > timing.QUIET


def time_boot(work: BootMeasurement, session: EngineSession, model: Model, *, deadline: float, notify: Notify) -> None:
    """Time every point of the grid, then doubtful ones again. Raise AnswerIsNo if the engine dies."""
    facts = session.facts
    work.startup_s = session.startup_s
    work.weights_bytes = round(max(device.weights_bytes or 0.0 for device in (facts, *facts.devices)))
    work.cache_tokens = round(facts.kv_tokens or 0.0)
    longest = min(int(facts.context or 0) or session.recipe.context or model.context, model.context)
    work.longest = min(longest, work.longest or longest)
    extra = ENDLESS_TEXT if work.ggml and session.recipe.model == PHANTOM else {}
    target = timing.TimedEngine(
        endpoint=session.endpoint, vocab=model.vocab, ggml=work.ggml, extra=extra, deadline=deadline
    )
    points = timing_grid(session.recipe, chunk=work.chunk, longest=work.longest, cache_tokens=work.cache_tokens)
    points = [point for point in points if work.should_time(point)]
    notify(f"{work.depth.text}: up after {format_seconds(session.startup_s)}; timing {len(points)} kinds of step")
    conditions = ConditionsWatch(server_processes(session.endpoint.server_url))
    try:
        work.pace_s = warm_up(target, points)
        with conditions:
            time_points(work, target, points, deadline=deadline, notify=notify)
            repeat_doubtful(work, target, deadline=deadline)
    except ExternalError as problem:
        if time.monotonic() >= deadline and session.is_alive:  # requests end with the budget
            if not work.looks:
                text = f"the budget ended before a step of {work.depth.text} was timed"
                raise AnswerIsNo(text, hint="give it a longer --budget") from None
            work.notes.append(f"{work.depth.text}: the budget ended before every step was timed as often as needed")
            work.left_out = max(work.left_out, 1)
            return
        hint = session.explain_failure()
        if session.is_alive:
            raise AnswerIsNo(f"{problem.message} ({work.depth.text})", hint=hint) from None
        how = describe_exit(session.instance.guard_state.code)
        text = f"{session.recipe.engine} {how} while {work.depth.text} were measured"
        raise AnswerIsNo(text, hint=hint) from None
    finally:  # a GPU's power limit holds for every load, so it disturbs none
        seen = conditions.result()
        work.disturbed = tuple(line for line in seen.disturbances() if "power cap" not in line)
        work.doubt = seen.doubt()


def warm_up(target: timing.TimedEngine, points: list[TimingPoint]) -> float:
    """Send prompts from short to long and the widest batch, so that kernels are compiled and pages read.

    Prompts that would take longer than WARM_S are left out. Return the estimated seconds of a step of one stream.
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
    for number, point in enumerate(points, 1):
        takes = work.estimate_prefill_s(point.context * max(point.batch, 1))
        needed = not work.looks and point.batch == 1  # nothing is known without the first step
        if time.monotonic() + takes > deadline and not needed:
            work.left_out += 1
            continue
        if number == 1 or number % 5 == 0:
            left = format_seconds(max(deadline - time.monotonic(), 0))
            notify(f"{work.depth.text}: {number} of {len(points)}, {point.text}, {left} left for this boot at most")
        try:
            work.time_point(target, point, deadline)
        except timing.StreamsNotConcurrent as problem:
            if needed:
                raise
            work.notes.append(f"{work.depth.text}: left out: {problem.message}")
    if work.left_out:
        work.notes.append(f"{work.depth.text}: {work.left_out} of {len(points)} kinds of step left out, time was up")


def repeat_doubtful(work: BootMeasurement, target: timing.TimedEngine, *, deadline: float) -> None:
    """Time doubtful points again, and all points if the speed has drifted.

    A busy host disturbs for a while, so timings of one point lie apart: all points once, then the doubtful ones.
    """
    first = next(iter(work.looks), None)
    if first is None:
        return
    work.time_point(target, first, deadline)
    sooner, later = (step.seconds for step in work.looks[first])
    off = later / sooner - 1
    drifted = abs(off) > DRIFT
    for _ in range(MAX_LOOKS - 1):
        for point in work.doubtful_points(all_again=drifted):
            if time.monotonic() + work.estimate_s(point) < deadline:
                with contextlib.suppress(timing.StreamsNotConcurrent):  # an earlier timing stands
                    work.time_point(target, point, deadline)
    if drifted:
        text = f"{work.depth.text}: speed drifted by {off:+.0%} while it was measured; repeated, range widened"
        work.notes.append(text)
        work.drift = off
