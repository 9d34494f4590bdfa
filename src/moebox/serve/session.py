"""Start a recipe and have an endpoint; stop it and have nothing left.

with start(deployment, run) as session:
    measure(session.endpoint)
"""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from moebox import codec, engines, http
from moebox.core.deployment import Deployment
from moebox.core.engine_facts import EngineFacts
from moebox.core.event import (
    AttemptFailed,
    AttemptReady,
    AttemptStopped,
    EngineDetached,
    EngineDied,
    EngineFinding,
    EngineStopped,
    PhaseDone,
    PhaseStarted,
    Stopped,
)
from moebox.core.symptom import Finding
from moebox.engines.events import LogEvent
from moebox.errors import BadInput
from moebox.serve import ask, facts, preflight, state
from moebox.serve.faults import LaunchFailed, ending, failed
from moebox.serve.guard import LADDER, Life
from moebox.serve.order import Order, prepare
from moebox.serve.spawn import Ladder, engine_guard, tell
from moebox.serve.wait import wait_for
from moebox.serve.watch import Listener, Watch
from moebox.store import Run
from moebox.stream.awake import Awake

PATIENCE_S = 900.0  # without progress; a cold autotune of FlashInfer's kernels was seen to take 20 min in pieces
FIRST_WORD_S = 60.0  # at least, before the first line: importing vLLM from a cold disk takes half of it
LOOK_S = 0.1
GRACE_S = 5.0  # for a guard to write its last word, beyond the waits of its ladder
ASK_S = 0.5
DYING_S = 1.0  # a process closes its connections a moment before it is gone
SETTLE_S = 1.0  # from an engine's print to our eyes: its buffer, the guard, the disk

__all__ = ["Order", "Session", "launch", "prepare", "start"]


class Session:
    """One engine that was started, until it is stopped."""

    def __init__(
        self,
        order: Order,
        run: Run,
        instance: state.Instance,
        guard: "subprocess.Popen[bytes]",
        *,
        start: int = 0,
        listener: Listener | None = None,
    ) -> None:
        self.order, self.run, self.instance, self.guard = order, run, instance, guard
        self.endpoint = order.endpoint
        self.recipe = order.recipe
        self.listener = listener
        self.watch = Watch(run.path / "engine.log", order.recipe.engine, start=start, listener=self._hear)
        self.facts = EngineFacts()
        self.startup_s = 0.0
        self.oom = False  # the kernel ended it for want of memory; known once it is over
        self._detached = self._failed = self._lossy = False
        self._phase = ""

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """The engine's process is there."""
        return self.guard.poll() is None and self.instance.life.status in ("starting", "running")

    @property
    def log(self) -> Path:
        """Where its words go."""
        return self.run.path / "engine.log"

    def wait_ready(self, *, patience_s: float = PATIENCE_S) -> None:
        """Until it answers a chat; LaunchFailed with the first cause when it will not."""
        with Awake() as awake:
            self._wait_ready(awake, patience_s)
        self._became_ready()

    def _wait_ready(self, awake: Awake, patience_s: float) -> None:
        asked, chat, away = 0.0, None, 0.0
        while True:
            if awake.away_s > away:  # the machine slept, and so did the engine: neither patience nor a chat counts
                away, chat = awake.away_s, None
                self.watch.progress()
            self._catch_up()
            self._raise_if_ended()
            if chat is not None:
                if self._answered(chat):
                    return
                chat = None if chat.loading else chat
            elif time.monotonic() - asked >= ASK_S:
                asked = time.monotonic()
                self._tell_losses()
                chat = self._asked_for_chat() if self._healthy() else None
            self._raise_if_idle(patience_s, asked=chat is not None)
            time.sleep(LOOK_S)

    def _catch_up(self) -> None:
        while self.watch.look():
            pass

    def _asked_for_chat(self) -> ask.Chat:
        chat = ask.Chat(self.endpoint)
        chat.start()
        self.watch.progress()
        return chat

    def _answered(self, chat: ask.Chat) -> bool:
        """Whether the chat was answered well; LaunchFailed when it was answered badly."""
        if chat.answer is None or chat.loading:
            return False
        if chat.complaint:
            self._raise_if_dying()
            raise self._fail("mute", f"{self.recipe.engine} answers {self._health} but no chat ({chat.complaint})")
        return True

    def _raise_if_idle(self, patience_s: float, *, asked: bool) -> None:
        idle_s = self.watch.idle_s
        if idle_s <= (patience_s if self.watch.heard else max(patience_s, FIRST_WORD_S)):
            return
        if asked:
            what = f"answers {self._health} but left a chat unanswered for {idle_s:.0f} s"
            raise self._fail("mute", f"{self.recipe.engine} {what}")
        what = f"made no progress for {idle_s:.0f} s while {self.watch.seen.where}"
        raise self._fail("stuck", f"{self.recipe.engine} {what}")

    def wait(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Until it ends, which a ready engine should not do by itself; KeyboardInterrupt where `stop` says so."""
        while True:
            if stop():
                raise KeyboardInterrupt
            self._catch_up()
            self._tell_losses()
            if self.guard.poll() is not None:
                self._raise_if_unasked(self.instance.life)
                return
            time.sleep(ASK_S)

    def _raise_if_unasked(self, life: Life) -> None:
        if not life.asked:
            how = ending(life.code, oom=life.oom)
            raise self._fail("oom" if life.oom else "died", f"{self.recipe.engine} {how} after it was ready")

    def stop(self) -> None:
        """Down the ladder until nothing is left; harmless when it is over already."""
        if self._detached:
            return
        tell(self.guard, b"stop\n")
        with contextlib.suppress(OSError):
            if self.guard.stdin:
                self.guard.stdin.close()
        self.guard.wait()
        if not (self.run.path / "guard.log").stat().st_size:
            (self.run.path / "guard.log").unlink()
        life = self.instance.life
        self.oom = life.oom
        if life.known and not self._failed:
            self.run.event(self._stopped(life))
        state.forget(self.instance.id)
        self.watch.tail.close()

    def _stopped(self, life: Life) -> Stopped:
        kind = EngineStopped if self.instance.ready else AttemptStopped
        return kind(
            id=self.instance.id,
            code=life.code,
            signals=tuple(life.signals),
            oom=life.oom,
            killed=life.killed,
            log_bytes=life.log_bytes,
            lost_bytes=life.lost_bytes,
        )

    def detach(self) -> None:
        """Let it go on without us."""
        tell(self.guard, b"detach\n")
        self.instance = state.changed(self.instance, detached=True)
        self._detached = True
        self.run.event(EngineDetached(id=self.instance.id))

    def settle(self) -> None:
        """Let the log catch up with what was just seen on the wire, until it names a cause."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until and self.watch.search.cause is None:
            if not self.watch.look():
                time.sleep(LOOK_S / 2)

    @property
    def _health(self) -> str:
        return self.order.deployment.engine.health

    def _healthy(self) -> bool:
        return http.get(
            f"{self.endpoint.root}{self._health}", headers=self.endpoint.headers, timeout_s=ask.HEALTH_WAIT_S
        ).ok

    def _raise_if_ended(self) -> None:
        if self.guard.poll() is None:
            return
        self._catch_up()
        life = self.instance.life
        if life.error:
            raise self._fail("unstartable", f"{self.recipe.engine} cannot be started: {life.error}")
        if life.code == 0:
            raise self._fail("quit", f"{self.recipe.engine} ended with code 0 without ever serving")
        what = f"{self.recipe.engine} {ending(life.code, oom=life.oom)} while {self.watch.seen.where}"
        raise self._fail("oom" if life.oom else "exited", what)

    def _raise_if_dying(self) -> None:
        """A broken connection is often the first sign of an end that the guard is still cleaning up after."""
        engine = self.instance.life.engine
        if engine and wait_for(lambda: state.start_tick(engine) < 0, DYING_S, every_s=LOOK_S / 2):
            self.guard.wait()
            self._raise_if_ended()

    def _fail(self, fault: Any, what: str) -> LaunchFailed:
        if fault == "mute":
            self.settle()
        problem = failed(fault, what, self.watch.search, log=str(self.log))
        kind = EngineDied if self.instance.ready else AttemptFailed
        self.run.event(
            kind(
                id=self.instance.id,
                fault=fault,
                seconds=time.monotonic() - self.watch.started,
                message=problem.message,
                remedy=problem.hint,
                finding=problem.finding,
            )
        )
        self._failed = True
        return problem

    def _became_ready(self) -> None:
        self.startup_s = time.monotonic() - self.watch.started
        self._tell_losses()
        self.instance = state.changed(self.instance, ready=time.time())
        self.facts = facts.gather(self.endpoint, self.watch.seen)
        self.run.event(
            AttemptReady(
                id=self.instance.id,
                model=self.endpoint.model,
                base_url=self.endpoint.base_url,
                startup_s=self.startup_s,
                facts=self.facts,
            )
        )
        self._note_phase()

    def _hear(self, news: LogEvent | Finding) -> None:
        """Journal what the log tells, and pass it on."""
        if isinstance(news, Finding):
            self.run.event(EngineFinding(**codec.plain(news)))
        elif self.watch.seen.phase != self._phase:
            self._note_phase()
        if self.listener:
            self.listener(news)

    def _tell_losses(self) -> None:
        """A full disk does not stop an engine; it is told once."""
        life = self.instance.life
        if life.lost_bytes and not self._lossy:
            self._lossy = True
            cause = f"{self.log} cannot be written ({life.lost_why}): the engine goes on, its log is being lost"
            self._hear(
                Finding(
                    symptom="host-disk-full",
                    area="host",
                    severity="warning",
                    line=0,
                    text="",
                    cause=cause,
                    remedy="free space where runs live, or give another place with --runs",
                )
            )

    def _note_phase(self) -> None:
        before, self._phase = self._phase, self.watch.seen.phase if not self.instance.ready else "ready"
        if before:
            self.run.event(PhaseDone(phase=before))
        if self._phase not in ("ready", before):
            self.run.event(PhaseStarted(phase=self._phase))


def launch(
    order: Order, run: Run, *, ladder: Ladder | None = None, listener: Listener | None = None, aside: bool = False
) -> Session:
    """Start the engine under its guard; it is not ready yet. `aside`: a rehearsal, and the run's recipe stays."""
    name = run.id
    if not _ended(name):
        raise BadInput(f"run {name} has a running engine already", hint=f"`moebox down {name}` stops it")
    with state.leases(_held(order), name) as leases:
        if not order.nodes:  # which were looked at by `nodes.check`
            preflight.check(order.deployment, order.launch, order.argv)
        if not aside or not (run.path / "recipe.toml").exists():
            run.write("recipe.toml", codec.to_toml(order.recipe))
        run.event(order.attempt(name, aside=aside))
        begins = log.stat().st_size if (log := run.path / "engine.log").exists() else 0
        guard = engine_guard(order, run, tuple(lease.descriptor for lease in leases), ladder or ())
    return Session(order, run, state.save(_instance(order, run, guard.pid)), guard, start=begins, listener=listener)


def _held(order: Order) -> list[str]:
    """What no other engine of this machine may take meanwhile; nothing where it runs on other nodes."""
    if order.nodes:
        return []
    ports = order.deployment.engine.ports_of(order.launch.port)
    return [*(f"port-{port}" for port in ports), *(f"gpu-{gpu}" for gpu in order.gpus)]


def _instance(order: Order, run: Run, guard: int) -> state.Instance:
    recipe = order.recipe
    return state.Instance(
        id=run.id,
        run=str(run.path),
        recipe=recipe.name,
        engine=recipe.engine,
        model=order.endpoint.model,
        base_url=order.endpoint.base_url,
        port=order.launch.port,
        gpus=order.gpus,
        key_env=recipe.listen.key_env,
        runtime=recipe.runtime.kind,
        container=f"moebox-{run.id}" if engines.runs_in_container(recipe) else "",
        job=order.job,
        guard=guard,
        guard_started=state.start_tick(guard),
        started=time.time(),
    )


def _ended(name: str) -> bool:
    """Whether no engine of this run lives; one whose moebox was killed gets the time its guard takes to stop it."""
    until = time.monotonic() + sum(wait for _, wait in LADDER) + GRACE_S
    while True:
        known = state.by_id().get(name)
        if known is None or not known.alive:
            return True
        if known.detached or time.monotonic() > until:
            return False
        time.sleep(LOOK_S)


@contextlib.contextmanager
def start(
    deployment: Deployment,
    run: Run,
    *,
    patience_s: float = PATIENCE_S,
    ladder: Ladder | None = None,
    listener: Listener | None = None,
    aside: bool = False,
) -> Iterator[Session]:
    """A live engine for the length of a `with` block. A listen.port of 0 takes a free one."""
    session = launch(prepare(deployment, name=run.id), run, ladder=ladder, listener=listener, aside=aside)
    try:
        session.wait_ready(patience_s=patience_s)
        yield session
    finally:
        session.stop()
