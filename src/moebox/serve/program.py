"""A program that is no engine (a router, a twin) under a guard of its own: started, listed, stopped like one."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moebox.core.endpoint import Endpoint
from moebox.core.event import ProgramStarted
from moebox.errors import ExternalError
from moebox.redact import key_spellings
from moebox.serve import preflight, state
from moebox.serve.guard import STOP_SIGNALS, GuardConfig
from moebox.serve.spawn import send_to_guard, start_guard
from moebox.serve.stop import stop_instance as stop_instance
from moebox.store import Run

LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """What to run and where it will answer."""

    title: str  # as ps shows it
    kind: str  # sglang-router, twin, …
    argv: tuple[str, ...]
    endpoint: Endpoint
    host: str
    port: int
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)  # into its environment, and hidden in its log
    key_env: str = ""
    cwd: str = ""
    ports: tuple[int, ...] = ()  # others that it listens on


class GuardedProgram:
    """One program under its guard, until it is stopped or let go."""

    def __init__(self, config: ProgramConfig, run: Run) -> None:
        self.config, self.run, self.endpoint = config, run, config.endpoint
        ports = (config.port, *config.ports)
        with state.take_leases([f"port-{port}" for port in ports], run.id) as leases:
            for port in ports:
                preflight.check_port(config.host, port)
            run.add_event(ProgramStarted(id=run.id, program=config.kind, argv=config.argv, port=config.port))
            self.guard = start_guard(run.id, run, self._guarded(tuple(lease.descriptor for lease in leases)))
        self.instance = state.save_instance(self._instance())

    def _guarded(self, leases: tuple[int, ...]) -> GuardConfig:
        order = self.config
        return GuardConfig(
            mark=state.instance_mark(self.run.id),
            argv=order.argv,
            env={"PYTHONUNBUFFERED": "1", **order.env, **order.secrets},
            secrets=tuple(key_spellings(order.secrets.values())),
            log=str(self.log),
            state_path=str(state.guard_state_path(self.run.id)),
            cwd=order.cwd or os.getcwd(),
            leases=leases,
        )

    def _instance(self) -> state.Instance:
        order = self.config
        return state.Instance(
            id=self.run.id,
            run=str(self.run.path),
            recipe=order.title,
            engine=order.kind,
            model=order.endpoint.model,
            base_url=order.endpoint.base_url,
            port=order.port,
            key_env=order.key_env,
            guard=self.guard.pid,
            guard_started=state.process_start_tick(self.guard.pid),
            started=time.time(),
        )

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.run.path / "engine.log"

    @property
    def is_alive(self) -> bool:
        """Its guard is there, and with it the program."""
        return self.guard.poll() is None

    def wait_until_ready(self, is_ready: Callable[[], bool], *, patience_s: float, every_s: float = LOOK_S) -> None:
        """Until `ready`; Outside with the program's own last words when it ends or takes too long."""
        until = time.monotonic() + patience_s
        while not is_ready():
            if not self.is_alive:
                raise ExternalError(
                    f"{self.config.kind} ended while starting: {self.last_log_line()}", hint=f"log: {self.log}"
                )
            if time.monotonic() > until:
                raise ExternalError(
                    f"{self.config.kind} did not answer within {patience_s:.0f} s: {self.last_log_line()}",
                    hint=f"log: {self.log}",
                )
            time.sleep(every_s)
        self.instance = state.update_instance(self.instance, ready=time.time())

    def last_log_line(self) -> str:
        """The last line it printed that says something, short."""
        error = self.instance.guard_state.error
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return error or (lines[-1].strip()[-200:] if lines else "it said nothing")

    def stop(self) -> None:
        """Down its ladder until nothing is left; harmless when it is over."""
        send_to_guard(self.guard, b"stop\n")
        if self.guard.stdin:
            with contextlib.suppress(OSError):
                self.guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guard.wait(sum(wait for _, wait in STOP_SIGNALS) + 15.0)
        stop_instance(self.instance)

    def detach(self) -> None:
        """Let it go on without us."""
        send_to_guard(self.guard, b"detach\n")
        self.instance = state.update_instance(self.instance, detached=True)


def stop_all(stops: Sequence[Callable[[], None]]) -> None:
    """Every stop is tried, whatever the others do; the first failure is told at the end."""
    problem: BaseException | None = None
    for stop in stops:
        try:
            stop()
        except (ExternalError, OSError, KeyboardInterrupt) as failed:
            problem = problem or failed
    if problem:
        raise problem
