"""Steps of a live engine, timed through its own endpoint: prompts alone, and streams that decode together.

Prompts are token ids drawn anew for every request, so no prefix cache knows them and their length is exact.
Whatever disturbs a step only ever adds time, so a step is looked at until its two shortest looks agree.
"""

import itertools
import math
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from moebox.core.calibration import DecodeStep, PrefillStep, StepT
from moebox.core.endpoint import Endpoint
from moebox.errors import ExternalError
from moebox.loose import Json
from moebox.serve.dummy import PROMPT_TOKENS
from moebox.stream import StreamExchange
from moebox.stream.events import StreamEvent
from moebox.units import plural

FIRST_ID = 512  # below are bytes and control tokens in every vocabulary met so far
BLOCK_STEPS = 8  # steps of a block at least: a pause of the server spoils one block alone
BLOCKS = 4  # at least, where tokens come one by one
BUNCHES = 5  # in a block at least, where they come in bunches because nobody was there to read them
AT_ONCE = 0.2  # of the mean gap: tokens closer to each other came in one bunch
LEAST_STEPS = 8  # steps in which all streams must decode together
LONGER = (1, 3, 9)  # times the steps, while streams do not decode together
QUEUED = 1.5  # times further apart than before do streams begin, when longer replies make the last one wait longer
TIMEOUT_S = 300.0
TRIES = 3  # of a prompt; more while they disagree
LONG_S = 2.0  # a prompt that takes as long is hardly disturbed: two tries that agree are enough
SHORT_S = 0.1  # one that takes less waits for the host as long as for its layers, and is tried
MANY = 5  # times as often
CACHED = 0.05  # share of a prompt that may come from a prefix cache: a template
CHANCE = 4  # tokens that two drawn prompts may share by chance at their beginning, where a cache's pages are that short
QUIET = 0.02  # by which two looks may differ, and the relative standard error below which one is enough


class StreamsNotConcurrent(ExternalError):
    """Streams that the engine does not decode in one step: there is no such step to time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEngine:
    """A live engine with what its prompts may be made of."""

    endpoint: Endpoint
    vocab: int
    # Tokens are drawn at random, because the embedding decides which experts are used; and streams take neighbouring
    # slots, because llama.cpp decodes no others in one step (on slots 0 and 2 two took 9.1 ms, on 0 and 1 6.5).
    ggml: bool = False
    draw: random.Random = field(default_factory=lambda: random.Random(time.time_ns()))

    def draw_prompt(self, tokens: int) -> list[int]:
        """`tokens` ids that were never sent before."""
        last = min(self.vocab, PROMPT_TOKENS)
        first = min(FIRST_ID, last // 2)
        return self.draw.choices(range(first, last), k=tokens)

    def request_body(self, prompt: int, output: int, *, slot: int = 0) -> Json:
        """A completion that decodes exactly `output` tokens, whatever they are; in that slot where there are any."""
        return {
            "model": self.endpoint.model,
            "prompt": self.draw_prompt(prompt),
            "max_tokens": output,
            "temperature": 1.0 if self.ggml else 0.0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **({"id_slot": slot} if self.ggml else {}),
        }


@dataclass(slots=True)
class TokenTimes:
    """When the tokens of one request came, in seconds of the monotonic clock; or why they did not."""

    times: list[float] = field(default_factory=list)
    error: str = ""
    sent: float = 0.0


def record_stream(target: TimedEngine, body: Json, out: TokenTimes) -> None:
    """Send one request and note its tokens."""
    out.sent = time.monotonic()
    try:
        with StreamExchange(target.endpoint, body, path="/completions", timeout_s=TIMEOUT_S) as exchange:
            for at, event in exchange:
                problem = event.error or cache_problem(event)
                out.error = problem or out.error
                if not problem and is_token(event):
                    out.times.append(out.sent + at)
    except ExternalError as problem:
        out.error = problem.message


def cache_problem(event: StreamEvent) -> str:
    """That the prompt was not read, where the usage says so."""
    prompt, _, known, _ = event.usage or (0, 0, 0, 0)
    wrong = known > max(CACHED * prompt, CHANCE)
    return f"{known:,} of {prompt:,} prompt tokens came from the server's prefix cache" if wrong else ""


def is_token(event: StreamEvent) -> bool:
    """Whether an event of a completion is a token: one that only says why it ends is none."""
    return bool(event.data.get("choices")) and (bool(event.text) or not event.finish)


def run_together(target: TimedEngine, bodies: Sequence[Json]) -> list[TokenTimes]:
    """All requests at once; raises Outside when any of them fails."""
    streams = [TokenTimes() for _ in bodies]
    threads = [
        threading.Thread(target=record_stream, args=(target, body, stream), daemon=True)
        for body, stream in zip(bodies, streams, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        if stream.error:
            raise ExternalError(f"a request failed while steps were timed: {stream.error}")
    return streams


def time_prefill(target: TimedEngine, tokens: int, *, deadline: float) -> PrefillStep:
    """A new prompt alone, a few times, until the shortest two agree or time is up."""
    looks: list[float] = []
    tries = TRIES
    while len(looks) < tries + 2:
        stream = run_together(target, [target.request_body(tokens, 1)])[0]
        if not stream.times:
            raise ExternalError(f"a prompt of {tokens:,} tokens brought no token")
        looks.append(stream.times[0] - stream.sent)
        tries = prompt_tries(min(looks))
        agreed = len(looks) >= tries and look_disagreement(looks) < QUIET
        if agreed or time.monotonic() + looks[-1] > deadline:
            break
    return PrefillStep(
        tokens=tokens,
        seconds=agreed_time(looks),
        spread=max(look_disagreement(looks), relative_error(without_outliers(looks))),
    )


def prompt_tries(seconds: float) -> int:
    """How often a prompt is sent that takes so long, where its tries agree."""
    if seconds > LONG_S:
        return min(TRIES, 2)
    return TRIES * MANY if seconds < SHORT_S else TRIES


def time_decode(target: TimedEngine, batch: int, context: int, *, chunk: int, steps: int, room: int = 0) -> DecodeStep:
    """One look at `batch` streams decoding together at `context`, for `steps` steps after the last has begun.

    The context grows with every step, so prompts are shorter by half of them, and `context` is what it is on average.
    Streams that begin far apart on a busy host get longer replies, up to `room` tokens. Where the last begins the
    later the longer replies are, it waits for another's end, and still longer ones would change nothing.
    """
    ahead, waited = lead_tokens(batch, context, chunk), math.inf
    prompt = max(context - steps // 2, 1)
    for more in LONGER:
        reply = ahead + steps * more
        bodies = [target.request_body(prompt, min(reply, room or reply), slot=slot) for slot in range(batch)]
        streams = run_together(target, bodies)
        times = [stream.times for stream in streams]
        gaps = shared_gaps(times)
        if len(gaps) >= min(LEAST_STEPS, steps) and any(gaps):
            return step_from_gaps(gaps, batch=batch, context=context)
        late = start_delay(times)
        if late > QUEUED * waited:
            break
        waited = late or math.inf
    raise StreamsNotConcurrent(
        f"{plural(batch, 'stream')} at {context:,} tokens never decoded together for {LEAST_STEPS} steps"
    )


def start_delay(times: Sequence[Sequence[float]]) -> float:
    """Seconds after the first stream's beginning that the last begins, where the first is over by then; 0 elsewhere."""
    begun = [stream for stream in times if stream]
    if not begun:
        return 0.0
    starts, first_end = [stream[0] for stream in begun], min(stream[-1] for stream in begun)
    return max(starts) - min(starts) if max(starts) >= first_end else 0.0


def lead_tokens(batch: int, context: int, chunk: int) -> int:
    """Tokens that the first streams decode while later prompts are read: about one for every chunk."""
    return math.ceil(batch * context / max(chunk, 1)) + 2


def step_from_gaps(gaps: Sequence[float], *, batch: int, context: int) -> DecodeStep:
    """The usual step among `gaps`: the median of blocks, so that pauses of the server count for nothing."""
    bunch = bunch_size(gaps)
    parts = len(gaps) // BLOCK_STEPS if bunch == 1 else len(gaps) // max(BLOCK_STEPS, BUNCHES * bunch)
    blocks = [statistics.fmean(block) for block in split_evenly(gaps, max(parts, BLOCKS if bunch == 1 else 1))]
    seconds = statistics.median(blocks) or statistics.fmean(gaps)
    return DecodeStep(batch=batch, context=context, seconds=seconds, spread=relative_error(without_outliers(blocks)))


def bunch_size(gaps: Sequence[float]) -> int:
    """The bunch that nine of ten tokens came in at most: on a busy host they wait until somebody reads them."""
    least, sizes = AT_ONCE * statistics.fmean(gaps), [1]
    for gap in gaps:
        if gap > least:
            sizes.append(1)
        else:
            sizes[-1] += 1
    tokens = sorted(size for size in sizes for _ in range(size))
    return tokens[math.ceil(0.9 * len(tokens)) - 1]


def combine_looks(looks: Sequence[StepT]) -> StepT:
    """All looks at one point as one: the time its shortest two agree on, and by how much they do not."""
    times = [step.seconds for step in looks]
    noise = min(looks, key=lambda step: step.seconds).spread
    return replace(looks[0], seconds=agreed_time(times), spread=max(noise, look_disagreement(times)))


def agreed_time(looks: Sequence[float]) -> float:
    """The mean of the two shortest looks where they agree, the shortest alone where they do not."""
    two = sorted(looks)[:2]
    return statistics.fmean(two) if look_disagreement(looks) < QUIET else two[0]


def look_disagreement(looks: Sequence[float]) -> float:
    """By what share the second shortest look is longer than the shortest; 0 of a single one."""
    two = sorted(looks)[:2]
    return two[-1] / two[0] - 1


def shared_gaps(times: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each step while every stream was decoding: the mean over streams, step by step."""
    if not all(times):
        return []
    begin, end = max(stream[0] for stream in times), min(stream[-1] for stream in times)
    gaps = [gaps_within(stream, begin, end) for stream in times]
    return [statistics.fmean(step) for step in zip(*gaps, strict=False)]


def gaps_within(times: Sequence[float], begin: float, end: float) -> list[float]:
    """Seconds between tokens that came from `begin` to `end`."""
    inside = [at for at in times if begin <= at <= end]
    return [later - sooner for sooner, later in itertools.pairwise(inside)]


def split_evenly(values: Sequence[float], parts: int) -> list[Sequence[float]]:
    """`values` in `parts` pieces of about the same length."""
    parts = max(1, min(parts, len(values)))
    edges = [round(place * len(values) / parts) for place in range(parts + 1)]
    return [values[low:high] for low, high in itertools.pairwise(edges)]


def without_outliers(values: Sequence[float]) -> list[float]:
    """Those within a fifth of the median: a page fault or another program's burst is no property of a step."""
    middle = statistics.median(values)
    return [value for value in values if abs(value - middle) <= 0.2 * middle] or [middle]


def relative_error(values: Sequence[float]) -> float:
    """The relative standard error of their mean."""
    if len(values) < 2 or not any(values):
        return 0.05  # a single try says nothing of its noise
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)
