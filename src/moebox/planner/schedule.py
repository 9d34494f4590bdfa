"""Continuous batching as engines do it: admission, prompt reading, decoding and preemption.

The scheduler works in slices. A slice is one step if prompts are being read, otherwise as many equal decode steps as
pass without an event, so its cost grows with requests and batch changes and not with tokens. It has no clock:
`simulate` runs it in virtual time, the twin in real time.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from moebox.planner.speed import Speed

# SGLang reserves a share of each request's remaining output on admission; the share falls while decoding goes well
# (sglang scheduler: init_new_token_ratio 0.7, min 0.14 of it, 600 steps from one to the other).
RESERVE = 0.7
RESERVE_LEAST = 0.098
RESERVE_STEPS = 600
RESERVE_RECHECK = 16  # decode steps after which admission is tried again, because the reserve has fallen
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples modulo 1 are evenly spread draws that need no memory


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedRequest:
    """One request in the engine; the scheduler changes it."""

    id: int
    input: int
    output: int
    arrival: float = 0.0
    first_token_at: float = -1.0
    tokens_made: float = 0.0  # expected ones, under speculation
    cached_tokens: int = 0  # prompt tokens in the prefix cache on admission
    is_loaded: bool = False  # its cached tokens came back from a tier below the GPUs
    tokens_read: int = 0  # prompt tokens in the cache
    decoding_since: float = 0.0  # decode steps that the engine had done when this request began decoding
    preemptions: int = 0

    @property
    def tokens_to_read(self) -> int:
        """Tokens to read before it can decode: the prompt, and after preemption the tokens already made."""
        return self.input + int(self.tokens_made)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """What decides how an engine schedules."""

    kv_tokens: int
    context: int  # longest sequence the engine accepts
    max_seqs: int
    step_tokens: int
    prompts_first: bool  # SGLang: steps that only read prompts, before any decoding
    reserves_output: bool  # SGLang: admission counts part of the outputs to come
    schedules_ahead: bool = False  # a step is prepared while the previous one runs: new arrivals wait for the next
    poll_steps: int = 0  # decode steps between two looks for new arrivals; 0: before each step
    sequence_tokens: int = 0  # room, in tokens, that each sequence takes besides its context
    counted_tokens: int = 0  # the same with steps in flight, as `kv_tokens` counts each sequence
    shares_blocks: bool = False  # a prefix that several sequences have is kept once

    @property
    def pool_tokens(self) -> int:
        """Room for contexts and `sequence_tokens` together; `kv_tokens` counts sequences of `context`."""
        return self.kv_tokens * (self.context + self.counted_tokens) // max(self.context, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlice:
    seconds: float
    steps: int  # decode steps; 0 if only prompts were read
    batch: int  # sequences that decoded
    tokens_read: int = 0  # prompt tokens
    started: tuple[SimulatedRequest, ...] = ()
    finished: tuple[SimulatedRequest, ...] = ()


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """The state of one engine."""

    speed: Speed
    rules: SchedulerRules
    shared_tokens: int = 0  # of the prefix that all sequences have, if it is kept once
    find_prefix: Callable[[SimulatedRequest], bool] | None = None  # sets cached_tokens; False: it comes again, loaded
    waiting: deque[SimulatedRequest] = field(default_factory=deque)
    reading: deque[SimulatedRequest] = field(default_factory=deque)
    held_tokens: int = 0  # cache tokens of prompts, read or being read
    done_steps: float = 0.0
    reserve: float = RESERVE
    preemptions: int = 0
    _full: bool = False  # a sequence was preempted: no admission before the next decode step
    _heap: list[tuple[float, int, SimulatedRequest]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _running: dict[int, SimulatedRequest] = field(default_factory=dict)
    _outputs: float = 0.0  # sum over running of the tokens still to make when each began
    _gains: float = 0.0  # sum over running of the tokens each gains in a step
    _made: float = 0.0  # sum over running of -(its gain × since): tokens made = this + gains × done_steps

    @property
    def running(self) -> int:
        """Sequences that decode."""
        return len(self._running)

    @property
    def busy(self) -> bool:
        """True if a sequence decodes or a prompt is read."""
        return bool(self._running or self.reading)

    @property
    def used_tokens(self) -> float:
        """Cache tokens in use: prompts, and what the running sequences have made."""
        return self.held_tokens + (self._made + self._gains * self.done_steps)

    @property
    def kept_tokens(self) -> float:
        """Cache tokens in use, with the prefix that all sequences have counted once."""
        return self.used_tokens - self.shared_tokens * max(self.running + len(self.reading) - 1, 0)

    @property
    def room_tokens(self) -> float:
        fixed = self.rules.sequence_tokens * (self.running + len(self.reading))
        return self.rules.pool_tokens - self.kept_tokens - fixed

    def tokens_made(self, request: SimulatedRequest) -> float:
        """Tokens a request has made by now."""
        steps = self.done_steps - request.decoding_since if request.id in self._running else 0.0
        return min(request.tokens_made + self._gain_of(request) * steps, float(request.output))

    def _gain_of(self, request: SimulatedRequest) -> float:
        """Tokens a request gains per step. Drafts suit some better, so replies of one length do not end together."""
        rank = round((request.id + 0.5) * GOLDEN % 1, 3)  # among all requests (0 to 1), evenly distributed
        return self.speed.tokens_per_step / self.speed.draft_slowdown(rank)

    def submit(self, request: SimulatedRequest) -> bool:
        """Queue a request. Return False if it is longer than the cache or the engine's context."""
        most = min(self.rules.pool_tokens - self.rules.sequence_tokens, self.rules.context)
        if request.input + request.output > most:
            return False
        self.waiting.append(request)
        return True

    def cancel(self, request: SimulatedRequest) -> None:
        """Remove a request whose client disconnected, or that has to give its cache to others."""
        if request.id in self._running:
            self._leave(request)
        elif request in self.reading:
            self.reading.remove(request)
            self.held_tokens -= request.tokens_read
        elif request in self.waiting:
            self.waiting.remove(request)

    def advance(self, *, max_steps: float = math.inf, max_seconds: float = math.inf) -> ScheduleSlice | None:
        """Run one slice of at most `max_steps` decode steps and about `max_seconds`; None if there is nothing to do."""
        self.admit()
        if self.reading and (self.rules.prompts_first or self.rules.step_tokens > self._decode_tokens()):
            return self._read_prompts()
        return self._decode(max_steps, max_seconds) if self._running else None

    def admit(self) -> None:
        """Admit queued requests while the cache has room; an idle engine always admits the first."""
        if not self.waiting or (self._full and self.busy):
            return
        # Cache tokens that admitted requests will still need.
        promised = float(sum(request.tokens_to_read - request.tokens_read for request in self.reading))
        if self.rules.reserves_output:
            made = self._made + self._gains * self.done_steps
            promised += sum(request.output - request.tokens_made for request in self.reading)
            promised += self.reserve * max(self._outputs - made, 0.0)
        else:
            promised += self._gains
        while self.waiting and self.running + len(self.reading) < self.rules.max_seqs:
            request = self.waiting[0]
            coming = request.output - request.tokens_made if self.rules.reserves_output else 1
            needed = request.tokens_to_read + coming
            more = needed - self.shared_tokens + self.rules.sequence_tokens
            if more > self.room_tokens - promised and self.busy:
                return
            self.waiting.popleft()
            if self.find_prefix and not self.find_prefix(request):
                continue
            self.reading.append(request)
            request.tokens_read = min(request.cached_tokens, request.tokens_to_read - 1)
            self.held_tokens += request.tokens_read
            promised += needed - request.tokens_read

    def _read_prompts(self) -> ScheduleSlice:
        """Run one step that reads prompt tokens up to the step's limit; others decode in it unless prompts go first."""
        batch = 0 if self.rules.prompts_first else self.running
        budget, room = float(self.rules.step_tokens), self.room_tokens
        if batch:
            budget, room = budget - self._decode_tokens(), room - self._gains
        # Tokens read, the sum over them of what is before each, their prompts, and those that are read to the end.
        fresh, past, prompts, ready = 0, 0.0, 0, []
        while self.reading and budget > fresh < room:
            request = self.reading[0]
            chunk = int(min(request.tokens_to_read - request.tokens_read, budget - fresh, room - fresh))
            past += chunk * request.tokens_read
            request.tokens_read += chunk
            self.held_tokens += chunk
            fresh, prompts = fresh + chunk, prompts + 1
            if request.tokens_read < request.tokens_to_read:
                break
            ready.append(self.reading.popleft())
        if not fresh and not ready:
            return self._preempt()
        context = self.used_tokens / max(self.running, 1)
        seconds = self.speed.step_s(batch, context, fresh, past / max(fresh, 1), max(prompts, 1))
        finished = self._finish_steps(1) if batch else []
        for request in ready:
            self._start(request)
        for request in ready:
            if request.tokens_made >= request.output:  # one token was all it wanted
                self._leave(request)
                finished.append(request)
        begun, ended = tuple(ready), tuple(finished)
        steps = min(batch, 1)
        return ScheduleSlice(
            seconds=seconds, steps=steps, batch=batch, tokens_read=fresh, started=begun, finished=ended
        )

    def _start(self, request: SimulatedRequest) -> None:
        """Begin decoding a request whose prompt has been read; its first token is there."""
        if request.tokens_made == 0:
            request.tokens_made = 1.0
        # A prompt read again after preemption holds what was made before; its cache is counted in `held_tokens`.
        request.decoding_since = self.done_steps
        gain = self._gain_of(request)
        self._gains += gain
        self._made -= gain * self.done_steps
        self._running[request.id] = request
        self._outputs += request.output - request.tokens_made
        steps = math.ceil((request.output - request.tokens_made) / gain - 1e-9)
        heapq.heappush(self._heap, (self.done_steps + steps, next(self._order), request))

    def _leave(self, request: SimulatedRequest) -> None:
        """Stop decoding a request and free its cache."""
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

    def _decode_tokens(self) -> int:
        """Tokens of a decode step, draft tokens included."""
        return self.running * (1 + (self.speed.gpu_step.draft_tokens if self.speed.gpu_step else 0))

    def _decode(self, max_steps: float, max_seconds: float) -> ScheduleSlice:
        """Run decode steps until a sequence ends, the cache is full or a limit is reached."""
        batch, grows = self.running, self._gains
        room = math.floor(self.room_tokens / grows + 1e-9)
        if room < 1 and batch + len(self.reading) > 1:
            return self._preempt()
        # A sequence alone was admitted because it fits: what exceeds the cache are draft tokens past its end.
        steps = min(self._until_finish(), max(room, 1), max_steps)
        context = self.used_tokens / batch
        now = self.speed.step_s(batch, context)
        if max_seconds < math.inf:
            steps = min(steps, max(math.ceil(max_seconds / now), 1))
        if self.rules.reserves_output and self.waiting:
            steps = min(steps, RESERVE_RECHECK)
        steps = max(int(steps), 1)
        # Attention is linear in context, or nearly: the middle step times their number is the sum.
        middle = self.speed.step_s(batch, context + grows / batch * (steps - 1) / 2) if steps > 1 else now
        self.reserve = max(self.reserve - steps * (RESERVE - RESERVE_LEAST) / RESERVE_STEPS, RESERVE_LEAST)
        finished = tuple(self._finish_steps(steps))
        return ScheduleSlice(seconds=middle * steps, steps=steps, batch=batch, finished=finished)

    def _until_finish(self) -> float:
        """Decode steps until the next sequence ends."""
        while self._heap:
            at, _, request = self._heap[0]
            if self._running.get(request.id) is request and at >= self.done_steps:
                return max(at - self.done_steps, 1)
            heapq.heappop(self._heap)
        return 1

    def _finish_steps(self, steps: int) -> list[SimulatedRequest]:
        """Advance every running sequence by `steps` and return those that end."""
        self.done_steps += steps
        self._full = False
        finished = []
        while self._heap and self._heap[0][0] <= self.done_steps + 1e-9:
            _, _, request = heapq.heappop(self._heap)
            if self._running.get(request.id) is request:
                self._leave(request)
                finished.append(request)
        return finished

    def _preempt(self) -> ScheduleSlice:
        """Put the youngest sequence back into the queue, because the cache is full; it will be read again."""
        victim = max((*self._running.values(), *self.reading), key=lambda request: (request.arrival, request.id))
        self.cancel(victim)
        victim.tokens_read = 0
        victim.preemptions += 1
        self.preemptions += 1
        self._full = True
        self.reserve = min(self.reserve + 0.1, RESERVE)
        self.waiting.appendleft(victim)
        return ScheduleSlice(seconds=0.0, steps=0, batch=0)
