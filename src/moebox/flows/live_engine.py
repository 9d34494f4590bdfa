"""The pipeline's engine: started when a step needs it, kept between steps, and never left behind."""

from typing import Any

from moebox.checkpoint import deploy
from moebox.core.endpoint import Endpoint
from moebox.core.engine_facts import EngineFacts
from moebox.core.recipe import PlannedFor, Recipe
from moebox.serve import ports, state
from moebox.serve.session import EngineSession
from moebox.serve.state import wait_for
from moebox.serve.watch import Notify
from moebox.store import Run

DYING_S, LOOK_S = 1.0, 0.05  # a process closes its connections a moment before it is gone


class LiveEngine:
    """At most one live engine, or the twin of one."""

    def __init__(self, run: Run, *, twin: bool, planned_for: PlannedFor, notify: Notify) -> None:
        self.run, self.twin, self.planned_for, self.notify = run, twin, planned_for, notify
        self.live: EngineSession | None = None
        self._twin: Any = None
        self._recipe: Recipe | None = None

    def start(self, recipe: Recipe) -> Endpoint:
        """The endpoint of a live engine with this recipe; started now unless it is up already."""
        if self._same(recipe) and self.is_alive:
            return self.endpoint
        self.stop()
        if self.twin:
            from moebox.flows.twin import TwinProcess

            self._twin = TwinProcess(recipe, planned_for=self.planned_for, run=self.run)
        else:
            self.live = ports.start_on_free_port(deploy(recipe), self.run, notify=self.notify)
        self._recipe = recipe
        return self.endpoint

    def _same(self, recipe: Recipe) -> bool:
        """Whatever port it found: a launch writes the port it took back into the recipe."""
        return self._recipe is not None and self._recipe.with_port(0) == recipe.with_port(0)

    @property
    def is_alive(self) -> bool:
        """There is one, and its process is there."""
        if self._twin is not None:
            return bool(self._twin.is_alive)
        if self.live is None or not self.live.is_alive:
            return False
        return state.process_start_tick(self.live.instance.guard_state.engine) >= 0

    def is_dead(self) -> bool:
        """It is dead; one that has just been killed gets the moment that takes to show."""
        return wait_for(lambda: not self.is_alive, DYING_S, every_s=LOOK_S)

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

    def stop(self) -> bool:
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
        if detach and self.live is not None and self.live.is_alive:
            self.live.detach()
            return
        self.stop()
