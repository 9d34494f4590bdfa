"""Several models behind one address: start, put away and resume engines as requests ask for them.

A model is put away only when none of its requests is open, and a request is passed on only to the engine of its own
model while that engine cannot be put away. So a client waits, or gets 503 with Retry-After, and never another model.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

from moebox import http
from moebox.core.deployment import Deployment
from moebox.core.engine_event import ModelSwapped
from moebox.errors import ExternalError, refuse_if
from moebox.loose import get_objects
from moebox.serve.session import EngineSession, launch_engine, prepare_launch
from moebox.serve.watch import Notify
from moebox.store import Run
from moebox.store.durations import last_duration, remember_duration
from moebox.units import format_seconds
from moebox_fleet.models_file import ModelNeeds, ModelsFile, device_room, fit_together, model_needs, plan_sleep

CALL_S = 600.0  # for an engine to sleep or resume: weights of a terabyte from a slow disk
LOOK_S = 1.0


class ModelBusy(Exception):
    """The model cannot serve now; try again after `retry_s`."""

    def __init__(self, text: str, retry_s: float) -> None:
        super().__init__(text)
        self.retry_s = retry_s


@dataclass(slots=True, kw_only=True, eq=False)
class ModelSlot:
    name: str
    deployment: Deployment
    needs: ModelNeeds
    state: str = "down"  # down, up or asleep
    session: EngineSession | None = None
    leaving: bool = False  # it gets no new request until it was put away
    open_requests: int = 0
    used_at: float = 0.0
    waiting: "list[asyncio.Future[None]]" = field(default_factory=list)
    swap: "asyncio.Task[None] | None" = None

    @property
    def is_alive(self) -> bool:
        return self.session is not None and self.session.is_alive

    @property
    def duration_key(self) -> str:
        """The name under which the time of its next start or resume is remembered."""
        kind, recipe = "resume" if self.state == "asleep" else "start", self.deployment.recipe
        return f"{kind} {recipe.engine} {recipe.checkpoint} {recipe.runtime.kind}"


def sleep_deployment(deployment: Deployment, needs: ModelNeeds) -> Deployment:
    """The deployment on a free port of this machine, with the flags that an engine needs to sleep, if it is to."""
    traits, recipe = deployment.engine, deployment.recipe
    recipe = replace(recipe, listen=replace(recipe.listen, host="127.0.0.1", port=0))
    if needs.sleep == "no":
        return deployment.with_recipe(recipe)
    flags, env = {**traits.sleep_flags, **recipe.flags}, {**traits.sleep_env, **recipe.env}
    return deployment.with_recipe(replace(recipe, flags=flags, env=env))


def plan_models(file: ModelsFile, planned: Mapping[str, Deployment]) -> tuple[dict[str, ModelNeeds], dict[str, int]]:
    """Return what each model needs, and the room on each device. Raise BadInput if one does not even fit alone."""
    room = device_room(list(planned.values()))
    needs = {name: model_needs(deployment, file.models[name]) for name, deployment in planned.items()}
    plan_sleep(needs, file.models, room)
    for name in needs:
        alone = fit_together({name: needs[name]}, [name], room)
        refuse_if(not alone, f"models.{name}: it does not fit on this box, even alone")
        together = fit_together(needs, [name], room)
        hint = 'sleep = "no" for some of them'
        refuse_if(not together, f"models.{name}: it does not fit while the others sleep", hint=hint)
    return needs, room


class ModelSwitch:
    """The engines of a models file. `report` gets a line for each swap."""

    def __init__(self, file: ModelsFile, deployments: Mapping[str, Deployment], run: Run, *, report: Notify) -> None:
        self.file, self.run, self.report = file, run, report
        self.needs, self.room = plan_models(file, deployments)
        self.slots: dict[str, ModelSlot] = {}
        for name, need in self.needs.items():
            deployment = sleep_deployment(deployments[name], need)
            self.slots[name] = ModelSlot(name=name, deployment=deployment, needs=need)
        self.lock = asyncio.Lock()  # of swaps
        self.changed = asyncio.Event()  # a request ended

    @contextlib.asynccontextmanager
    async def hold_model(self, name: str) -> AsyncIterator[ModelSlot]:
        """Bring a model up, and keep it up for the length of the block. Raise ModelBusy if that takes too long."""
        slot = self.slots[name]
        if slot.state == "up" and not slot.leaving and slot.is_alive:
            slot.open_requests += 1
        else:
            await self._wait_for(slot)
        try:
            yield slot
        finally:
            slot.open_requests -= 1
            slot.used_at = time.monotonic()
            self.changed.set()

    async def _wait_for(self, slot: ModelSlot) -> None:
        """Wait until a swap gives the model to this request, which then counts as open."""
        turn = asyncio.get_running_loop().create_future()
        slot.waiting.append(turn)
        if slot.swap is None or slot.swap.done():
            slot.swap = asyncio.create_task(self._swap_to(slot))
        try:
            await asyncio.wait((turn,), timeout=self.file.wait_s)
        except asyncio.CancelledError:  # its client has gone
            if turn in slot.waiting:
                slot.waiting.remove(turn)
            elif turn.exception() is None:  # given in this moment
                slot.open_requests -= 1
            self.changed.set()
            raise
        if not turn.done():  # it stays in `waiting`: the model comes for the next attempt of this client
            turn.cancel()
            text = f"{slot.name} was not ready within {format_seconds(self.file.wait_s)}"
            raise ModelBusy(text, self.forecast_ready(slot)[0])
        turn.result()

    def forecast_ready(self, slot: ModelSlot) -> tuple[float, float, float]:
        """Seconds until a model that is not up serves, and their range: as last time, or from its weights."""
        if known := last_duration(slot.duration_key):
            return known, known / 1.5, known * 1.5
        return slot.needs.swap_s(asleep=slot.state == "asleep")

    async def _swap_to(self, slot: ModelSlot) -> None:
        """Put away what does not fit beside the model, bring it up, and give it to the requests that wait."""
        async with self.lock:
            problem: ModelBusy | None = None
            try:
                if slot.state != "up" or not slot.is_alive:
                    await self._exchange_models(slot)
            except Exception as failure:  # of any kind: requests would wait for a swap that has ended
                cause = getattr(failure, "message", f"{type(failure).__name__}: {failure}")
                problem = ModelBusy(f"{slot.name} does not start: {cause}", 30.0)
                self.report(str(problem))
            for turn in [turn for turn in slot.waiting if not turn.done()]:
                slot.open_requests += problem is None
                turn.set_exception(problem) if problem else turn.set_result(None)
            slot.waiting.clear()

    async def _exchange_models(self, slot: ModelSlot) -> None:
        def fits_beside(others: list[ModelSlot]) -> bool:
            return fit_together(self.needs, [slot.name, *(each.name for each in others)], self.room)

        up = sorted((each for each in self.slots.values() if each.state == "up"), key=lambda each: each.used_at)
        others, leave = [each for each in up if each is not slot], list[ModelSlot]()
        while others and not fits_beside(others):  # those go first that were not used for the longest
            leave.append(others.pop(0))
        for other in reversed(leave):  # it may use other GPUs than those that were short
            if fits_beside([*others, other]):
                others.append(other)
        leave = [each for each in leave if each not in others]
        if slot.session and not slot.is_alive:  # it died, awake or asleep
            await self._put_away(slot)
        for other in leave:  # none of its requests may be open; new ones wait for their turn
            other.leaving = True
            while other.open_requests and slot.waiting:
                self.changed.clear()
                await self.changed.wait()
            if not slot.waiting:  # all who asked for it have gone
                other.leaving = False
                return
            await self._put_away(other)
        key, began, (usual, low, high) = slot.duration_key, time.monotonic(), self.forecast_ready(slot)
        await asyncio.to_thread(self._bring_up, slot)
        seconds, names = time.monotonic() - began, tuple(other.name for other in leave)
        remember_duration(key, seconds)
        event = ModelSwapped(model=slot.name, put_away=names, seconds=seconds, forecast_s=usual, low_s=low, high_s=high)
        self.run.add_event(event)
        promised = f"forecast {format_seconds(usual)}" if usual else "no forecast"
        gone = f"; put away: {', '.join(names)}" if names else ""
        self.report(f"{slot.name} serves after {format_seconds(seconds)} ({promised}){gone}")

    async def _put_away(self, slot: ModelSlot) -> None:
        """Let an engine sleep, or stop it if it cannot or does not answer."""
        slot.leaving = True
        level = slot.needs.sleep
        try:
            if level != "no" and slot.is_alive:
                try:
                    await asyncio.to_thread(self._call_engine, slot, slot.deployment.engine.sleep_levels[level])
                    slot.state = "asleep"
                    return
                except ExternalError as problem:
                    self.report(f"{slot.name} is stopped: {problem.message}")
            if slot.session:
                await asyncio.to_thread(slot.session.stop)
            slot.session, slot.state = None, "down"
        finally:
            slot.leaving = False

    def _bring_up(self, slot: ModelSlot) -> None:
        """Resume or start an engine, and make sure that it serves this model."""
        try:
            if slot.session:
                self._call_engine(slot, slot.deployment.engine.resume_calls[slot.needs.sleep])
            else:
                run = Run.create(slot.name, runs=self.run.path)
                slot.session = launch_engine(prepare_launch(slot.deployment, name=run.id), run)
                slot.session.wait_ready()
            endpoint = slot.session.endpoint
            reply = http.get(f"{endpoint.base_url}/models", headers=endpoint.headers, timeout_s=CALL_S)
            served = [str(row.get("id")) for row in get_objects(reply.json() if reply.ok else {}, "data")]
            if endpoint.model not in served:
                found = ", ".join(served) or "nothing"
                raise ExternalError(f"{endpoint.base_url} serves {found}, not {endpoint.model}")
        except BaseException:  # neither half awake nor another model may stay
            if slot.session:
                slot.session.stop()
            slot.session, slot.state = None, "down"
            raise
        slot.state, slot.used_at = "up", time.monotonic()

    def _call_engine(self, slot: ModelSlot, calls: tuple[str, ...]) -> None:
        assert slot.session
        endpoint = slot.session.endpoint
        for call in calls:
            path, _, method = call.partition(" ")
            body = {"method": method} if method else {}
            reply = http.post_json(f"{endpoint.server_url}{path}", body, headers=endpoint.headers, timeout_s=CALL_S)
            if not reply.ok:
                raise ExternalError(f"{slot.deployment.engine.title} refused {path}: {reply.error}")

    async def keep_watch(self) -> None:
        """Preload models, then put away those that were not asked for within their time to live."""
        for name, entry in self.file.models.items():
            if entry.preload:
                with contextlib.suppress(ModelBusy):
                    async with self.hold_model(name):
                        pass
        while True:
            await asyncio.sleep(LOOK_S)
            for slot in self.slots.values():
                ttl_s = self.file.models[slot.name].ttl_s
                async with self.lock:
                    idle = ttl_s and time.monotonic() - slot.used_at > ttl_s
                    if idle and slot.state == "up" and not slot.open_requests and not slot.waiting:
                        await self._put_away(slot)
                        self.report(f"{slot.name} was put away: no request for {format_seconds(ttl_s)}")

    def stop_engines(self) -> None:
        with contextlib.ExitStack() as stack:  # each of them, even if one cannot be stopped
            for slot in self.slots.values():
                if slot.session:
                    stack.callback(slot.session.stop)
