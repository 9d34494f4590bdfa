"""Time the steps of one boot, until all are timed or its time is up."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moebox.checkpoint import deploy
from moebox.core.box import Box
from moebox.core.calibration import Boot, DecodeStep, PrefillStep
from moebox.core.model import Model
from moebox.core.recipe import Recipe
from moebox.detect import nvml
from moebox.detect.conditions import ConditionsWatch, server_processes
from moebox.errors import AnswerIsNo, ExternalError
from moebox.flows import calibrate_timing as timing
from moebox.flows.calibrate_timing import StepLook, TimedEngine
from moebox.flows.recipes import PHANTOM
from moebox.flows.rehearse import reads_gguf
from moebox.phantom import ENDLESS_TEXT
from moebox.serve.faults import describe_exit
from moebox.serve.order import recipe_gpus
from moebox.serve.session import EngineSession
from moebox.serve.watch import Notify
from moebox.units import format_gib, format_seconds, plural

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
    return [*reading[:1], *decode[:2], *reading[1:], *decode[2:]]


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
    planned: Boot  # its depth; once it is up, also its weights, cache and start
    chunk: int  # prompt tokens per step
    known: Boot | None = None  # an earlier boot: only its points are timed
    longest: int = 0  # tokens of one request, prompt and reply
    routing_s: float = 0.0  # of a decode step, that even routing adds
    pace_s: float = 0.0  # of a step, estimated in the warm-up
    looks: dict[TimingPoint, list[StepLook]] = field(default_factory=dict)
    drift: float = 0.0  # of the speed while it was measured
    left_out: int = 0  # kinds of step for which there was no time
    disturbed: tuple[str, ...] = ()  # by other programs while it was measured
    doubt: float = 0.0  # that this leaves
    notes: list[str] = field(default_factory=list)

    @property
    def timings(self) -> dict[TimingPoint, StepLook]:
        """The combined looks at every point. The error of a single one is at least the drift, half for a prompt."""
        found = {}
        for point, looks in self.looks.items():
            both = timing.combine_looks(looks)
            least = abs(self.drift) / (1 if point.batch else 2) if len(looks) == 1 else 0.0
            found[point] = StepLook(both.seconds, max(both.spread, least))
        return found

    @property
    def first_step(self) -> TimingPoint | None:
        """The first point of streams that was timed; nothing is known without one."""
        return next((point for point in self.looks if point.batch), None)

    @property
    def boot(self) -> Boot:
        decode, prefill = [], []
        for point, look in self.timings.items():
            seconds, spread = look.seconds, look.spread
            if point.batch:
                seconds -= min(self.routing_s, seconds / 2)
                decode.append(DecodeStep(batch=point.batch, context=point.context, seconds=seconds, spread=spread))
            else:
                prefill.append(PrefillStep(tokens=point.context, seconds=seconds, spread=spread))
        timed = replace(self.planned, decode=tuple(decode), prefill=tuple(prefill))
        return replace(timed, drift=round(self.drift, 3), left_out=self.left_out)

    def estimate_prompts_s(self, point: TimingPoint) -> float:
        rates = [look.seconds / known.context for known, look in self.timings.items() if not known.batch]
        return point.context * max(point.batch, 1) * min(rates, default=0.0)

    def step_count(self, point: TimingPoint) -> int:
        """How many steps to decode at a point: about POINT_S, and at most its context, so that most is prompt."""
        paces = (look.seconds for known, look in self.timings.items() if 0 < known.batch <= point.batch)
        pace, (least, most) = max(paces, default=self.pace_s), STEP_LIMITS
        wanted = max(least, min(most, point.context, round(POINT_S / pace))) if pace else 2 * least
        room = self.longest - point.context - timing.lead_tokens(point.batch, point.context, self.chunk)
        return max(timing.LEAST_STEPS, min(wanted, room)) if self.longest else wanted

    def time_point(self, target: TimedEngine, point: TimingPoint) -> None:
        if point.batch:
            steps, room = self.step_count(point), max(self.longest - point.context, 0)
            look = timing.time_decode(target, point.batch, point.context, chunk=self.chunk, steps=steps, room=room)
        else:
            look = timing.time_prefill(target, point.context)
        self.looks.setdefault(point, []).append(look)

    def doubtful_points(self, *, all_again: bool) -> list[TimingPoint]:
        """Points to time again, the quickest first: their two shortest timings differ, or there is only one.

        One timing of a step is never enough: another program may slow all of it evenly. A timing of a prompt has
        several tries, and a long prompt is hardly disturbed.
        """

        def is_doubtful(point: TimingPoint) -> bool:
            is_long = not point.batch and self.looks[point][0].seconds >= timing.SHORT_S
            return needs_another_look(self.looks[point], once=is_long and not all_again)

        return sorted(filter(is_doubtful, self.looks), key=self.estimate_prompts_s)


def needs_another_look(looks: Sequence[StepLook], *, once: bool = False) -> bool:
    """Whether these timings disagree, or are too few; with `once` a single quiet one is enough."""
    if len(looks) >= MAX_LOOKS:
        return False
    if len(looks) > 1:
        return timing.look_disagreement([look.seconds for look in looks]) > timing.QUIET
    return not once or looks[0].spread > timing.QUIET


def time_boot(work: BootMeasurement, session: EngineSession, model: Model, *, deadline: float, notify: Notify) -> None:
    """Time every point of the grid, then doubtful ones again. Raise AnswerIsNo if the engine dies."""
    facts = session.facts
    weights = max(device.weights_bytes or 0.0 for device in (facts, *facts.devices))
    cache, startup_s = round(facts.kv_tokens or 0.0), round(session.startup_s, 1)
    work.planned = replace(work.planned, weights_bytes=round(weights), cache_tokens=cache, startup_s=startup_s)
    longest = min(int(facts.context or 0) or session.recipe.context or model.context, model.context)
    work.longest = min(longest, work.longest or longest)
    ggml = reads_gguf(session.recipe)
    extra = ENDLESS_TEXT if ggml and session.recipe.model == PHANTOM else {}
    target = TimedEngine(endpoint=session.endpoint, vocab=model.vocab, ggml=ggml, extra=extra, deadline=deadline)
    points = timing_grid(session.recipe, chunk=work.chunk, longest=work.longest, cache_tokens=cache)
    if work.known:
        known = {TimingPoint(context=prompt.tokens) for prompt in work.known.prefill}
        known |= {TimingPoint(batch=step.batch, context=step.context) for step in work.known.decode}
        points = [point for point in points if point in known]
    notify(f"{work.planned.text}: up after {format_seconds(session.startup_s)}; timing {len(points)} kinds of step")
    conditions = ConditionsWatch(server_processes(session.endpoint.server_url))
    try:
        work.pace_s = warm_up(target, points)
        with conditions:
            time_points(work, target, points, notify)
            repeat_doubtful(work, target)
    except ExternalError as problem:
        if time.monotonic() >= deadline and session.is_alive:  # requests end with the budget
            if work.first_step is None:
                text = f"the budget ended before a step of {work.planned.text} was timed"
                raise AnswerIsNo(text, hint="give it a longer --budget") from None
            work.notes.append(f"{work.planned.text}: the budget ended before every step was timed as often as needed")
            work.left_out = max(work.left_out, 1)
            return
        text, hint = f"{problem.message} ({work.planned.text})", session.explain_failure()
        if not session.is_alive:
            how = describe_exit(session.instance.guard_state.code)
            text = f"{session.recipe.engine} {how} while {work.planned.text} were measured"
        raise AnswerIsNo(text, hint=hint) from None
    finally:  # a GPU's power limit holds for every load, so it disturbs none
        seen = conditions.result()
        work.disturbed = tuple(line for line in seen.disturbances() if "power cap" not in line)
        work.doubt = seen.doubt()


def warm_up(target: TimedEngine, points: list[TimingPoint]) -> float:
    """Send prompts from short to long and the widest batch, so that kernels are compiled and pages read.

    Prompts that would take longer than WARM_S are left out. Return the estimated seconds of a step of one stream.
    """
    took, last, pace = 0.0, 0, 0.0
    for tokens in sorted({point.context for point in points}):
        if last and took * tokens / last > WARM_S:
            break
        began = time.monotonic()
        streams = timing.run_together(target, tokens, WARM)
        took, last = time.monotonic() - began, tokens
        gaps = timing.shared_gaps([times for _, times in streams])
        pace = statistics.median(gaps) if gaps else pace
    widest = max(point.batch for point in points)
    timing.run_together(target, 16, WARM, batch=max(widest, 1))
    return pace


def time_points(work: BootMeasurement, target: TimedEngine, points: list[TimingPoint], notify: Notify) -> None:
    for number, point in enumerate(points, 1):
        needed = work.first_step is None and point.batch == 1
        if time.monotonic() + work.estimate_prompts_s(point) > target.deadline and not needed:
            work.left_out += 1
            continue
        if number == 1 or number % 5 == 0:
            left = format_seconds(max(target.deadline - time.monotonic(), 0))
            notify(f"{work.planned.text}: {number} of {len(points)}, {point.text}, {left} left for this boot at most")
        try:
            work.time_point(target, point)
        except timing.StreamsNotConcurrent as problem:
            if needed:
                raise
            work.notes.append(f"{work.planned.text}: left out: {problem.message}")
    if work.left_out:
        work.notes.append(f"{work.planned.text}: {work.left_out} of {len(points)} kinds of step left out, time was up")


def repeat_doubtful(work: BootMeasurement, target: TimedEngine) -> None:
    """Time doubtful points again, and all points if the speed has drifted.

    A busy host disturbs for a while, so timings of one point lie apart: all points once, then the doubtful ones.
    """
    first = work.first_step
    if first is None:
        return
    work.time_point(target, first)
    sooner, later = (look.seconds for look in work.looks[first])
    off = later / sooner - 1
    drifted = abs(off) > DRIFT
    for _ in range(MAX_LOOKS - 1):
        for point in work.doubtful_points(all_again=drifted):
            if time.monotonic() + work.estimate_prompts_s(point) + POINT_S < target.deadline:
                with contextlib.suppress(timing.StreamsNotConcurrent):  # an earlier timing stands
                    work.time_point(target, point)
    if drifted:
        text = f"{work.planned.text}: speed drifted by {off:+.0%} while it was measured; repeated, range widened"
        work.notes.append(text)
        work.drift = off


def gpu_processes(recipe: Recipe, box: Box) -> dict[tuple[int, int], str]:
    """A line for each process on the GPUs that the recipe uses, by GPU and process."""
    driver = nvml.load_nvml() if box.gpus else None
    used = recipe_gpus(deploy(recipe)) if driver else ()
    found = [(gpu, pid, size) for gpu in used for pid, size in nvml.gpu_processes(driver, gpu)]
    return {(gpu, pid): f"another process used GPU {gpu}: pid {pid}, {format_gib(size)}" for gpu, pid, size in found}
