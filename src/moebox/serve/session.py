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
    StopEvent,
)
from moebox.core.symptom import Finding
from moebox.engines.events import LogEvent
from moebox.errors import BadInput
from moebox.serve import ask, facts, preflight, state
from moebox.serve.faults import LaunchFailed, describe_exit, launch_failure
from moebox.serve.guard import STOP_SIGNALS, GuardState
from moebox.serve.order import PreparedLaunch, prepare_launch
from moebox.serve.spawn import StopSignals, send_to_guard, start_engine_guard
from moebox.serve.wait import wait_for
from moebox.serve.watch import LogListener, LogWatch
from moebox.store import Run
from moebox.stream.awake import AwakeClock

PATIENCE_S = 900.0  # without progress; a cold autotune of FlashInfer's kernels was seen to take 20 min in pieces
FIRST_LINE_S = 60.0  # at least, before the first line: importing vLLM from a cold disk takes half of it
LOOK_S = 0.1
GRACE_S = 5.0  # for a guard to write its last word, beyond the waits of its ladder
POLL_S = 0.5
DYING_S = 1.0  # a process closes its connections a moment before it is gone
SETTLE_S = 1.0  # from an engine's print to our eyes: its buffer, the guard, the disk

__all__ = ["EngineSession", "PreparedLaunch", "engine_session", "launch_engine", "prepare_launch"]


class EngineSession:
    """One engine that was started, until it is stopped."""

    def __init__(
        self,
        prepared: PreparedLaunch,
        run: Run,
        instance: state.Instance,
        guard: "subprocess.Popen[bytes]",
        *,
        start: int = 0,
        listener: LogListener | None = None,
    ) -> None:
        self.prepared, self.run, self.instance, self.guard = prepared, run, instance, guard
        self.endpoint = prepared.endpoint
        self.recipe = prepared.recipe
        self.listener = listener
        self.watch = LogWatch(run.path / "engine.log", prepared.recipe.engine, start=start, listener=self._on_news)
        self.facts = EngineFacts()
        self.startup_s = 0.0
        self.oom = False  # the kernel ended it for want of memory; known once it is over
        self._detached = self._failed = self._lossy = False
        self._phase = ""

    def __enter__(self) -> "EngineSession":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        """The engine's process is there."""
        return self.guard.poll() is None and self.instance.guard_state.status in ("starting", "running")

    @property
    def log(self) -> Path:
        """Where its words go."""
        return self.run.path / "engine.log"

    def wait_ready(self, *, patience_s: float = PATIENCE_S) -> None:
        """Until it answers a chat; LaunchFailed with the first cause when it will not."""
        with AwakeClock() as awake:
            self._wait_ready(awake, patience_s)
        self._became_ready()

    def _wait_ready(self, awake: AwakeClock, patience_s: float) -> None:
        polled_at, chat, away = 0.0, None, 0.0
        while True:
            if awake.away_s > away:  # the machine slept, and so did the engine: neither patience nor a chat counts
                away, chat = awake.away_s, None
                self.watch.note_progress()
            self._catch_up()
            self._raise_if_ended()
            if chat is not None:
                if self._answered(chat):
                    return
                chat = None if chat.is_loading else chat
            elif time.monotonic() - polled_at >= POLL_S:
                polled_at = time.monotonic()
                self._report_lost_log()
                chat = self._asked_for_chat() if self._healthy() else None
            self._raise_if_idle(patience_s, chat_sent=chat is not None)
            time.sleep(LOOK_S)

    def _catch_up(self) -> None:
        while self.watch.read_new_lines():
            pass

    def _asked_for_chat(self) -> ask.ChatProbe:
        chat = ask.ChatProbe(self.endpoint)
        chat.start()
        self.watch.note_progress()
        return chat

    def _answered(self, chat: ask.ChatProbe) -> bool:
        """Whether the chat was answered well; LaunchFailed when it was answered badly."""
        if chat.reply is None or chat.is_loading:
            return False
        if chat.problem:
            self._raise_if_dying()
            raise self._launch_failed(
                "mute", f"{self.recipe.engine} answers {self._health} but no chat ({chat.problem})"
            )
        return True

    def _raise_if_idle(self, patience_s: float, *, chat_sent: bool) -> None:
        idle_s = self.watch.idle_s
        if idle_s <= (patience_s if self.watch.has_output else max(patience_s, FIRST_LINE_S)):
            return
        if chat_sent:
            what = f"answers {self._health} but left a chat unanswered for {idle_s:.0f} s"
            raise self._launch_failed("mute", f"{self.recipe.engine} {what}")
        what = f"made no progress for {idle_s:.0f} s while {self.watch.summary.phase_text}"
        raise self._launch_failed("stuck", f"{self.recipe.engine} {what}")

    def wait_until_exit(self, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Until it ends, which a ready engine should not do by itself; KeyboardInterrupt where `stop` says so."""
        while True:
            if stop():
                raise KeyboardInterrupt
            self._catch_up()
            self._report_lost_log()
            if self.guard.poll() is not None:
                self._raise_if_unasked(self.instance.guard_state)
                return
            time.sleep(POLL_S)

    def _raise_if_unasked(self, life: GuardState) -> None:
        if not life.asked:
            how = describe_exit(life.code, oom=life.oom)
            raise self._launch_failed("oom" if life.oom else "died", f"{self.recipe.engine} {how} after it was ready")

    def stop(self) -> None:
        """Down the ladder until nothing is left; harmless when it is over already."""
        if self._detached:
            return
        send_to_guard(self.guard, b"stop\n")
        with contextlib.suppress(OSError):
            if self.guard.stdin:
                self.guard.stdin.close()
        self.guard.wait()
        if not (self.run.path / "guard.log").stat().st_size:
            (self.run.path / "guard.log").unlink()
        life = self.instance.guard_state
        self.oom = life.oom
        if life.is_written and not self._failed:
            self.run.add_event(self._stopped(life))
        state.forget_instance(self.instance.id)
        self.watch.tail.close()

    def _stopped(self, life: GuardState) -> StopEvent:
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
        send_to_guard(self.guard, b"detach\n")
        self.instance = state.update_instance(self.instance, detached=True)
        self._detached = True
        self.run.add_event(EngineDetached(id=self.instance.id))

    def wait_for_cause(self) -> None:
        """Let the log catch up with what was just seen on the wire, until it names a cause."""
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until and self.watch.search.cause is None:
            if not self.watch.read_new_lines():
                time.sleep(LOOK_S / 2)

    @property
    def _health(self) -> str:
        return self.prepared.deployment.engine.health_path

    def _healthy(self) -> bool:
        return http.get(
            f"{self.endpoint.server_url}{self._health}", headers=self.endpoint.headers, timeout_s=ask.HEALTH_TIMEOUT_S
        ).ok

    def _raise_if_ended(self) -> None:
        if self.guard.poll() is None:
            return
        self._catch_up()
        life = self.instance.guard_state
        if life.error:
            raise self._launch_failed("unstartable", f"{self.recipe.engine} cannot be started: {life.error}")
        if life.code == 0:
            raise self._launch_failed("quit", f"{self.recipe.engine} ended with code 0 without ever serving")
        what = f"{self.recipe.engine} {describe_exit(life.code, oom=life.oom)} while {self.watch.summary.phase_text}"
        raise self._launch_failed("oom" if life.oom else "exited", what)

    def _raise_if_dying(self) -> None:
        """A broken connection is often the first sign of an end that the guard is still cleaning up after."""
        engine = self.instance.guard_state.engine
        if engine and wait_for(lambda: state.process_start_tick(engine) < 0, DYING_S, every_s=LOOK_S / 2):
            self.guard.wait()
            self._raise_if_ended()

    def _launch_failed(self, fault: Any, what: str) -> LaunchFailed:
        if fault == "mute":
            self.wait_for_cause()
        problem = launch_failure(fault, what, self.watch.search, log=str(self.log))
        kind = EngineDied if self.instance.ready else AttemptFailed
        self.run.add_event(
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
        self._report_lost_log()
        self.instance = state.update_instance(self.instance, ready=time.time())
        self.facts = facts.gather_facts(self.endpoint, self.watch.summary)
        self.run.add_event(
            AttemptReady(
                id=self.instance.id,
                model=self.endpoint.model,
                base_url=self.endpoint.base_url,
                startup_s=self.startup_s,
                facts=self.facts,
            )
        )
        self._journal_phase()

    def _on_news(self, news: LogEvent | Finding) -> None:
        """Journal what the log tells, and pass it on."""
        if isinstance(news, Finding):
            self.run.add_event(EngineFinding(**codec.to_plain(news)))
        elif self.watch.summary.phase != self._phase:
            self._journal_phase()
        if self.listener:
            self.listener(news)

    def _report_lost_log(self) -> None:
        """A full disk does not stop an engine; it is told once."""
        life = self.instance.guard_state
        if life.lost_bytes and not self._lossy:
            self._lossy = True
            cause = f"{self.log} cannot be written ({life.lost_why}): the engine goes on, its log is being lost"
            self._on_news(
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

    def _journal_phase(self) -> None:
        before, self._phase = self._phase, self.watch.summary.phase if not self.instance.ready else "ready"
        if before:
            self.run.add_event(PhaseDone(phase=before))
        if self._phase not in ("ready", before):
            self.run.add_event(PhaseStarted(phase=self._phase))


def launch_engine(
    prepared: PreparedLaunch,
    run: Run,
    *,
    stop_signals: StopSignals | None = None,
    listener: LogListener | None = None,
    rehearsal: bool = False,
) -> EngineSession:
    """Start the engine under its guard; it is not ready yet. `aside`: a rehearsal, and the run's recipe stays."""
    name = run.id
    if not _ended(name):
        raise BadInput(f"run {name} has a running engine already", hint=f"`moebox down {name}` stops it")
    with state.take_leases(_held(prepared), name) as leases:
        if not prepared.nodes:  # which were looked at by `nodes.check`
            preflight.check_launch(prepared.deployment, prepared.launch, prepared.argv)
        if not rehearsal or not (run.path / "recipe.toml").exists():
            run.write_file("recipe.toml", codec.to_toml(prepared.recipe))
        run.add_event(prepared.started_event(name, rehearsal=rehearsal))
        begins = log.stat().st_size if (log := run.path / "engine.log").exists() else 0
        guard = start_engine_guard(prepared, run, tuple(lease.descriptor for lease in leases), stop_signals or ())
    return EngineSession(
        prepared, run, state.save_instance(_instance(prepared, run, guard.pid)), guard, start=begins, listener=listener
    )


def _held(order: PreparedLaunch) -> list[str]:
    """What no other engine of this machine may take meanwhile; nothing where it runs on other nodes."""
    if order.nodes:
        return []
    ports = order.deployment.engine.ports_used(order.launch.port)
    return [*(f"port-{port}" for port in ports), *(f"gpu-{gpu}" for gpu in order.gpus)]


def _instance(order: PreparedLaunch, run: Run, guard: int) -> state.Instance:
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
        guard_started=state.process_start_tick(guard),
        started=time.time(),
    )


def _ended(name: str) -> bool:
    """Whether no engine of this run lives; one whose moebox was killed gets the time its guard takes to stop it."""
    until = time.monotonic() + sum(wait for _, wait in STOP_SIGNALS) + GRACE_S
    while True:
        known = state.instances_by_id().get(name)
        if known is None or not known.is_alive:
            return True
        if known.detached or time.monotonic() > until:
            return False
        time.sleep(LOOK_S)


@contextlib.contextmanager
def engine_session(
    deployment: Deployment,
    run: Run,
    *,
    patience_s: float = PATIENCE_S,
    stop_signals: StopSignals | None = None,
    listener: LogListener | None = None,
    rehearsal: bool = False,
) -> Iterator[EngineSession]:
    """A live engine for the length of a `with` block. A listen.port of 0 takes a free one."""
    session = launch_engine(
        prepare_launch(deployment, name=run.id), run, stop_signals=stop_signals, listener=listener, rehearsal=rehearsal
    )
    try:
        session.wait_ready(patience_s=patience_s)
        yield session
    finally:
        session.stop()
