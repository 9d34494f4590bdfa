"""Where the story's engine stands: started when a step needs it, kept between steps, and never left behind."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from moebox.core.endpoint import Endpoint
from moebox.core.recipe import Recipe
from moebox.serve import preflight
from moebox.serve.recipes import model_of
from moebox.serve.session import PATIENCE_S, Session, launch, prepare
from moebox.store import Run


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
        settled = self._settled(recipe)
        session = launch(prepare(settled, model=model_of(settled), name=self.run.id), self.run)
        try:
            session.wait_ready(patience_s=PATIENCE_S)
        except BaseException:
            session.stop()
            raise
        self.live, self._recipe = session, recipe
        return session.endpoint

    def _settled(self, recipe: Recipe) -> Recipe:
        """The recipe on a port that is free: its own if it is, another one otherwise."""
        listen = recipe.listen
        if listen.port and not _free(listen.host, listen.port):
            port = preflight.free_port(listen.host)
            self.tell(f"port {listen.port} is taken; using {port}")
            return dataclasses.replace(recipe, listen=dataclasses.replace(listen, port=port))
        return recipe

    def _same(self, recipe: Recipe) -> bool:
        return self._recipe is not None and _portless(self._recipe) == _portless(recipe)

    @property
    def alive(self) -> bool:
        """There is one, and its process is there."""
        if self._twin is not None:
            return bool(self._twin.alive)
        return self.live is not None and self.live.alive

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


def _free(host: str, port: int) -> bool:
    from moebox.errors import MoeboxError

    with contextlib.suppress(MoeboxError):
        preflight.port(host, port)
        return True
    return False
