"""What will be run, decided before anything is: argv, environment, address, GPUs."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.event import AttemptStarted
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.errors import BadInput, Unsupported
from moebox.serve import preflight


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLaunch:
    """Everything decided before anything starts: what to run, where it will answer."""

    deployment: Deployment
    launch: Launch
    argv: tuple[str, ...]
    endpoint: Endpoint
    secrets: dict[str, str]  # variable -> value; goes to the engine's environment and nowhere else
    gpus: tuple[int, ...]
    nodes: tuple[str, ...] = ()  # by rank, where it runs on others than this machine
    job: str = ""  # Slurm's number of their allocation

    @property
    def recipe(self) -> Recipe:
        """The recipe that is launched, its port settled."""
        return self.deployment.recipe

    def started_event(self, name: str, *, rehearsal: bool) -> AttemptStarted:
        """Its beginning, for the journal."""
        return AttemptStarted(
            id=name,
            model=self.recipe.checkpoint,
            engine=self.recipe.engine,
            argv=self.argv,
            env=dict(self.launch.env),
            port=self.launch.port,
            gpus=self.gpus,
            aside=rehearsal,
        )


def _key(variable: str) -> str | None:
    """The key that clients must send; None where the recipe names no variable for one."""
    if not variable:
        return None
    key = os.environ.get(variable)
    if not key:
        raise BadInput(f"the recipe takes its key from ${variable}, which is not set")
    return key


def launch_secrets(launch: Launch) -> dict[str, str]:
    """What the variables hold that are handed through by name; those that are not set are left out."""
    return {inner: os.environ[outer] for inner, outer in launch.secret_env.items() if os.environ.get(outer)}


def _with_port(deployment: Deployment) -> Deployment:
    """The deployment with a free port where its recipe leaves the choice."""
    recipe = deployment.recipe
    if recipe.listen.port:
        return deployment
    port = preflight.find_free_port(recipe.listen.host, deployment.engine.ports)
    return deployment.with_recipe(recipe.with_port(port))


def _address(launch: Launch) -> str:
    """Where a client on this machine finds it."""
    host = "127.0.0.1" if launch.host in ("0.0.0.0", "::", "localhost") else launch.host  # noqa: S104
    return f"[{host}]:{launch.port}" if ":" in host else f"{host}:{launch.port}"


def require_engine(deployment: Deployment) -> None:
    """Raise for a recipe that cannot be launched or an engine that is not there: before a run folder is made for it."""
    prepared = prepare_launch(deployment)
    preflight.check_engine(prepared.deployment, prepared.argv)


def prepare_launch(deployment: Deployment, *, name: str = "") -> PreparedLaunch:
    """Decide what to run; raises for a recipe that cannot be launched."""
    recipe = deployment.recipe
    key = _key(recipe.listen.key_env)
    if recipe.parallel.nodes > 1:
        files = "`moebox render --as script|slurm|k8s` writes what each node runs"
        hint = "; ".join(["`moebox up --hosts FILE` or `--slurm`"] + [files] * (not deployment.engine.worker_programs))
        raise Unsupported(f"{recipe.name} spans {recipe.parallel.nodes} nodes, and none is named", hint=hint)
    deployment = _with_port(deployment)
    recipe = deployment.recipe
    engines.check_recipe(deployment)  # settings that cannot be meant, flags the engine does not have
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, run=name, home=str(Path.home()))
    if recipe.runtime.kind == "embedded":
        words = launch.argv[len(engines.modules.argv_module(recipe.engine).entry_command(recipe)) :]
        argv = (sys.executable, "-m", "moebox.serve.embedded", *words)
    endpoint = endpoint_from_url(_address(launch), recipe.served_name, key=key, engine=recipe.engine)
    return PreparedLaunch(
        deployment=deployment,
        launch=launch,
        argv=argv,
        endpoint=endpoint,
        secrets=launch_secrets(launch),
        gpus=preflight.recipe_gpus(deployment),
    )
