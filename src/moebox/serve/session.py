"""Start a recipe's engine, wait until it answers, and stop it.

with engine_session(deployment, run) as session:
    measure(session.endpoint)
"""

import contextlib
import math
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from moebox import codec, engines, http
from moebox.core import engine_event
from moebox.core.deployment import Deployment
from moebox.core.engine_facts import EngineFacts
from moebox.core.symptom import Finding
from moebox.detect import host
from moebox.engines.events import LogEvent
from moebox.engines.kv_store import store_folder
from moebox.errors import BadInput
from moebox.serve import facts, kv_store, preflight, state
from moebox.serve.faults import Fault, LaunchFailed, describe_exit, launch_failure
from moebox.serve.guard import STOP_SIGNALS
from moebox.serve.order import PreparedLaunch, StopSignals, prepare_launch, send_to_guard, start_engine_guard
from moebox.serve.state import wait_for
from moebox.serve.watch import LogListener, LogWatch
from moebox.store import Run
from moebox.stream.awake import AwakeClock

PATIENCE_S = 900.0  # without progress; a cold autotune of FlashInfer's kernels was seen to take 20 min in pieces
FIRST_LINE_S = 60.0  # at least, before the first line: importing vLLM from a cold disk takes half of it
LOOK_S = 0.1
GRACE_S = 5.0  # for a guard to write its last state, beyond the waits of its stop signals
POLL_S = 0.5  # at most; small models are ready within a second
QUIET_S = 10.0  # without progress, before a compiler is looked for
COMPILERS = ("cicc", "ptxas", "hipcc")  # SGLang 0.5.15 compiles its INT4 experts for five minutes without a line
DYING_S = 1.0  # a process closes its connections a moment before it is gone
LOG_DELAY_S = 1.0  # from an engine's print to our read: its buffer, the guard, the disk

__all__ = ["EngineSession", "PreparedLaunch", "engine_session", "launch_engine", "prepare_launch"]


class EngineSession:
    """A started engine, until it is stopped."""

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
        self.endpoint = replace(prepared.endpoint, log=str(run.path / "engine.log"))
        self.recipe = prepared.recipe
        self.listener = listener
        self.log: Path = run.path / "engine.log"
        self.watch = LogWatch(
            self.log, prepared.recipe.engine, recipe=prepared.recipe, start=start, listener=self._handle_news
        )
        self.facts = EngineFacts()
        self.startup_s = 0.0
        self.ready: engine_event.AttemptReady | None = None
        self.weights_bytes, self.disk_rate = 0, 0.0  # see AttemptReady
        self.oom = False  # the kernel killed it because memory ran out; known once it has ended
        self._detached = self._failed = self._stopped = self._log_loss_reported = False
        self._phase = ""
        self._health_path = prepared.deployment.engine.health_path

    def __enter__(self) -> "EngineSession":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def is_alive(self) -> bool:
        return self.guard.poll() is None and self.instance.guard_state.status in ("starting", "running")

    def wait_ready(self, *, patience_s: float = PATIENCE_S, deadline: float = math.inf) -> None:
        """Wait until the engine answers a chat. If it does not, stop it and raise LaunchFailed with the first cause.

        `patience_s`: longest time without progress; `deadline`: when it must be ready, on the monotonic clock.
        """
        try:
            with AwakeClock() as awake:
                self._wait_for_chat(awake, patience_s, deadline)
            self.startup_s = time.monotonic() - self.watch.started
            self._report_lost_log()
            if not self.prepared.nodes:  # the engine may have downloaded other weights than those of the store
                kv_store.prepare_store(self.prepared.deployment)
            self.instance = state.update_instance(self.instance, ready=time.time())
            self.facts = facts.gather_facts(self.endpoint, self.watch.summary)
            self.ready = engine_event.AttemptReady(
                id=self.instance.id,
                model=self.endpoint.model,
                base_url=self.endpoint.base_url,
                startup_s=self.startup_s,
                facts=self.facts,
                weights_bytes=self.weights_bytes,
                disk_rate=self.disk_rate,
            )
            self.run.add_event(self.ready)
            self._record_phase()
            if self.instance.kv_store and (line := kv_store.restore_slots(self.endpoint, Path(self.instance.kv_store))):
                self.run.add_event(engine_event.SlotsKept(text=line))
        except BaseException:
            self.stop()
            raise

    def _wait_for_chat(self, awake: AwakeClock, patience_s: float, deadline: float) -> None:
        chat: facts.ChatProbe | None = None
        polled_at, looked_at, away, quiet_s = 0.0, 0.0, 0.0, min(QUIET_S, patience_s / 3)
        while True:
            if awake.away_s > away:  # the machine slept, and so did the engine: start counting again
                away, chat = awake.away_s, None
                self.watch.note_progress()
            self.read_log()
            self._raise_if_exited()
            if chat is not None:
                if chat.reply and chat.reply.status == 503:  # not ready yet; some servers are healthy before that
                    chat = None
                elif chat.reply:
                    if not chat.problem:
                        return
                    self._raise_if_dying()
                    raise self._record_failure("mute", f"answers {self._health_path} but no chat ({chat.problem})")
            elif (now := time.monotonic()) - polled_at >= min(POLL_S, (now - self.watch.started) / 20):
                polled_at = now
                self._report_lost_log()
                if min(self.watch.idle_s, now - looked_at) > quiet_s:
                    looked_at = now
                    if self._compiles():
                        self.watch.add_event(LogEvent(kind="phase", phase="compiling"))  # it prints nothing itself
                        self.watch.note_progress()
                url = f"{self.endpoint.server_url}{self._health_path}"
                if http.get(url, headers=self.endpoint.headers, timeout_s=facts.HEALTH_TIMEOUT_S).ok:
                    chat = facts.ChatProbe(self.endpoint)
                    chat.start()
                    self.watch.note_progress()
            if time.monotonic() > deadline:
                raise self._record_failure("stuck", f"was not ready in time; it was {self.watch.summary.phase_text}")
            idle_s = self.watch.idle_s
            if idle_s > (patience_s if self.watch.has_output else max(patience_s, FIRST_LINE_S)):
                if chat is not None:
                    what = f"answers {self._health_path} but left a chat unanswered for {idle_s:.0f} s"
                    raise self._record_failure("mute", what)
                what = f"made no progress for {idle_s:.0f} s while {self.watch.summary.phase_text}"
                raise self._record_failure("stuck", what)
            time.sleep(LOOK_S)

    def _compiles(self) -> bool:
        """Whether a compiler of GPU kernels runs among the engine's processes."""
        if self.instance.container:
            listed, _ = host.run_program([self.instance.runtime, "top", self.instance.container])
            return any(Path(word).name in COMPILERS for word in listed.split())
        with contextlib.suppress(psutil.Error):
            return any(child.name() in COMPILERS for child in psutil.Process(self.guard.pid).children(recursive=True))
        return False

    def wait_until_exit(self) -> None:
        """Wait for a ready engine to end. Raise LaunchFailed if it dies."""
        while True:
            self.read_log()
            self._report_lost_log()
            if self.guard.poll() is not None:
                end = self.instance.guard_state
                if end.asked:
                    return
                how = describe_exit(end.code, oom=end.oom)
                raise self._record_failure("oom" if end.oom else "died", f"{how} after it was ready")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the engine and everything it started. Does nothing if it has ended or is detached."""
        if self._detached or self._stopped:
            return
        if self.instance.kv_store and self.instance.ready and self.is_alive:
            kv_store.keep_slots(self.endpoint, Path(self.instance.kv_store), self.run)
        send_to_guard(self.guard, b"stop\n")
        with contextlib.suppress(OSError):
            if self.guard.stdin:
                self.guard.stdin.close()
        self.guard.wait()
        exists, guard_log = self.run.path.is_dir(), self.run.path / "guard.log"
        if exists and not guard_log.stat().st_size:
            guard_log.unlink()
        end = self.instance.guard_state
        self.oom = end.oom
        if end.guard and not self._failed and exists:
            kind = engine_event.EngineStopped if self.instance.ready else engine_event.AttemptStopped
            event = kind(
                id=self.instance.id,
                code=end.code,
                signals=tuple(end.signals),
                oom=end.oom,
                killed=end.killed,
                log_bytes=end.log_bytes,
                lost_bytes=end.lost_bytes,
            )
            self.run.add_event(event)
        state.forget_instance(self.instance.id)
        self.watch.tail.close()
        self._stopped = True

    def detach(self) -> None:
        """Keep the engine running after this process ends."""
        send_to_guard(self.guard, b"detach\n")
        self.instance = state.update_instance(self.instance, detached=True)
        self._detached = True
        self.run.add_event(engine_event.EngineDetached(id=self.instance.id))

    def wait_for_cause(self) -> None:
        """Read the log until it shows the cause of a failure, for a moment at most."""
        until = time.monotonic() + LOG_DELAY_S
        while time.monotonic() < until and self.watch.search.cause is None:
            if not self.watch.read_new_lines():
                time.sleep(LOOK_S / 2)

    def explain_failure(self) -> str:
        """The cause in the log, or where the log is."""
        self.wait_for_cause()
        cause = self.watch.search.cause
        return f"{cause.cause} {cause.remedy}" if cause else f"the log is {self.log}"

    def read_log(self) -> None:
        """Read all lines that the engine has written so far."""
        while self.watch.read_new_lines():
            pass

    def _raise_if_exited(self) -> None:
        if self.guard.poll() is None:
            return
        self.read_log()
        end = self.instance.guard_state
        if end.error:
            raise self._record_failure("unstartable", f"cannot be started: {end.error}")
        if end.code == 0:
            raise self._record_failure("quit", "ended with code 0 without ever serving")
        what = f"{describe_exit(end.code, oom=end.oom)} while {self.watch.summary.phase_text}"
        raise self._record_failure("oom" if end.oom else "exited", what)

    def _raise_if_dying(self) -> None:
        """Raise if the engine has ended and its guard still cleans up: often the cause of a broken connection."""
        engine = self.instance.guard_state.engine
        if engine and wait_for(lambda: state.process_start_tick(engine) < 0, DYING_S, every_s=LOOK_S / 2):
            self.guard.wait()
            self._raise_if_exited()

    def _record_failure(self, fault: Fault, what: str) -> LaunchFailed:
        """Write a failure to the journal and return it for the caller to raise."""
        if fault == "mute":
            self.wait_for_cause()
        problem = launch_failure(fault, f"{self.recipe.engine} {what}", self.watch.search, log=str(self.log))
        kind = engine_event.EngineDied if self.instance.ready else engine_event.AttemptFailed
        event = kind(
            id=self.instance.id,
            fault=fault,
            seconds=time.monotonic() - self.watch.started,
            message=problem.message,
            remedy=problem.hint,
            finding=problem.finding,
        )
        self.run.add_event(event)
        self._failed = True
        return problem

    def _handle_news(self, news: LogEvent | Finding) -> None:
        """Write news from the log to the journal, and pass it on."""
        if isinstance(news, Finding):
            self.run.add_event(engine_event.EngineFinding(**codec.to_plain(news)))
        elif self.watch.summary.phase != self._phase:
            self._record_phase()
        if self.listener:
            self.listener(news)

    def _report_lost_log(self) -> None:
        """Report once that the log cannot be written. A full disk does not stop an engine."""
        written = self.instance.guard_state
        if not written.lost_bytes or self._log_loss_reported:
            return
        self._log_loss_reported = True
        finding = Finding(
            symptom="host-disk-full",
            area="host",
            severity="warning",
            line=0,
            text="",
            cause=f"{self.log} cannot be written ({written.lost_why}): the engine runs on, its log is lost",
            remedy="free space where runs live, or give another place with --runs",
        )
        self._handle_news(finding)

    def _record_phase(self) -> None:
        before, self._phase = self._phase, self.watch.summary.phase if not self.instance.ready else "ready"
        if before:
            self.run.add_event(engine_event.PhaseDone(phase=before))
        if self._phase not in ("ready", before):
            self.run.add_event(engine_event.PhaseStarted(phase=self._phase))


def launch_engine(
    prepared: PreparedLaunch,
    run: Run,
    *,
    stop_signals: StopSignals | None = None,
    listener: LogListener | None = None,
    rehearsal: bool = False,
) -> EngineSession:
    """Start the engine under its guard; it is not ready yet. A rehearsal keeps the recipe of the run."""
    name, recipe = run.id, prepared.recipe
    until = time.monotonic() + sum(wait for _, wait in STOP_SIGNALS) + GRACE_S
    while (known := state.instances_by_id().get(name)) and known.is_alive:  # a guard may stop a killed moebox's engine
        if known.detached or time.monotonic() > until:
            raise BadInput(f"run {name} has a running engine already", hint=f"`moebox down {name}` stops it")
        time.sleep(LOOK_S)
    leases: list[str] = []  # what no other engine of this machine may use meanwhile
    if not prepared.nodes:
        leases += [f"port-{port}" for port in prepared.deployment.engine.ports_used(prepared.launch.port)]
        leases += [f"gpu-{gpu}" for gpu in prepared.gpus]
    on_disk = (0, 0.0)
    with state.take_leases(leases, name) as held:
        if not prepared.nodes:  # `check_nodes` has checked those
            preflight.check_launch(prepared.deployment, prepared.launch, prepared.argv)
            kv_store.prepare_store(prepared.deployment)
            on_disk = preflight.measure_weights_disk(prepared.deployment)
        if not rehearsal or not (run.path / "recipe.toml").exists():
            run.write_file("recipe.toml", codec.to_toml(recipe))
        started = engine_event.AttemptStarted(
            id=name,
            model=recipe.checkpoint,
            engine=recipe.engine,
            argv=prepared.argv,
            env=dict(prepared.launch.env),
            port=prepared.launch.port,
            gpus=prepared.gpus,
            aside=rehearsal,
        )
        run.add_event(started)
        log = run.path / "engine.log"
        log_start = log.stat().st_size if log.exists() else 0
        guard = start_engine_guard(prepared, run, held, stop_signals or ())
    instance = state.Instance(
        id=name,
        run=str(run.path),
        recipe=recipe.name,
        engine=recipe.engine,
        model=prepared.endpoint.model,
        base_url=prepared.endpoint.base_url,
        port=prepared.launch.port,
        gpus=prepared.gpus,
        key_env=recipe.listen.key_env,
        runtime=recipe.runtime.kind,
        container=f"moebox-{name}" if engines.runs_in_container(recipe) else "",
        job=prepared.job,
        guard=guard.pid,
        guard_started=state.process_start_tick(guard.pid),
        started=time.time(),
        kv_store=store_folder(prepared.deployment)
        if prepared.deployment.engine.has_slots and recipe.tiers.disk_gib
        else "",
    )
    session = EngineSession(prepared, run, state.save_instance(instance), guard, start=log_start, listener=listener)
    session.weights_bytes, session.disk_rate = on_disk
    return session


@contextlib.contextmanager
def engine_session(
    deployment: Deployment,
    run: Run,
    *,
    patience_s: float = PATIENCE_S,
    deadline: float = math.inf,
    stop_signals: StopSignals | None = None,
    listener: LogListener | None = None,
    rehearsal: bool = False,
) -> Iterator[EngineSession]:
    """Run an engine for the length of a `with` block. A listen.port of 0 takes a free port."""
    prepared = prepare_launch(deployment, name=run.id)
    with launch_engine(prepared, run, stop_signals=stop_signals, listener=listener, rehearsal=rehearsal) as session:
        session.wait_ready(patience_s=patience_s, deadline=deadline)
        yield session
