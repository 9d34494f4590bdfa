"""Where the story's engine stands: started when a step needs it, kept between steps, and never left behind."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from moebox.checkpoint import deploy
from moebox.core import registry
from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.errors import MoeboxError, Outside
from moebox.serve import preflight, state
from moebox.serve.session import PATIENCE_S, Session, launch, prepare
from moebox.store import Run

PORTS = 3  # tried when others take them under our nose
DYING_S, LOOK_S = 1.0, 0.05  # a process closes its connections a moment before it is gone


class Stand:
    """At most one live engine, or the twin of one."""

    def __init__(self, run: Run, *, twin: bool, box: str, tell: Callable[[str], None]) -> None:
        self.run, self.twin, self.box, self.tell = run, twin, box, tell
        self.live: Session | None = None
        self._twin: Any = None
        self._recipe: Recipe | None = None

    def up(self, recipe: Recipe) -> Endpoint:
        """The endpoint of a live engine with this recipe; started now unless it is up already."""
        if self._same(recipe) and self.alive:
            return self.endpoint
        self.down()
        if self.twin:
            from moebox.flows.twin import Twin

            self._twin = Twin(recipe, box=self.box, run=self.run)
            self._recipe = recipe
            return self.endpoint
        for left in reversed(range(PORTS)):
            settled = self._settled(recipe)
            try:
                self.live = self._started(settled)
                break
            except Outside:
                if not left or self._free(settled):
                    raise
        self._recipe = recipe
        return self.endpoint

    def _started(self, recipe: Recipe) -> Session:
        session = launch(prepare(deploy(recipe), name=self.run.id), self.run)
        try:
            session.wait_ready(patience_s=PATIENCE_S)
        except BaseException:
            session.stop()
            raise
        return session

    def _settled(self, recipe: Recipe) -> Recipe:
        """The recipe on a port that is free: its own if it is, another one otherwise."""
        listen = recipe.listen
        port = (
            listen.port
            if listen.port and self._free(recipe)
            else preflight.free_port(listen.host, registry.traits(recipe.engine).ports)
        )
        if listen.port not in (0, port):
            self.tell(f"port {listen.port} is taken; using {port}")
        return dataclasses.replace(recipe, listen=dataclasses.replace(listen, port=port))

    def _free(self, recipe: Recipe) -> bool:
        """Nobody listens on the recipe's port, and no other moebox has taken it for an engine that is starting."""
        with contextlib.suppress(MoeboxError):
            for port in registry.traits(recipe.engine).ports_of(recipe.listen.port):
                preflight.port(recipe.listen.host, port)
                state.Lease(f"port-{port}", self.run.id).close()
            return True
        return False

    def _same(self, recipe: Recipe) -> bool:
        return self._recipe is not None and _portless(self._recipe) == _portless(recipe)

    @property
    def alive(self) -> bool:
        """There is one, and its process is there."""
        if self._twin is not None:
            return bool(self._twin.alive)
        if self.live is None or not self.live.alive:
            return False
        return state.start_tick(int(self.live.instance.life.get("engine", 0))) >= 0

    def died(self) -> bool:
        """It is dead; one that has just been killed gets the moment that takes to show."""
        until = time.monotonic() + DYING_S
        while self.alive and time.monotonic() < until:
            time.sleep(LOOK_S)
        return not self.alive

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        if self._twin is not None:
            found: Endpoint = self._twin.endpoint
            return found
        assert self.live is not None, "nothing was started"
        return self.live.endpoint

    @property
    def facts(self) -> dict[str, Any]:
        """What the engine said about itself."""
        return self.live.facts if self.live else {}

    @property
    def startup_s(self) -> float:
        """How long it took to answer."""
        return self.live.startup_s if self.live else 0.0

    def down(self) -> None:
        """Stop it; harmless when there is none."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        if self._twin is not None:
            self._twin.stop()
            self._twin = None
        self._recipe = None

    def close(self, *, detach: bool) -> None:
        """The end of the story: leave it running, or leave nothing."""
        if detach and self.live is not None and self.live.alive:
            self.live.detach()
            return
        self.down()


def _portless(recipe: Recipe) -> Recipe:
    """The recipe whatever port it found; a launch writes the port it took back into the recipe."""
    return dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=0))
