"""Prepare a launch (argv, environment, address, GPUs) and start it under a guard."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moebox import engines
from moebox.core.deployment import Deployment
from moebox.core.endpoint import Endpoint, endpoint_from_url
from moebox.core.plan import Launch
from moebox.core.recipe import VISIBLE_DEVICES, Recipe
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError, Unsupported
from moebox.hub.client import find_snapshot
from moebox.redact import key_spellings
from moebox.serve import installs, preflight, state
from moebox.serve.guard import GuardConfig, oom_counter_files
from moebox.site import read_site
from moebox.store import Run

StopSignals = Sequence[tuple[str, float]]  # signals by name, and seconds to wait after each


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLaunch:
    deployment: Deployment
    launch: Launch
    argv: tuple[str, ...]
    endpoint: Endpoint
    secrets: dict[str, str]  # by variable; passed to the engine's environment and nowhere else
    gpus: tuple[int, ...]
    nodes: tuple[str, ...] = ()  # by rank, if it runs on other machines
    job: str = ""  # their Slurm allocation

    @property
    def recipe(self) -> Recipe:
        """The recipe with its final port."""
        return self.deployment.recipe


def prepare_launch(deployment: Deployment, *, name: str = "") -> PreparedLaunch:
    """Decide what to run. Raise if the recipe cannot be launched."""
    recipe = deployment.recipe.with_store_here()
    runtime = installs.installed_runtime(recipe.engine, recipe.engine_version, recipe.runtime)
    recipe = dataclasses.replace(recipe, runtime=runtime)
    deployment = with_fetched_file(deployment.with_recipe(recipe))
    key = os.environ.get(recipe.listen.key_env) if recipe.listen.key_env else None
    if recipe.listen.key_env and not key:
        raise BadInput(f"the recipe takes its key from ${recipe.listen.key_env}, which is not set")
    if recipe.parallel.nodes > 1:
        files = "`moebox render --as script|slurm|k8s` writes what each node runs"
        hint = "; ".join(["`moebox up --hosts FILE` or `--slurm`"] + [files] * (not deployment.engine.worker_programs))
        raise Unsupported(f"{recipe.name} spans {recipe.parallel.nodes} nodes, and none is named", hint=hint)
    if not recipe.listen.port:
        port = preflight.find_free_port(recipe.listen.host, deployment.engine.ports)
        deployment = deployment.with_recipe(recipe.with_port(port))
        recipe = deployment.recipe
    engines.check_recipe(deployment)  # invalid settings, flags that the engine does not have
    engines.require_weights_file(deployment)
    if recipe.tiers.disk_gib:  # the store belongs to the version that runs
        version, digest = preflight.running_version(deployment), preflight.image_digest(deployment)
        deployment = dataclasses.replace(deployment, running_version=version, image_digest=digest)
    launch = engines.build_launch(deployment)
    argv = engines.launch_command(deployment, launch, run=name, home=str(Path.home()))
    if recipe.runtime.kind == "embedded":
        flags = launch.argv[len(engines.load_engine(recipe.engine).entry_command(recipe)) :]
        argv = (sys.executable, "-m", "moebox.serve.embedded", *flags)
    host = "127.0.0.1" if launch.host in ("0.0.0.0", "::", "localhost") else launch.host  # noqa: S104
    address = f"[{host}]:{launch.port}" if ":" in host else f"{host}:{launch.port}"
    return PreparedLaunch(
        deployment=deployment,
        launch=launch,
        argv=argv,
        endpoint=endpoint_from_url(address, recipe.served_name, key=key, engine=recipe.engine),
        secrets=launch_secrets(launch),
        gpus=recipe_gpus(deployment),
    )


def recipe_gpus(deployment: Deployment) -> tuple[int, ...]:
    """Numbers of this machine's GPUs that the recipe uses."""
    recipe = deployment.recipe
    if recipe.runtime.kind == "embedded":
        return ()
    named = recipe.env.get(VISIBLE_DEVICES, os.environ.get(VISIBLE_DEVICES))
    if named is None:
        numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
        visible = tuple(sorted(int(number) for number in numbers if number.isdigit()))
    else:
        visible = tuple(int(word) for word in named.split(",") if word.strip().isdigit())
    if VISIBLE_DEVICES in recipe.env or deployment.engine.uses_all_gpus:
        return visible
    return visible[: recipe.parallel.gpu_count // max(recipe.parallel.nodes, 1)]


def with_fetched_file(deployment: Deployment) -> Deployment:
    """The deployment with the path of its GGUF, if the Hub's cache has every part of it.

    llama.cpp and its fork would download the repository's file into caches of their own.
    """
    recipe, checkpoint = deployment.recipe, deployment.known_checkpoint
    runs_here = recipe.runtime.kind in ("native", "embedded")
    if not (runs_here and checkpoint and checkpoint.repo and checkpoint.file) or checkpoint.path:
        return deployment
    folder = find_snapshot(checkpoint.repo, deployment.revision)
    path = folder / checkpoint.file if folder else None
    if path and path.is_file() and not preflight.missing_shards(path):
        return dataclasses.replace(deployment, known_checkpoint=dataclasses.replace(checkpoint, path=str(path)))
    if recipe.runtime.kind == "embedded" or deployment.revision:  # llama.cpp would download the default branch
        hint = f"`moebox fetch {recipe.checkpoint}` fetches it; `moebox run` offers to"
        raise ExternalError(f"{checkpoint.file} of {checkpoint.repo} is not in the Hub's cache", hint=hint)
    return deployment


def launch_secrets(launch: Launch) -> dict[str, str]:
    """Values of the variables that are passed on by name, if they are set."""
    return {inner: os.environ[outer] for inner, outer in launch.secret_env.items() if os.environ.get(outer)}


def require_engine(deployment: Deployment) -> None:
    """Raise if the recipe cannot be launched or its engine is not installed, before a run folder is made."""
    prepared = prepare_launch(deployment)
    preflight.check_engine(prepared.deployment, prepared.argv)


def start_guard(name: str, run: Run, config: GuardConfig) -> "subprocess.Popen[bytes]":
    """Start a guard and send its config over stdin, so that no secret is in an argv or a file."""
    guard = subprocess.Popen(
        [sys.executable, "-m", "moebox.serve.guard", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=open(run.path / "guard.log", "ab"),  # noqa: SIM115  (belongs to the child)
        env=chosen_environment(),
        start_new_session=True,
        pass_fds=config.leases,
    )
    assert guard.stdin
    guard.stdin.write(json.dumps(dataclasses.asdict(config)).encode() + b"\n")
    guard.stdin.flush()
    return guard


def send_to_guard(guard: "subprocess.Popen[bytes]", message: bytes) -> None:
    """Send a command to a guard; ignored if the guard has ended."""
    with contextlib.suppress(OSError, ValueError):
        if guard.stdin:
            guard.stdin.write(message)
            guard.stdin.flush()


def start_engine_guard(
    prepared: PreparedLaunch, run: Run, leases: tuple[int, ...], stop_signals: StopSignals
) -> "subprocess.Popen[bytes]":
    """Start the guard of an engine. Empty `stop_signals` mean the guard's own."""
    name = run.id
    in_container = engines.runs_in_container(prepared.recipe)
    remove_container = (prepared.recipe.runtime.kind, "rm", "--force", f"moebox-{name}") if in_container else ()
    env = {} if in_container or prepared.nodes else prepared.launch.env
    shared, repo = read_site().weights, prepared.deployment.weights_path.replace("/", "--")
    is_held = shared and (Path(shared) / f"models--{repo}" / "snapshots").is_dir()
    chosen_by_user = any(name in env or name in os.environ for name in ("HF_HOME", "HF_HUB_CACHE"))
    if is_held and not (in_container or prepared.nodes or chosen_by_user):
        env = {**env, "HF_HUB_CACHE": shared, "HF_HUB_OFFLINE": "1"}  # the folder is read-only
    if prepared.nodes and "SSH_AUTH_SOCK" in os.environ:  # for ssh to the nodes; engines there do not get it
        env = {"SSH_AUTH_SOCK": os.environ["SSH_AUTH_SOCK"]}
    config = GuardConfig(
        mark=state.instance_mark(name),
        argv=tuple(prepared.argv),
        # Unbuffered: the output of a Python engine must be in the log before it dies.
        env={"PYTHONUNBUFFERED": "1", **env, **prepared.secrets},
        secrets=tuple(key_spellings(prepared.secrets.values())),
        log=str(run.path / "engine.log"),
        state_path=str(state.guard_state_path(name)),
        cwd=os.getcwd(),
        leases=leases,
        oom_files=tuple(oom_counter_files()),
        stop_signals=tuple(stop_signals),
        cleanup_argv=("scancel", prepared.job) if prepared.job else remove_container,
    )
    return start_guard(name, run, config)
