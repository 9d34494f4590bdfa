"""The engine of a pipeline: started when a step needs it, kept between steps, and stopped at the end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

from moebox import codec
from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.engine_facts import EngineFacts
from moebox.core.recipe import PlannedFor, Recipe
from moebox.core.setting import flag_words, setting_flags
from moebox.errors import ExternalError
from moebox.serve import ports, state
from moebox.serve.guard import PR_SET_PDEATHSIG, prctl
from moebox.serve.session import EngineSession
from moebox.serve.state import TWIN_KEY, make_key, wait_for
from moebox.serve.watch import Notify
from moebox.store import Run

TWIN_STOP_S = 30.0
DYING_S, LOOK_S = 1.0, 0.05  # a process closes its connections a moment before it is gone


class LiveEngine:
    """At most one live engine or twin."""

    def __init__(self, run: Run, *, twin: bool, planned_for: PlannedFor, notify: Notify) -> None:
        self.run, self.twin, self.planned_for, self.notify = run, twin, planned_for, notify
        self.session: EngineSession | TwinProcess | None = None
        self._recipe: Recipe | None = None

    def start(self, recipe: Recipe) -> Endpoint:
        """Start an engine with this recipe, unless it is up already. Return its endpoint."""
        # A launch writes its port into the recipe, so ports do not count.
        if not (self._recipe and self._recipe.with_port(0) == recipe.with_port(0) and self.is_alive):
            self.stop()
            if self.twin:
                self.session = TwinProcess(recipe, planned_for=self.planned_for, run=self.run)
            else:
                self.session = ports.start_on_free_port(deploy(recipe), self.run, notify=self.notify)
            self._recipe = recipe
        assert self.session
        return self.session.endpoint

    @property
    def is_alive(self) -> bool:
        if self.session is None or not self.session.is_alive:
            return False
        if isinstance(self.session, TwinProcess):
            return True
        return state.process_start_tick(self.session.instance.guard_state.engine) >= 0

    def is_dead(self) -> bool:
        """Whether the engine is dead. Wait a moment for one that has just been killed."""
        return wait_for(lambda: not self.is_alive, DYING_S, every_s=LOOK_S)

    def stop(self) -> bool:
        """Stop the engine, if there is one. Return True if the kernel had killed it because memory ran out."""
        session, self.session, self._recipe = self.session, None, None
        if session:
            session.stop()
        return session is not None and session.oom

    def close(self, *, detach: bool) -> None:
        if detach and isinstance(self.session, EngineSession) and self.session.is_alive:
            self.session.detach()
        else:
            self.stop()


class TwinProcess:
    """The simulated box in its own process, which dies with this one."""

    facts, startup_s, ready, oom = EngineFacts(), 0.0, None, False  # an engine's, of which a twin has none

    def __init__(self, recipe: Recipe, *, planned_for: PlannedFor, run: Run) -> None:
        path = run.write_file("twin.toml", codec.to_toml(recipe))
        memory = setting_flags(planned_for, replace(planned_for, ram="", ram_bandwidth=""), "planned_for.")
        command = [sys.executable, "-m", "moebox", "twin", str(path), "--port", "0", "--json", "--key-env", TWIN_KEY]
        command += [*flag_words({"box": planned_for.box}), *memory]
        key, pipe, end = make_key(), subprocess.PIPE, partial(prctl, PR_SET_PDEATHSIG, signal.SIGTERM)
        env = {**os.environ, TWIN_KEY: key}
        self.process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, preexec_fn=end)
        text, out, errors = "", self.process.stdout, self.process.stderr
        assert out is not None
        assert errors is not None
        for line in out:
            text += line
            with contextlib.suppress(json.JSONDecodeError):  # the document has more lines
                document = json.loads(text)
                self.endpoint = endpoint_from_url(document["url"], document["model"], key=key, engine="twin")
                return
        problem = errors.read().strip().splitlines()
        self.process.wait()
        raise ExternalError(f"the twin did not start: {problem[0] if problem else 'no reason given'}")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        with self.process:
            self.process.terminate()
            try:
                self.process.wait(timeout=TWIN_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
