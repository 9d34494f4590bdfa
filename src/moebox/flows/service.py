"""Keep an engine up: restart it when it dies or hangs, keep the evidence of each incident, guard the disk.

A canary asks for a short chat now and then. /health is not asked: servers answer it while their engine hangs.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from moebox import http
from moebox.core.deployment import Deployment
from moebox.core.engine_event import ServiceRestarted
from moebox.core.metrics import find_metric
from moebox.detect.stall import StallLimits, StallWatch, last_log_lines
from moebox.errors import ExternalError
from moebox.files import write_atomic, xdg_home
from moebox.flows.pace import read_metrics
from moebox.render import render_service_unit
from moebox.render.quoting import make_slug
from moebox.serve.facts import HEALTH_TIMEOUT_S, ChatProbe
from moebox.serve.faults import LaunchFailed
from moebox.serve.order import StopSignals
from moebox.serve.session import EngineSession, engine_session
from moebox.serve.state import Lease
from moebox.serve.where import ServiceSettings
from moebox.store import Run
from moebox.units import format_gib, format_seconds

LOOK_S = 0.5
BUSY_STATUSES = (429, 503)  # it answers, and has no room or loads
LOG_LINES = 200  # of the engine's log, kept of each incident
METRICS_BYTES = 200_000
KEPT_INCIDENTS = 50  # of one service; older ones are removed


@dataclass(slots=True)
class Service:
    """One engine that is kept up. `report` gets a line for each incident."""

    deployment: Deployment
    run: Run
    settings: ServiceSettings
    report: Callable[[str], None]
    stop_signals: StopSignals | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    restarts: int = 0

    def keep_up(self, *, patience_s: float, on_ready: Callable[[EngineSession], None]) -> None:
        """Start the engine again and again until `stop` is set. Raise LaunchFailed if it fails to start too often."""
        name = self.deployment.recipe.name
        try:
            lease = Lease(f"service-{name}", f"process {os.getpid()}")
        except ExternalError as problem:
            text = f"the service {name} runs already ({problem.message.rpartition(' is in use by ')[2]})"
            raise ExternalError(text, hint="`moebox ps` shows it, `moebox down` stops it") from None
        with contextlib.closing(lease):
            failed, pause_s = 0, self.settings.pause_s
            while not self.stop.is_set():
                self.guard_disk()
                try:
                    with engine_session(
                        self.deployment, self.run, patience_s=patience_s, stop_signals=self.stop_signals
                    ) as session:
                        notify_systemd("READY=1")
                        failed, pause_s = 0, self.settings.pause_s
                        on_ready(session)
                        reason = self.watch(session)
                        if reason:
                            self.keep_evidence(session, reason)
                except LaunchFailed as problem:
                    failed, reason = failed + 1, problem.message
                    if failed >= self.settings.failed_starts:
                        raise
                if reason:
                    self.restarts += 1
                    self.report(f"{reason}; restart {self.restarts} in {format_seconds(pause_s)}")
                    self.run.add_event(ServiceRestarted(reason=reason, number=self.restarts))
                    self.stop.wait(pause_s)
                    pause_s = min(2 * pause_s, self.settings.max_pause_s) if failed else self.settings.pause_s

    def watch(self, session: EngineSession) -> str:
        """Wait for an incident and return its reason, or "" if the service is stopped."""
        canary: ChatProbe | None = None
        asked_at, moved_at, tokens = time.monotonic(), 0.0, 0.0
        with StallWatch(session.endpoint, StallLimits(still_s=self.settings.stall_s)) as stall:
            while not self.stop.wait(LOOK_S):
                notify_systemd("WATCHDOG=1")
                session.read_log()
                if not session.is_alive:
                    if session.instance.guard_state.asked:  # `moebox down` stops the service too
                        self.stop.set()
                        return ""
                    return f"{session.recipe.engine} ended"
                if stall.problem:
                    return stall.problem.message
                now = time.monotonic()
                if canary is not None and canary.reply is not None:
                    if canary.problem and canary.reply.status not in BUSY_STATUSES:
                        return f"the canary got no chat: {canary.problem}"
                    canary = None
                elif canary is None and now - asked_at >= self.settings.canary_every_s:
                    asked_at = moved_at = now
                    tokens, canary = count_tokens(session), ChatProbe(session.endpoint)
                    canary.start()
                elif canary is not None and now - moved_at >= self.settings.canary_s:
                    before, tokens = tokens, count_tokens(session)
                    if tokens <= before:
                        return f"a chat got no answer for {format_seconds(now - asked_at)}, and no token came out"
                    moved_at = now  # a long queue, and it moves
        return ""

    def keep_evidence(self, session: EngineSession, reason: str) -> None:
        """Write what is known of an incident into the run folder, before the engine is stopped."""
        server, headers = session.endpoint.server_url, session.endpoint.headers
        health = http.get(f"{server}/health", headers=headers, timeout_s=HEALTH_TIMEOUT_S)
        metrics = http.get(f"{server}/metrics", headers=headers, timeout_s=HEALTH_TIMEOUT_S)
        processes = []
        with contextlib.suppress(psutil.Error):
            engine = psutil.Process(session.instance.guard_state.engine)
            for process in (engine, *engine.children(recursive=True)):
                with contextlib.suppress(psutil.Error, OSError):
                    waits_in = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8", errors="replace")
                    about = {"pid": process.pid, "name": process.name(), "status": process.status()}
                    processes.append({**about, "cpu_s": sum(process.cpu_times()[:2]), "waits_in": waits_in})
        document = {
            "at": time.time(),
            "reason": reason,
            "health": health.status or health.error,
            "metrics": metrics.text[:METRICS_BYTES] if metrics.ok else metrics.error,
            "processes": processes,
            "log": last_log_lines(session.log, LOG_LINES),
        }
        name = f"incidents/{time.strftime('%Y%m%d-%H%M%S')}-{self.restarts + 1}.json"
        with contextlib.suppress(OSError):  # a full disk must not keep the engine down
            self.run.write_json(name, document)

    def guard_disk(self) -> None:
        """Remove old incidents; raise ExternalError if too little of the disk is free to start an engine."""
        kept = sorted(self.run.path.glob("incidents/*.json"))
        least = self.settings.min_free_gib * 2**30
        while (free := shutil.disk_usage(self.run.path).free) < least or len(kept) > KEPT_INCIDENTS:
            if not kept:
                text = f"only {format_gib(free)} are free on the disk of {self.run.path}"
                raise ExternalError(text, hint=f"free {format_gib(least)}, or lower service.min_free_gib")
            kept.pop(0).unlink(missing_ok=True)


def count_tokens(session: EngineSession) -> float:
    """Prompt and output tokens that the engine counted so far; 0 without metrics."""
    page = read_metrics(session.endpoint, timeout_s=HEALTH_TIMEOUT_S)
    return sum(page.get(find_metric(name, page), 0.0) for name in ("prompt_tokens_total", "output_tokens_total"))


def notify_systemd(message: str) -> None:
    """Send a message to the service manager that started this process (sd_notify), if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(message.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def find_unit(name: str) -> tuple[Path, list[str]]:
    """Return where a recipe's unit lies, of this user or of the system for root, and the words that control it."""
    file = f"moebox-{make_slug(name)}.service"
    if os.geteuid() == 0:
        return Path("/etc/systemd/system", file), ["systemctl"]
    return xdg_home("config") / "systemd" / "user" / file, ["systemctl", "--user"]


def control_unit(verb: Literal["is-active", "start", "stop"], name: str) -> bool:
    """Let systemd do this with a recipe's unit. False if there is none, or if systemd refuses."""
    path, control = find_unit(name)
    argv = [*control, verb, path.stem]
    return path.exists() and bool(shutil.which(argv[0])) and not subprocess.run(argv, capture_output=True).returncode


def install_unit(deployment: Deployment, recipe: str, settings: Sequence[str]) -> tuple[Path, list[str]]:
    """Write a unit that keeps a recipe's engine up. Return its path, and the commands that start it."""
    path, control = find_unit(deployment.recipe.name)
    given = [str(Path(recipe).resolve())] if Path(recipe).is_file() else [recipe]
    command = [sys.executable, "-m", "moebox", "up", *given, "--service"]
    command += [word for setting in settings for word in ("--set", setting)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render_service_unit(deployment, command, system="--user" not in control), mode=0o644)
    return path, [" ".join([*control, *words]) for words in (["daemon-reload"], ["enable", "--now", path.stem])]
