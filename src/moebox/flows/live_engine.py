"""The pipeline's engine: started when a step needs it, kept between steps, and never left behind."""

from typing import Any

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.engine_facts import EngineFacts
from moebox.core.recipe import PlannedFor, Recipe
from moebox.serve import ports, state
from moebox.serve.session import Session
from moebox.serve.wait import wait_for
from moebox.serve.watch import Tell
from moebox.store import Run

DYING_S, LOOK_S = 1.0, 0.05  # a process closes its connections a moment before it is gone


class LiveEngine:
    """At most one live engine, or the twin of one."""

    def __init__(self, run: Run, *, twin: bool, place: PlannedFor, tell: Tell) -> None:
        self.run, self.twin, self.place, self.tell = run, twin, place, tell
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

            self._twin = Twin(recipe, place=self.place, run=self.run)
        else:
            self.live = ports.start(deploy(recipe), self.run, on_news=self.tell)
        self._recipe = recipe
        return self.endpoint

    def _same(self, recipe: Recipe) -> bool:
        """Whatever port it found: a launch writes the port it took back into the recipe."""
        return self._recipe is not None and self._recipe.on_port(0) == recipe.on_port(0)

    @property
    def alive(self) -> bool:
        """There is one, and its process is there."""
        if self._twin is not None:
            return bool(self._twin.alive)
        if self.live is None or not self.live.alive:
            return False
        return state.start_tick(self.live.instance.life.engine) >= 0

    def died(self) -> bool:
        """It is dead; one that has just been killed gets the moment that takes to show."""
        return wait_for(lambda: not self.alive, DYING_S, every_s=LOOK_S)

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        if self._twin is not None:
            found: Endpoint = self._twin.endpoint
            return found
        assert self.live is not None, "nothing was started"
        return self.live.endpoint

    @property
    def facts(self) -> EngineFacts:
        """What the engine said about itself."""
        return self.live.facts if self.live else EngineFacts()

    @property
    def startup_s(self) -> float:
        """How long it took to answer."""
        return self.live.startup_s if self.live else 0.0

    def down(self) -> bool:
        """Stop it, harmless when there is none; True where the kernel had ended it for want of memory."""
        oom = False
        if self.live is not None:
            self.live.stop()
            oom, self.live = self.live.oom, None
        if self._twin is not None:
            self._twin.stop()
            self._twin = None
        self._recipe = None
        return oom

    def close(self, *, detach: bool) -> None:
        """The end of the run: leave it running, or leave nothing."""
        if detach and self.live is not None and self.live.alive:
            self.live.detach()
            return
        self.down()
