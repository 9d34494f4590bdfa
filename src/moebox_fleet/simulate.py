"""Simulate a fleet in virtual time: users, a router, and one scheduler per box, each with its own clock.

The clock of a box runs ahead only as far as nothing can disturb it: one step while prompts are read (engines do not
interrupt a step), and up to the next end of a reply while it decodes; an arrival ends that at its step.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox.core.measure import Slo
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.planner.kv_tiers import PrefixCache
from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.simulate import Histogram
from moebox.planner.speed import Speed
from moebox_fleet.route import Policy, RequestRouter
from moebox_fleet.users import User, UserDraws, UserWorkload

MOST_USERS, MOST_BOXES = 100_000, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxModel:
    """The speed and scheduling of one kind of box with one recipe."""

    name: str
    speed: Speed
    rules: SchedulerRules


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    work: UserWorkload
    users: int
    seconds: float = 1200.0
    warm_s: float = 300.0  # before requests are counted; users arrive during this time
    slo: Slo = Slo()
    policy: Policy = "prefix"
    fail_at: float = 0.0  # when the first box dies; 0: never
    seed: int = 1

    def validate(self) -> None:
        """Raise BadInput if a parameter is out of range."""
        refuse_out_of_range("--users", self.users, 1, MOST_USERS)
        text = f"{self.seconds:g} s of virtual time with {self.warm_s:g} s to warm up cannot be simulated"
        refuse_if(not 0 <= self.warm_s < self.seconds <= 7 * 86400, text)


@dataclass(slots=True, kw_only=True)
class FleetTally:
    """Totals of the counted requests."""

    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2el: Histogram = field(default_factory=Histogram)
    requests: int = 0
    good: int = 0  # met the SLO
    refused: int = 0  # longer than the context
    lost: int = 0  # in flight on a box that died; their clients send them again
    input_tokens: int = 0
    cached_tokens: int = 0  # of the input tokens
    output_tokens: int = 0
    after_failure: int = 0  # requests that ended after the box died
    good_after_failure: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOutcome:
    name: str
    requests: int
    output_tokens: int
    busy: float  # share of the time
    peak_kv: float  # share of its cache
    preemptions: int
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    question: FleetQuestion
    tally: FleetTally
    boxes: tuple[BoxOutcome, ...]
    seconds: float  # after the warm-up

    @property
    def good_share(self) -> float:
        """Share of requests that met the SLO; refused and lost ones did not."""
        tally = self.tally
        requests = tally.requests + tally.refused + tally.lost
        return tally.good / requests if requests else 0.0

    @property
    def good_after_failure(self) -> float:
        """Share of requests that met the SLO after the box died."""
        tally = self.tally
        requests = tally.after_failure + tally.lost
        return tally.good_after_failure / requests if requests else 0.0

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens found in a prefix cache."""
        return self.tally.cached_tokens / self.tally.input_tokens if self.tally.input_tokens else 0.0


class StepScheduler(Scheduler):
    """A scheduler that knows when its next event is."""

    def calm_s(self) -> float:
        """Seconds until the next event without new requests; 0 if the next slice reads prompts."""
        if self.reading or self.waiting or not self.running:
            return 0.0
        until_full = self.room_tokens // (self.running * self.speed.tokens_per_step)
        steps = max(min(self._until_finish(), until_full), 1)
        mean_context = self.used_tokens / self.running + self.speed.tokens_per_step * (steps - 1) / 2
        return steps * self.speed.step_s(self.running, mean_context)


class SimulatedBox:
    def __init__(self, model: BoxModel, shared: int) -> None:
        self.model = model
        self.scheduler = StepScheduler(speed=model.speed, rules=model.rules)
        self.cache = PrefixCache(self.scheduler, shared)
        self.now = self.busy = self.peak = self.last_in = 0.0
        self.open = self.requests = self.output_tokens = self.epoch = 0
        self.alive = True
        self.stepping = False  # inside a step that began at an earlier event
        self.users: dict[int, User] = {}  # by request
        self.homes = 0  # conversations whose prefix is here


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCheck:
    """An event of a box, void if its epoch has changed; `done` is a step that ends then."""

    server: SimulatedBox
    epoch: int
    done: ScheduleSlice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request in HTTP and the tokenizer of a box."""

    user: User
    prompt: int
    output: int
    index: int
    arrival: float


FleetEvent = User | SimulatedBox | DueCheck | SentRequest


class _FleetRun:
    """The events and totals of one simulation."""

    def __init__(self, boxes: Sequence[BoxModel], question: FleetQuestion) -> None:
        self.question = question
        self.servers = [SimulatedBox(model, question.work.shared) for model in boxes]
        self.draws = UserDraws(question.work, question.seed, limit=min(box.rules.context for box in boxes))
        self.router = RequestRouter(policy=question.policy)
        self.tally = FleetTally()
        self.events: list[tuple[float, int, FleetEvent]] = []
        self.order = itertools.count()
        self.ids = itertools.count()

    def run(self) -> FleetOutcome:
        question = self.question
        for number in range(question.users):
            self._add_event(self.draws.random.uniform(0, max(question.warm_s, 1.0)), User(id=number))
        if question.fail_at:
            self._add_event(question.fail_at, self.servers[0])
        while self.events:
            now, _, about = heapq.heappop(self.events)
            if now >= question.seconds:
                break
            if isinstance(about, User):
                self._start_turn(now, about)
            elif isinstance(about, SimulatedBox):
                self._fail_box(now, about)
            elif isinstance(about, SentRequest):
                self._take_in(now, about)
            elif about.epoch == about.server.epoch and about.done is not None:
                about.server.stepping = False
                self._record_slice(about.server, about.done)
                self._schedule_check(about.server)
            elif about.epoch == about.server.epoch:
                self._advance_box(about.server, now)
        boxes = tuple(
            BoxOutcome(
                name=server.model.name,
                requests=server.requests,
                output_tokens=server.output_tokens,
                busy=min(server.busy / question.seconds, 1.0),
                peak_kv=server.peak / server.model.rules.kv_tokens,
                preemptions=server.scheduler.preemptions,
                alive=server.alive,
            )
            for server in self.servers
        )
        return FleetOutcome(
            question=question, tally=self.tally, boxes=boxes, seconds=question.seconds - question.warm_s
        )

    def _add_event(self, at: float, about: FleetEvent) -> None:
        heapq.heappush(self.events, (at, next(self.order), about))

    def _start_turn(self, now: float, user: User) -> None:
        prompt, output = self.draws.next_turn(user)
        if user.turn == 1:
            self._set_home(user, -1)
        index = self.router.pick_box(self.servers, user.home)
        if index >= 0:
            self._send_request(now, user, prompt, output, index)

    def _send_request(self, now: float, user: User, prompt: int, output: int, index: int) -> None:
        server = self.servers[index]
        server.last_in = server.model.speed.intake_end(now, prompt, server.last_in)
        sent = SentRequest(user=user, prompt=prompt, output=output, index=index, arrival=now)
        self._add_event(server.last_in, sent)

    def _take_in(self, now: float, sent: SentRequest) -> None:
        """Let the engine of a box have a request; if the box died meanwhile, it is sent again elsewhere."""
        user, prompt, output, server = sent.user, sent.prompt, sent.output, self.servers[sent.index]
        if not server.alive:
            self.tally.lost += 1
            if (index := self.router.pick_box(self.servers, -1)) >= 0:
                self._send_request(now, user, prompt, output, index)
            return
        if server.now < now:  # bring a decoding box's clock to `now`, at the end of its step
            if server.open and not server.stepping:
                done = server.scheduler.advance(max_seconds=now - server.now)
                if done is not None:
                    self._pass_time(server, done)
            server.now = max(server.now, now)
        request = SimulatedRequest(id=next(self.ids), input=prompt, output=output, arrival=sent.arrival)
        if not server.scheduler.submit(request):
            self.tally.refused += now >= self.question.warm_s
            self._add_event(now + self.draws.draw_pause(self.question.work.rest_s or self.question.work.think_s), user)
            self.draws.end_conversation(user)
            return
        request.cached_tokens = server.cache.take_prefix(user.id, prompt, begins=user.turn == 1)[0]
        self._set_home(user, sent.index)
        server.users[request.id] = user
        server.open += 1
        if now >= self.question.warm_s:
            self.tally.input_tokens += prompt
            self.tally.cached_tokens += request.cached_tokens
        if not server.stepping:
            self._schedule_check(server)

    def _set_home(self, user: User, home: int) -> None:
        """Move the conversation to another box; -1 for none."""
        if user.home >= 0:
            self.servers[user.home].homes -= 1
        if home >= 0:
            self.servers[home].homes += 1
        user.home = home

    def _fail_box(self, now: float, server: SimulatedBox) -> None:
        """End a box: its requests are lost, and their clients send them again at once."""
        server.alive = False
        server.epoch += 1
        scheduler = server.scheduler
        requests = [*scheduler.waiting, *scheduler.reading, *scheduler._running.values()]
        lost = [(user, request) for request in requests if (user := server.users.get(request.id))]
        self.tally.lost += len(lost)
        for user, request in lost:
            self._set_home(user, -1)
            index = self.router.pick_box(self.servers, -1)
            if index >= 0:
                self._send_request(now, user, request.input, request.output, index)
        server.open = 0

    def _schedule_check(self, server: SimulatedBox) -> None:
        """Add the next event of a box."""
        server.epoch += 1
        if server.open:
            self._add_event(server.now + server.scheduler.calm_s(), DueCheck(server=server, epoch=server.epoch))

    def _advance_box(self, server: SimulatedBox, now: float) -> None:
        within = now - server.now
        done = server.scheduler.advance(max_seconds=within) if within > 0 else server.scheduler.advance()
        if done is None:
            return
        if done.tokens_read:
            server.stepping = True
            server.busy += done.seconds
            server.now += done.seconds
            self._add_event(server.now, DueCheck(server=server, epoch=server.epoch, done=done))
        else:
            self._pass_time(server, done)
            self._schedule_check(server)

    def _pass_time(self, server: SimulatedBox, done: ScheduleSlice) -> None:
        server.busy += done.seconds
        server.now += done.seconds
        self._record_slice(server, done)

    def _record_slice(self, server: SimulatedBox, done: ScheduleSlice) -> None:
        """Record replies that began or ended in a slice, at the box's clock."""
        for request in done.started:
            if request.first_token_at < 0:
                request.first_token_at = server.now
        server.peak = max(server.peak, server.scheduler.kept_tokens)
        for request in done.finished:
            user = server.users.pop(request.id)
            server.open -= 1
            server.requests += 1
            server.output_tokens += request.output
            user.context = request.input + request.output
            server.cache.keep_tokens(user.id, request.input, request.output)
            self._count_request(request, server.now)
            self._add_event(server.now + self.draws.pause_after(user), user)

    def _count_request(self, request: SimulatedRequest, now: float) -> None:
        if request.arrival < self.question.warm_s:
            return
        tally = self.tally
        ttft = request.first_token_at - request.arrival
        tpot = (now - request.first_token_at) / (request.output - 1) if request.output > 1 else 0.0
        tally.requests += 1
        tally.output_tokens += request.output
        tally.ttft.add(ttft)
        tally.e2el.add(now - request.arrival)
        if request.output > 1:
            tally.tpot.add(tpot)
        slo = self.question.slo
        limits = ((ttft, slo.ttft_s), (tpot, slo.tpot_s), (now - request.arrival, slo.e2e_s))
        good = all(limit is None or value <= limit for value, limit in limits)
        tally.good += good
        if self.question.fail_at and now >= self.question.fail_at:
            tally.after_failure += 1
            tally.good_after_failure += good


def simulate_fleet(boxes: Sequence[BoxModel], question: FleetQuestion) -> FleetOutcome:
    question.validate()
    count = len(boxes)
    wrong = not 1 <= count <= MOST_BOXES
    refuse_if(wrong, f"a fleet of {count} boxes cannot be simulated", hint=f"from 1 to {MOST_BOXES}")
    refuse_if(question.fail_at and count < 2, "simulating a failure needs at least two boxes")
    return _FleetRun(boxes, question).run()
