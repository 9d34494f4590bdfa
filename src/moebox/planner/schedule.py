"""Continuous batching as the engines do it: who is admitted, who reads a prompt, who decodes, who is put back.

The scheduler works in slices. A slice is one step when prompts are being read, and as many equal decode steps as
nothing happens in otherwise, so its cost grows with requests and batch changes and not with tokens. It has no clock:
`simulate` runs it in virtual time, the twin in real time.
"""

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field

from moebox.planner.speed import Speed
from moebox.planner.workload import GOLDEN

# SGLang reserves a share of each request's remaining output on admission; the share falls while decoding goes well
# (sglang scheduler: init_new_token_ratio 0.7, min 0.14 of it, 600 steps from one to the other).
RESERVE = 0.7
RESERVE_LEAST = 0.098
RESERVE_STEPS = 600


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedRequest:
    """One request on its way through the engine; the scheduler changes it."""

    id: int
    input: int
    output: int
    arrival: float = 0.0
    first_token_at: float = -1.0  # when its first token came
    tokens_made: float = 0.0  # tokens made so far (expected ones, under speculation)
    cached_tokens: int = 0  # prompt tokens that lie in the prefix cache when it is admitted
    tokens_read: int = 0  # prompt tokens in the cache
    decoding_since: float = 0.0  # decode steps the engine had done when this one began decoding
    preemptions: int = 0

    @property
    def draft_rank(self) -> float:
        """Its place among all requests in how well drafts suit it, 0 to 1: spread evenly, whatever their number."""
        return round((self.id + 0.5) * GOLDEN % 1, 3)

    @property
    def tokens_to_read(self) -> int:
        """Tokens to read before it can decode: the prompt, and after preemption what it had made."""
        return self.input + int(self.tokens_made)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """What decides how an engine schedules."""

    kv_tokens: int
    context: int  # longest sequence the engine takes
    max_seqs: int
    step_tokens: int  # tokens a step
    prompts_first: bool  # SGLang: steps that only read prompts, before any decoding
    reserves_output: bool  # SGLang: admission counts part of the outputs to come
    schedules_ahead: bool = (
        False  # a step is put together while the one before runs, so what arrives then waits for the next
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlice:
    """What happened in one slice."""

    seconds: float
    steps: int  # decode steps; 0 when only prompts were read
    batch: int  # sequences that decoded
    tokens_read: int = 0  # prompt tokens read
    started: tuple[SimulatedRequest, ...] = ()
    finished: tuple[SimulatedRequest, ...] = ()


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """The state of one engine."""

    speed: Speed
    rules: SchedulerRules
    waiting: deque[SimulatedRequest] = field(default_factory=deque)
    reading: deque[SimulatedRequest] = field(default_factory=deque)
    held_tokens: int = 0  # cache tokens of prompts being read or read
    done_steps: float = 0.0
    reserve: float = RESERVE
    preemptions: int = 0
    _full: bool = False  # something was put back: nobody is admitted before a step has been decoded
    _heap: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _running: dict[int, SimulatedRequest] = field(default_factory=dict)
    _outputs: float = 0.0  # sum over running of what they had still to make when they began
    _gains: float = 0.0  # sum over running of what each gains in a step
    _made: float = 0.0  # sum over running of -(its gain × since): tokens made = this + gains × done_steps

    @property
    def running(self) -> int:
        """Sequences that decode."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """Whether a sequence decodes or is read."""
        return bool(self._running or self.reading)

    @property
    def used_tokens(self) -> float:
        """Cache tokens in use."""
        return self.held_tokens + self.grown_tokens

    @property
    def grown_tokens(self) -> float:
        """Cache tokens of what the running sequences have made."""
        return self._made + self._gains * self.done_steps

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens a sequence gains in a step."""
        return self.speed.tokens_per_step

    def tokens_made(self, request: SimulatedRequest) -> float:
        """Tokens a request has made by now."""
        steps = self.done_steps - request.decoding_since if request.id in self._running else 0.0
        return min(request.tokens_made + self._gain_of(request) * steps, float(request.output))

    def _gain_of(self, request: SimulatedRequest) -> float:
        """Tokens it gains in a step: drafts suit some requests better, so replies of one length do not end together."""
        return self.tokens_per_step / self.speed.draft_slowdown(request.draft_rank)

    def submit(self, request: SimulatedRequest) -> bool:
        """Put a request in the queue; False when it is longer than the cache or the engine's context."""
        if request.input + request.output > min(self.rules.kv_tokens, self.rules.context):
            return False
        self.waiting.append(request)
        return True

    def cancel(self, request: SimulatedRequest) -> None:
        """Take a request out, wherever it is: its client went away."""
        if request.id in self._running:
            self._leave(request)
        elif request in self.reading:
            self.reading.remove(request)
            self.held_tokens -= request.tokens_read
        elif request in self.waiting:
            self.waiting.remove(request)

    def advance(self, *, max_steps: float = math.inf, max_seconds: float = math.inf) -> ScheduleSlice | None:
        """One slice of at most `most` decode steps and about `within` seconds; None when there is nothing to do."""
        self._admit()
        if self.reading and (self.rules.prompts_first or self.rules.step_tokens > self._decode_tokens()):
            return self._read()
        return self._decode(max_steps, max_seconds) if self._running else None

    # -- admission

    def _admit(self) -> None:
        """Requests from the queue as long as the cache has room for them; an idle engine takes the first whatever."""
        if not self.waiting or (self._full and self.busy):
            return
        promised = self._promised()
        while self.waiting and self.running + len(self.reading) < self.rules.max_seqs:
            request = self.waiting[0]
            need = self._need(request)
            free = self.rules.kv_tokens - self.used_tokens - promised
            if need > free and self.busy:
                return
            self.waiting.popleft()
            self.reading.append(request)
            request.tokens_read = min(request.cached_tokens, request.tokens_to_read - 1)
            self.held_tokens += request.tokens_read
            promised += need - request.tokens_read

    def _need(self, request: SimulatedRequest) -> float:
        """Cache tokens that admission counts for a request."""
        return request.tokens_to_read + (request.output - request.tokens_made if self.rules.reserves_output else 1)

    def _promised(self) -> float:
        """Tokens that admitted requests will still need and that admission counts."""
        unread = sum(request.tokens_to_read - request.tokens_read for request in self.reading)
        if not self.rules.reserves_output:
            return unread + self._gains
        coming = sum(request.output - request.tokens_made for request in self.reading)
        return unread + coming + self.reserve * max(self._outputs - self.grown_tokens, 0.0)

    # -- prompts

    def _read(self) -> ScheduleSlice:
        """One step that reads as many prompt tokens as the budget leaves; others decode beside it where engines do."""
        batch = 0 if self.rules.prompts_first else self.running
        fresh, past, ready = self._read_prompts(beside=batch > 0)
        if not fresh and not ready:
            return self._make_room()
        context = self.used_tokens / max(self.running, 1)
        seconds = self.speed.step_s(batch, context, fresh, past / max(fresh, 1))
        finished = self._gained(1) if batch else []
        return ScheduleSlice(
            seconds=seconds,
            steps=min(batch, 1),
            batch=batch,
            tokens_read=fresh,
            started=tuple(ready),
            finished=(*finished, *self._begin(ready)),
        )

    def _begin(self, ready: list[SimulatedRequest]) -> list[SimulatedRequest]:
        """Requests whose prompts have been read decode from now on; those leave that wanted one token alone."""
        for request in ready:
            self._start(request)
        done = [request for request in ready if request.tokens_made >= request.output]
        for request in done:
            self._leave(request)
        return done

    def _read_prompts(self, *, beside: bool) -> tuple[int, float, list[SimulatedRequest]]:
        """Tokens read in one step, the sum over them of what lay before each, and the requests read to the end."""
        budget, fits = self.rules.step_tokens, self.rules.kv_tokens - self.used_tokens
        if beside:
            budget, fits = budget - self._decode_tokens(), fits - self._gains
        fresh, past, ready = 0, 0.0, []
        while self.reading and budget > fresh < fits:
            request = self.reading[0]
            piece = int(min(request.tokens_to_read - request.tokens_read, budget - fresh, fits - fresh))
            past += piece * request.tokens_read
            request.tokens_read += piece
            self.held_tokens += piece
            fresh += piece
            if request.tokens_read < request.tokens_to_read:
                break
            ready.append(self.reading.popleft())
        return fresh, past, ready

    def _start(self, request: SimulatedRequest) -> None:
        """A prompt has been read: its first token is there and it decodes from now on."""
        if request.tokens_made == 0:
            request.tokens_made = 1.0
        # A prompt read again after preemption holds what was made before; its cache is counted under `held`.
        request.decoding_since = self.done_steps
        gain = self._gain_of(request)
        self._gains += gain
        self._made -= gain * self.done_steps
        self._running[request.id] = request
        self._outputs += request.output - request.tokens_made
        steps = math.ceil((request.output - request.tokens_made) / gain - 1e-9)
        heapq.heappush(self._heap, (self.done_steps + steps, next(self._order), request))

    def _leave(self, request: SimulatedRequest) -> None:
        """A running sequence ends and gives its cache back."""
        steps = self.done_steps - request.decoding_since
        gain = self._gain_of(request)
        self._outputs -= request.output - request.tokens_made
        request.tokens_made = min(request.tokens_made + gain * steps, float(request.output))
        self._gains -= gain
        self._made += gain * request.decoding_since
        self.held_tokens -= request.tokens_read
        del self._running[request.id]
        if not self._running:
            self._made = self._outputs = self._gains = 0.0

    # -- decoding

    def _decode_tokens(self) -> int:
        guesses = self.speed.gpu_step.draft_tokens if self.speed.gpu_step else 0
        return self.running * (1 + guesses)

    def _decode(self, most: float, within: float) -> ScheduleSlice:
        batch, grows = self.running, self._gains
        room = math.floor((self.rules.kv_tokens - self.used_tokens) / grows + 1e-9)
        if room < 1 and batch + len(self.reading) > 1:
            return self._make_room()
        # Alone it was admitted because it fits: what is too much are guesses past its end.
        steps = min(self._until_finish(), max(room, 1), most)
        context = self.used_tokens / batch
        now = self.speed.step_s(batch, context)
        if within < math.inf:
            steps = min(steps, max(math.ceil(within / now), 1))
        if self.rules.reserves_output and self.waiting:
            steps = min(steps, 16)  # the reserve falls while it decodes: look again soon
        steps = max(int(steps), 1)
        # Attention is linear in context, or nearly: the middle step times their number is the sum.
        middle = self.speed.step_s(batch, context + grows / batch * (steps - 1) / 2) if steps > 1 else now
        self.reserve = max(self.reserve - steps * (RESERVE - RESERVE_LEAST) / RESERVE_STEPS, RESERVE_LEAST)
        return ScheduleSlice(seconds=middle * steps, steps=steps, batch=batch, finished=tuple(self._gained(steps)))

    def _until_finish(self) -> float:
        while self._heap:
            at, _, request = self._heap[0]
            if request.id in self._running and at >= self.done_steps and self._running[request.id] is request:
                return max(at - self.done_steps, 1)
            heapq.heappop(self._heap)
        return 1

    def _gained(self, steps: int) -> list[SimulatedRequest]:
        """Every running sequence has done `steps` steps; those that are through leave."""
        self.done_steps += steps
        self._full = False
        finished = []
        while self._heap and self._heap[0][0] <= self.done_steps + 1e-9:
            _, _, request = heapq.heappop(self._heap)
            if self._running.get(request.id) is request:
                self._leave(request)
                finished.append(request)
        return finished

    def _make_room(self) -> ScheduleSlice:
        """The cache is full: the youngest sequence goes back to the queue and will be read again."""
        victim = max((*self._running.values(), *self.reading), key=lambda request: (request.arrival, request.id))
        if victim.id in self._running:
            self._leave(victim)
        else:
            self.reading.remove(victim)
            self.held_tokens -= victim.tokens_read
        victim.tokens_read = 0
        victim.preemptions += 1
        self.preemptions += 1
        self._full = True
        self.reserve = min(self.reserve + 0.1, RESERVE)
        self.waiting.appendleft(victim)
        return ScheduleSlice(seconds=0.0, steps=0, batch=0)
