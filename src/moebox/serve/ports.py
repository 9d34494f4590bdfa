"""Start an engine on its port, or on a free one if another process has taken it."""

import contextlib

from moebox.core import registry
from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.detect.conditions import listening_sockets, open_files
from moebox.errors import ExternalError, MoeboxError
from moebox.serve import preflight, state
from moebox.serve.session import PATIENCE_S, EngineSession, launch_engine, prepare_launch
from moebox.serve.watch import Notify
from moebox.store import Run

PORT_TRIES = 3  # another process may take a port between our check and the engine's start


def start_on_free_port(
    deployment: Deployment, run: Run, *, notify: Notify, patience_s: float = PATIENCE_S
) -> EngineSession:
    """Start an engine on the recipe's port, or on a free one if that is taken. The caller stops it."""
    for left in reversed(range(PORT_TRIES)):
        recipe = deployment.recipe
        if not (recipe.listen.port and recipe_port_is_free(recipe, run.id)):
            free = preflight.find_free_port(recipe.listen.host, deployment.engine.ports)
            if recipe.listen.port:
                notify(f"port {recipe.listen.port} is taken; using {free}")
            recipe = recipe.with_port(free)
        try:
            session = launch_engine(prepare_launch(deployment.with_recipe(recipe), name=run.id), run)
            session.wait_ready(patience_s=patience_s)
            port = session.prepared.launch.port
            if recipe.runtime.kind in ("native", "embedded") and not engine_listens_on(port, run.id):
                session.stop()
                raise ExternalError(f"port {port} is answered by another program than the engine that was started")
            return session
        except ExternalError:
            if not left or recipe_port_is_free(recipe, run.id):
                raise
    raise AssertionError("the last try raises")


def recipe_port_is_free(recipe: Recipe, holder: str) -> bool:
    """No process listens on the recipe's ports, and no other moebox has leased them."""
    with contextlib.suppress(MoeboxError):
        for port in registry.engine_traits(recipe.engine).ports_used(recipe.listen.port):
            preflight.check_port(recipe.listen.host, port)
            state.Lease(f"port-{port}", holder).close()
        return True
    return False


def engine_listens_on(port: int, name: str) -> bool:
    """Whether a process of the engine `name` listens on `port`; True if the kernel does not show it."""
    listening = listening_sockets(port)
    files = [file for pid in state.marked_processes().get(name, ()) for file in open_files(pid)]
    own = {file for file in files if file.startswith("socket:")}
    return not listening or not own or bool(listening & own)
