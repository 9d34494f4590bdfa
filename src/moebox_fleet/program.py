"""Run a program that is not an engine (a router, a twin) under a guard, listed and stopped like an engine."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moebox.core.endpoint import Endpoint
from moebox.core.engine_event import ProgramStarted
from moebox.errors import ExternalError
from moebox.redact import key_spellings
from moebox.serve import preflight, state
from moebox.serve.guard import STOP_SIGNALS, GuardConfig
from moebox.serve.order import send_to_guard, start_guard
from moebox.serve.stop import stop_instance as stop_instance
from moebox.store import Run

LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    title: str  # as ps shows it
    kind: str  # sglang-router, twin, …
    argv: tuple[str, ...]
    endpoint: Endpoint
    host: str
    port: int
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)  # added to its environment, hidden in its log
    key_env: str = ""
    cwd: str = ""
    ports: tuple[int, ...] = ()  # others that it listens on


class GuardedProgram:
    """One program under its guard, until it is stopped or detached."""

    def __init__(self, config: ProgramConfig, run: Run) -> None:
        self.config, self.run, self.endpoint = config, run, config.endpoint
        self.log: Path = run.path / "engine.log"
        ports = (config.port, *config.ports)
        with state.take_leases([f"port-{port}" for port in ports], run.id) as leases:
            for port in ports:
                preflight.check_port(config.host, port)
            run.add_event(ProgramStarted(id=run.id, program=config.kind, argv=config.argv, port=config.port))
            guard_config = GuardConfig(
                mark=state.instance_mark(run.id),
                argv=config.argv,
                env={"PYTHONUNBUFFERED": "1", **config.env, **config.secrets},
                secrets=tuple(key_spellings(config.secrets.values())),
                log=str(self.log),
                state_path=str(state.guard_state_path(run.id)),
                cwd=config.cwd or os.getcwd(),
                leases=leases,
            )
            self.guard = start_guard(run.id, run, guard_config)
        instance = state.Instance(
            id=run.id,
            run=str(run.path),
            recipe=config.title,
            engine=config.kind,
            model=config.endpoint.model,
            base_url=config.endpoint.base_url,
            port=config.port,
            key_env=config.key_env,
            guard=self.guard.pid,
            guard_started=state.process_start_tick(self.guard.pid),
            started=time.time(),
        )
        self.instance = state.save_instance(instance)

    @property
    def is_alive(self) -> bool:
        """The guard runs, and with it the program."""
        return self.guard.poll() is None

    def wait_until_ready(self, is_ready: Callable[[], bool], *, patience_s: float, every_s: float = LOOK_S) -> None:
        """Wait until `is_ready()`. If it ends or takes too long, stop it and raise ExternalError with its last line."""
        until = time.monotonic() + patience_s
        try:
            while not is_ready():
                late = time.monotonic() > until
                if late or not self.is_alive:
                    what = "ended while starting" if not self.is_alive else f"did not answer within {patience_s:.0f} s"
                    raise ExternalError(f"{self.config.kind} {what}: {self.last_log_line()}", hint=f"log: {self.log}")
                time.sleep(every_s)
        except BaseException:
            self.stop()
            raise
        self.instance = state.update_instance(self.instance, ready=time.time())

    def last_log_line(self) -> str:
        """The end of the last line in its log, or the error that kept it from starting."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return self.instance.guard_state.error or (lines[-1].strip()[-200:] if lines else "it printed nothing")

    def stop(self) -> None:
        """Stop the program and everything it started. Does nothing if it has ended."""
        send_to_guard(self.guard, b"stop\n")
        if self.guard.stdin:
            with contextlib.suppress(OSError):
                self.guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guard.wait(sum(wait for _, wait in STOP_SIGNALS) + 15.0)
        stop_instance(self.instance)

    def detach(self) -> None:
        """Keep the program running after this process ends."""
        send_to_guard(self.guard, b"detach\n")
        self.instance = state.update_instance(self.instance, detached=True)


def stop_all(stops: Sequence[Callable[[], object]]) -> None:
    """Call every function, and raise the first failure at the end."""
    problem: BaseException | None = None
    for stop in stops:
        try:
            stop()
        except (ExternalError, OSError, KeyboardInterrupt) as failed:
            problem = problem or failed
    if problem:
        raise problem
