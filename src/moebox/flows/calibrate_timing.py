"""Time the steps of a live engine through its endpoint: prompts alone, and streams that decode together.

Prompts are random token ids, so that no prefix is cached and their length is exact. A disturbance only ever adds time,
so a step is timed until its two shortest timings ("looks") agree.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.flows.pace import do_at_once
from moebox.loose import Document, Json
from moebox.serve.dummy import PROMPT_TOKENS
from moebox.stream.events import StreamEvent
from moebox.stream.exchange import StreamExchange
from moebox.units import plural

FIRST_ID = 512  # lower ids are bytes and control tokens in every known vocabulary
BLOCK_STEPS = 8  # at least, in a block: a pause of the server spoils only one block
BLOCKS = 4  # at least, if tokens come one by one
BUNCHES = 5  # at least, in a block, if they come in bunches because they were read late
AT_ONCE = 0.2  # of the mean gap: tokens closer to each other are one bunch
LEAST_STEPS = 8  # steps in which all streams must decode together
LONGER = (1, 3, 9)  # factors on the steps, while streams do not decode together
QUEUED = 1.5  # factor by which streams start further apart with longer replies: the last one waits in a queue
TIMEOUT_S = 300.0
TRIES = 3  # of a prompt; more while they disagree
LONG_S = 2.0  # a longer prompt is hardly disturbed: two tries that agree are enough
SHORT_S = 0.1  # a shorter prompt waits as long for the host as for its layers
MANY = 5  # times as many tries for that
CACHED = 0.05  # share of a prompt that may come from a prefix cache: the template
CHANCE = 4  # tokens that two random prompts may share by chance, if the cache has such short pages
QUIET = 0.02  # allowed difference of two looks, and relative standard error below which one is enough


class StreamsNotConcurrent(ExternalError):
    """The engine does not decode these streams in one step."""


@dataclass(frozen=True, slots=True)
class StepLook:
    """Seconds of a step or a prompt, and their standard error as a share."""

    seconds: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEngine:
    """A live engine, and the tokens of its prompts."""

    endpoint: Endpoint
    vocab: int
    # Output tokens are sampled, because the embedding decides which experts are used; streams take neighbouring slots,
    # because llama.cpp decodes only those in one step (on slots 0 and 2 two took 9.1 ms, on 0 and 1 6.5).
    ggml: bool = False
    extra: Json = field(default_factory=dict)  # merged into every request
    deadline: float = math.inf  # of every request, on the monotonic clock
    draw: random.Random = field(default_factory=lambda: random.Random(time.time_ns()))

    def draw_prompt(self, tokens: int) -> list[int]:
        """Random token ids, which no prefix cache has."""
        last = min(self.vocab, PROMPT_TOKENS)
        return self.draw.choices(range(min(FIRST_ID, last // 2), last), k=tokens)

    def request_body(self, prompt: int, output: int, *, slot: int = 0) -> Json:
        """A completion of exactly `output` tokens, in that slot if the engine has slots."""
        body: Document = {"model": self.endpoint.model, "prompt": self.draw_prompt(prompt), "max_tokens": output}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}, **self.extra}
        return {**body, "temperature": 1.0, "id_slot": slot} if self.ggml else {**body, "temperature": 0.0}


def record_stream(target: TimedEngine, body: Json) -> tuple[float, list[float]]:
    """Send a request. Return when it was sent and when its tokens came, on the monotonic clock."""
    sent, times = time.monotonic(), list[float]()
    left_s = max(target.deadline - sent, 0.01)
    idle_s = min(TIMEOUT_S, left_s)
    try:
        with StreamExchange(target.endpoint, body, path="/completions", timeout_s=idle_s, total_s=left_s) as exchange:
            for at, event in exchange:
                if problem := event.error or cache_problem(event):
                    raise ExternalError(problem)
                ends_only = bool(event.finish) and not event.text  # an event that only has the finish reason
                if event.data.get("choices") and not ends_only:
                    times.append(sent + at)
    except ExternalError as problem:
        raise ExternalError(f"a request failed while steps were timed: {problem.message}") from None
    return sent, times


def run_together(target: TimedEngine, prompt: int, output: int, *, batch: int = 1) -> list[tuple[float, list[float]]]:
    """Stream replies of `output` tokens to `batch` new prompts at once. Raise ExternalError if any of them fails."""
    bodies = [target.request_body(prompt, output, slot=slot) for slot in range(batch)]
    return do_at_once(partial(record_stream, target), bodies, at_once=batch)


def cache_problem(event: StreamEvent) -> str:
    """An error if the usage shows that the prompt came from a cache, or ""."""
    prompt, _, known = event.usage or (0, 0, 0)
    wrong = known > max(CACHED * prompt, CHANCE)
    return f"{known:,} of {prompt:,} prompt tokens came from the server's prefix cache" if wrong else ""


def time_prefill(target: TimedEngine, tokens: int) -> StepLook:
    """Time a prompt alone, a few times, until the shortest two agree or time is up."""
    looks: list[float] = []
    tries = TRIES
    while len(looks) < tries + 2:
        ((sent, times),) = run_together(target, tokens, 1)
        if not times:
            raise ExternalError(f"a prompt of {tokens:,} tokens returned no token")
        looks.append(times[0] - sent)
        tries = prompt_tries(min(looks))
        agreed = len(looks) >= tries and look_disagreement(looks) < QUIET
        if agreed or time.monotonic() + looks[-1] > target.deadline:
            break
    return StepLook(agreed_time(looks), max(look_disagreement(looks), relative_error(without_outliers(looks))))


def prompt_tries(seconds: float) -> int:
    """How often to send a prompt that takes so long, if its tries agree."""
    if seconds > LONG_S:
        return min(TRIES, 2)
    return TRIES * MANY if seconds < SHORT_S else TRIES


def time_decode(target: TimedEngine, batch: int, context: int, *, chunk: int, steps: int, room: int = 0) -> StepLook:
    """Time `batch` streams that decode together at `context`, for `steps` steps after the last has begun.

    The context grows with every step, so prompts are shorter by half of the steps, and `context` is the average.
    Streams that begin far apart on a busy host get longer replies, up to `room` tokens. If the last one then begins
    later, it waits for another's end in a queue, and longer replies do not help.
    """
    ahead, waited = lead_tokens(batch, context, chunk), math.inf
    prompt = max(context - steps // 2, 1)
    for more in LONGER:
        reply = ahead + steps * more
        times = [each for _, each in run_together(target, prompt, min(reply, room or reply), batch=batch)]
        gaps = shared_gaps(times)
        if len(gaps) >= min(LEAST_STEPS, steps) and any(gaps):
            return step_from_gaps(gaps)
        late = start_delay(times)
        if late > QUEUED * waited:
            break
        waited = late or math.inf
    never = f"never decoded together for {LEAST_STEPS} steps"
    raise StreamsNotConcurrent(f"{plural(batch, 'stream')} at {context:,} tokens {never}")


def start_delay(times: Sequence[Sequence[float]]) -> float:
    """Seconds between the first and the last start, if a stream ended before the last start; else 0."""
    begun = list(filter(None, times))
    if not begun:
        return 0.0
    starts, first_end = [stream[0] for stream in begun], min(stream[-1] for stream in begun)
    return max(starts) - min(starts) if max(starts) >= first_end else 0.0


def lead_tokens(batch: int, context: int, chunk: int) -> int:
    """Tokens that the first streams decode while later prompts are read: about one per chunk."""
    return math.ceil(batch * context / max(chunk, 1)) + 2


def step_from_gaps(gaps: Sequence[float]) -> StepLook:
    """The typical step: the median over blocks, so that pauses of the server do not count."""
    bunch = bunch_size(gaps)
    parts = len(gaps) // BLOCK_STEPS if bunch == 1 else len(gaps) // max(BLOCK_STEPS, BUNCHES * bunch)
    parts = max(1, min(max(parts, BLOCKS if bunch == 1 else 1), len(gaps)))
    edges = [round(place * len(gaps) / parts) for place in range(parts + 1)]
    blocks = [statistics.fmean(gaps[low:high]) for low, high in itertools.pairwise(edges)]
    return StepLook(statistics.median(blocks) or statistics.fmean(gaps), relative_error(without_outliers(blocks)))


def bunch_size(gaps: Sequence[float]) -> int:
    """The 90th percentile of bunch sizes: on a busy host tokens wait until they are read."""
    least, sizes = AT_ONCE * statistics.fmean(gaps), [1]
    for gap in gaps:
        if gap > least:
            sizes.append(1)
        else:
            sizes[-1] += 1
    tokens = sorted(size for size in sizes for _ in range(size))
    return tokens[math.ceil(0.9 * len(tokens)) - 1]


def combine_looks(looks: Sequence[StepLook]) -> StepLook:
    """Combine all timings of one point: the time of the shortest two, and their disagreement."""
    times = [look.seconds for look in looks]
    noise = min(looks, key=lambda look: look.seconds).spread
    return StepLook(agreed_time(times), max(noise, look_disagreement(times)))


def agreed_time(looks: Sequence[float]) -> float:
    """The mean of the two shortest looks if they agree, else the shortest."""
    two = sorted(looks)[:2]
    return statistics.fmean(two) if look_disagreement(looks) < QUIET else two[0]


def look_disagreement(looks: Sequence[float]) -> float:
    """The relative difference of the two shortest looks; 0 for a single one."""
    two = sorted(looks)[:2]
    return two[-1] / two[0] - 1


def shared_gaps(times: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each step while all streams were decoding, as the mean over streams."""
    if not all(times):
        return []
    begin, end = max(stream[0] for stream in times), min(stream[-1] for stream in times)
    shared = [[at for at in stream if begin <= at <= end] for stream in times]
    gaps = [[later - sooner for sooner, later in itertools.pairwise(inside)] for inside in shared]
    return list(map(statistics.fmean, zip(*gaps, strict=False)))


def without_outliers(values: Sequence[float]) -> list[float]:
    """Values within a fifth of the median, without page faults and bursts of other programs."""
    middle = statistics.median(values)
    return [value for value in values if abs(value - middle) <= 0.2 * middle] or [middle]


def relative_error(values: Sequence[float]) -> float:
    if len(values) < 2 or not any(values):
        return 0.05  # the noise of a single try is unknown
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)
