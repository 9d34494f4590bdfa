"""A fleet in virtual time: users, a router, and one scheduler a box, each with its own clock.

A box's clock runs ahead only as far as nothing can disturb it: one step while prompts are read (no engine interrupts a
step), and up to the next end of a reply while it decodes; an arrival cuts that short at the step it falls into.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from moebox.core.measure import Slo
from moebox.errors import refuse_if, refuse_out_of_range
from moebox.fleet.route import Policy, RequestRouter
from moebox.fleet.users import User, UserDraws, UserWorkload
from moebox.planner.schedule import Scheduler, SchedulerRules, ScheduleSlice, SimulatedRequest
from moebox.planner.simulate import Histogram
from moebox.planner.speed import Speed

MOST_USERS, MOST_BOXES = 100_000, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxModel:
    """One kind of box with one recipe: how fast it is and how it schedules."""

    name: str
    speed: Speed
    rules: SchedulerRules
    watts: float = 0.0  # at full load


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    """What is simulated."""

    work: UserWorkload
    users: int
    seconds: float = 1200.0
    warm_s: float = 300.0  # before anything is counted; users come in over this time
    slo: Slo = Slo()
    policy: Policy = "prefix"
    fail_at: float = 0.0  # when the first box dies; 0: none does
    seed: int = 1

    def validate(self) -> None:
        """Raise BadInput for what is out of range."""
        refuse_out_of_range("--users", self.users, 1, MOST_USERS)
        refuse_if(
            not 0 <= self.warm_s < self.seconds <= 7 * 86400,
            f"{self.seconds:g} s of virtual time with {self.warm_s:g} s to warm up cannot be simulated",
        )


@dataclass(slots=True, kw_only=True)
class FleetTally:
    """What the counted requests did."""

    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2el: Histogram = field(default_factory=Histogram)
    requests: int = 0
    good: int = 0  # kept to the SLO
    refused: int = 0  # longer than a box takes
    lost: int = 0  # in flight on a box that died, and sent again by their clients
    input_tokens: int = 0
    cached_tokens: int = 0  # of these, found in a prefix cache
    output_tokens: int = 0
    after_failure: int = 0  # requests that ended after the box died
    good_after_failure: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxOutcome:
    """One box's share."""

    name: str
    requests: int
    output_tokens: int
    busy: float  # share of the time it was doing something
    peak_kv: float  # share of its cache
    preemptions: int
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOutcome:
    """What a simulated fleet did."""

    question: FleetQuestion
    tally: FleetTally
    boxes: tuple[BoxOutcome, ...]
    seconds: float  # counted

    @property
    def good_share(self) -> float:
        """Share of requests that kept to the SLO; refused and lost ones did not."""
        tally = self.tally
        asked = tally.requests + tally.refused + tally.lost
        return tally.good / asked if asked else 0.0

    @property
    def good_after_failure(self) -> float:
        """The same for requests that ended after the box died."""
        tally = self.tally
        asked = tally.after_failure + tally.lost
        return tally.good_after_failure / asked if asked else 0.0

    @property
    def hit_share(self) -> float:
        """Share of prompt tokens found in a prefix cache."""
        return self.tally.cached_tokens / self.tally.input_tokens if self.tally.input_tokens else 0.0


class StepScheduler(Scheduler):
    """A scheduler that can tell when it will next need attention."""

    def calm_s(self) -> float:
        """Seconds until something happens if nobody disturbs it; 0 when its next slice is one that reads prompts."""
        if self.reading or self.waiting or not self.running:
            return 0.0
        steps = max(
            min(
                self._until_finish(), (self.rules.kv_tokens - self.used_tokens) // (self.running * self.tokens_per_step)
            ),
            1,
        )
        return steps * self.speed.step_s(
            self.running, self.used_tokens / self.running + self.tokens_per_step * (steps - 1) / 2
        )


class PrefixCache:
    """Conversations whose tokens still lie in a box's cache, least recently used first."""

    def __init__(self, scheduler: Scheduler, shared: int) -> None:
        self.scheduler, self.shared = scheduler, shared
        self.held: OrderedDict[int, int] = OrderedDict()
        self.total = 0
        self.warm = False  # the shared prefix has been read once

    def take_prefix(self, user: int, prompt: int, *, begins: bool) -> int:
        """Tokens of `prompt` that need not be read; they belong to the running request from now on.

        A conversation that `begins` shares nothing with the user's last one but what everybody shares.
        """
        own = self.held.pop(user, 0)
        self.total -= own
        own = 0 if begins else own
        found = max(own, self.shared if self.warm else 0)
        self.warm = True
        return min(found, prompt - 1)

    def keep_tokens(self, user: int, tokens: int) -> None:
        """A request has ended: its tokens stay until the room is needed."""
        self.held[user] = tokens
        self.total += tokens
        room = self.scheduler.rules.kv_tokens - self.scheduler.used_tokens
        while self.held and self.total > room:
            self.total -= self.held.popitem(last=False)[1]


class SimulatedBox:
    """One box of the fleet."""

    def __init__(self, model: BoxModel, shared: int) -> None:
        self.model = model
        self.scheduler = StepScheduler(speed=model.speed, rules=model.rules)
        self.cache = PrefixCache(self.scheduler, shared)
        self.now = self.busy = self.peak = 0.0
        self.open = self.requests = self.output_tokens = self.epoch = 0
        self.alive = True
        self.stepping = False  # inside a step that began at an earlier event
        self.users: dict[int, User] = {}  # by request
        self.homes = 0  # conversations that live here


@dataclass(frozen=True, slots=True, kw_only=True)
class DueCheck:
    """A box that must be looked at, unless something happened to it meanwhile; with the step that ends then."""

    server: SimulatedBox
    epoch: int
    done: ScheduleSlice | None = None


class _FleetRun:
    """One run's events and tallies."""

    def __init__(self, boxes: Sequence[BoxModel], question: FleetQuestion) -> None:
        self.question = question
        self.servers = [SimulatedBox(model, question.work.shared) for model in boxes]
        self.draws = UserDraws(question.work, question.seed, limit=min(box.rules.context for box in boxes))
        self.router = RequestRouter(policy=question.policy)
        self.tally = FleetTally()
        self.events: list[tuple[float, int, User | SimulatedBox | DueCheck]] = []
        self.order = itertools.count()
        self.ids = itertools.count()

    def run(self) -> FleetOutcome:
        question = self.question
        for number in range(question.users):
            self._push(self.draws.random.uniform(0, max(question.warm_s, 1.0)), User(id=number))
        if question.fail_at:
            self._push(question.fail_at, self.servers[0])
        while self.events:
            now, _, about = heapq.heappop(self.events)
            if now >= question.seconds:
                break
            self._handle(now, about)
        counted = question.seconds - question.warm_s
        return FleetOutcome(
            question=question,
            tally=self.tally,
            boxes=tuple(_box(s, question.seconds) for s in self.servers),
            seconds=counted,
        )

    def _push(self, at: float, about: User | SimulatedBox | DueCheck) -> None:
        heapq.heappush(self.events, (at, next(self.order), about))

    def _handle(self, now: float, about: User | SimulatedBox | DueCheck) -> None:
        if isinstance(about, User):
            self._arrive(now, about)
        elif isinstance(about, SimulatedBox):
            self._fail(now, about)
        elif about.epoch == about.server.epoch and about.done is not None:
            self._ended(about.server, about.done)
        elif about.epoch == about.server.epoch:
            self._attend(about.server, now)

    # -- users

    def _arrive(self, now: float, user: User) -> None:
        prompt, output = self.draws.next_turn(user)
        if user.turn == 1:
            self._move(user, -1)
        index = self.router.pick_box(self.servers, user.home)
        if index < 0:
            return
        self._send(now, user, prompt, output, index)

    def _send(self, now: float, user: User, prompt: int, output: int, index: int) -> None:
        server = self.servers[index]
        if server.now < now:
            self._catch_up(server, now)
        request = SimulatedRequest(id=next(self.ids), input=prompt, output=output, arrival=now)
        if not server.scheduler.submit(request):
            self.tally.refused += now >= self.question.warm_s
            self._push(now + self.draws.draw_pause(self.question.work.rest_s or self.question.work.think_s), user)
            self.draws.end_conversation(user)
            return
        request.cached_tokens = server.cache.take_prefix(user.id, prompt, begins=user.turn == 1)
        self._move(user, index)
        server.users[request.id] = user
        server.open += 1
        if now >= self.question.warm_s:
            self.tally.input_tokens += prompt
            self.tally.cached_tokens += request.cached_tokens
        if not server.stepping:
            self._plan(server)

    def _move(self, user: User, home: int) -> None:
        """The conversation lives on another box from now on; -1 for none."""
        if user.home >= 0:
            self.servers[user.home].homes -= 1
        if home >= 0:
            self.servers[home].homes += 1
        user.home = home

    def _fail(self, now: float, server: SimulatedBox) -> None:
        """The box dies: its requests are lost, and their clients send them again at once."""
        server.alive = False
        server.epoch += 1
        lost = [(user, request) for request in _inside(server.scheduler) if (user := server.users.get(request.id))]
        self.tally.lost += len(lost)
        for user, request in lost:
            self._move(user, -1)
            index = self.router.pick_box(self.servers, -1)
            if index >= 0:
                self._send(now, user, request.input, request.output, index)
        server.open = 0

    # -- boxes

    def _plan(self, server: SimulatedBox) -> None:
        """Say when this box must next be looked at."""
        server.epoch += 1
        if server.open:
            self._push(server.now + server.scheduler.calm_s(), DueCheck(server=server, epoch=server.epoch))

    def _catch_up(self, server: SimulatedBox, now: float) -> None:
        """Bring a decoding box's clock to `now`, at the end of the step that falls into it."""
        if server.open and not server.stepping:
            done = server.scheduler.advance(max_seconds=now - server.now)
            if done is not None:
                self._count(server, done)
        server.now = max(server.now, now)

    def _attend(self, server: SimulatedBox, now: float) -> None:
        within = now - server.now
        done = server.scheduler.advance(max_seconds=within) if within > 0 else server.scheduler.advance()
        if done is None:
            return
        if done.tokens_read:
            server.stepping = True
            server.busy += done.seconds
            server.now += done.seconds
            self._push(server.now, DueCheck(server=server, epoch=server.epoch, done=done))
        else:
            self._count(server, done)
            self._plan(server)

    def _ended(self, server: SimulatedBox, done: ScheduleSlice) -> None:
        server.stepping = False
        self._credit(server, done)
        self._plan(server)

    def _count(self, server: SimulatedBox, done: ScheduleSlice) -> None:
        server.busy += done.seconds
        server.now += done.seconds
        self._credit(server, done)

    def _credit(self, server: SimulatedBox, done: ScheduleSlice) -> None:
        """Replies that began and ended in a slice, at the box's clock."""
        for request in done.started:
            if request.first_token_at < 0:
                request.first_token_at = server.now
        server.peak = max(server.peak, server.scheduler.used_tokens)
        for request in done.finished:
            user = server.users.pop(request.id)
            server.open -= 1
            server.requests += 1
            server.output_tokens += request.output
            user.context = request.input + request.output
            server.cache.keep_tokens(user.id, user.context)
            self._score(request, server.now)
            self._push(server.now + self.draws.pause_after(user), user)

    def _score(self, request: SimulatedRequest, now: float) -> None:
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
        good = _met(self.question.slo, ttft, tpot, now - request.arrival)
        tally.good += good
        if self.question.fail_at and now >= self.question.fail_at:
            tally.after_failure += 1
            tally.good_after_failure += good


def simulate_fleet(boxes: Sequence[BoxModel], question: FleetQuestion) -> FleetOutcome:
    """Run `question` through these boxes in virtual time."""
    question.validate()
    many = len(boxes)
    refuse_if(
        not 1 <= many <= MOST_BOXES, f"a fleet of {many} boxes cannot be simulated", hint=f"from 1 to {MOST_BOXES}"
    )
    refuse_if(question.fail_at and many < 2, "a fleet of one box has nothing left when it fails")
    return _FleetRun(boxes, question).run()


def _met(slo: Slo, ttft: float, tpot: float, e2e: float) -> bool:
    """A request's times are all within their limits."""
    return _within(ttft, slo.ttft_s) and _within(tpot, slo.tpot_s) and _within(e2e, slo.e2e_s)


def _within(value: float, limit: float | None) -> bool:
    return limit is None or value <= limit


def _inside(scheduler: StepScheduler) -> list[SimulatedRequest]:
    """Every request in a box, wherever it stands."""
    return [*scheduler.waiting, *scheduler.reading, *scheduler._running.values()]


def _box(server: SimulatedBox, seconds: float) -> BoxOutcome:
    return BoxOutcome(
        name=server.model.name,
        requests=server.requests,
        output_tokens=server.output_tokens,
        busy=min(server.busy / seconds, 1.0),
        peak_kv=server.peak / server.model.rules.kv_tokens,
        preemptions=server.scheduler.preemptions,
        alive=server.alive,
    )
