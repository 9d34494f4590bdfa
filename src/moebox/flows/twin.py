"""A twin for the length of a pipeline: the simulated box in a process of its own, which dies with this one."""

import json
import os
import signal
import subprocess
import sys

from moebox import codec
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.recipe import PlannedFor, Recipe
from moebox.errors import ExternalError
from moebox.serve.guard import prctl
from moebox.serve.keys import TWIN_KEY, make_key
from moebox.store import Run

PR_SET_PDEATHSIG = 1  # linux/prctl.h
WAIT_S = 30.0


class TwinProcess:
    """A simulation that is listening."""

    def __init__(self, recipe: Recipe, *, planned_for: PlannedFor, run: Run) -> None:
        path = run.write_file("twin.toml", codec.to_toml(recipe))
        given = {"--box": planned_for.box, "--ram": planned_for.ram, "--ram-bandwidth": planned_for.ram_bandwidth}
        command = [sys.executable, "-m", "moebox", "twin", str(path), "--port", "0", "--json", "--key-env", TWIN_KEY]
        self.key = make_key()
        self.process = subprocess.Popen(
            [*command, *(word for flag, value in given.items() if value for word in (flag, value))],
            env={**os.environ, TWIN_KEY: self.key},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        self.endpoint = self._listening()

    def _listening(self) -> Endpoint:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        text = ""
        for line in self.process.stdout:
            text += line
            try:
                document = json.loads(text)
            except json.JSONDecodeError:
                continue
            return endpoint_from_url(document["url"], document["model"], key=self.key, engine="twin")
        problem = self.process.stderr.read().strip().splitlines()
        self.process.wait()
        raise ExternalError(f"the twin did not start: {problem[0] if problem else 'no reason given'}")

    @property
    def is_alive(self) -> bool:
        """It is there."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it and wait for its end."""
        if self.is_alive:
            self.process.terminate()
        try:
            self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
