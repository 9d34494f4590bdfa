"""A deployment to what is run: the engine's command, and the docker or podman command around it.

Nothing is started here. Keys are passed by name only; their values are never in an argv.
"""

import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from moebox.core import presets, validation
from moebox.core.deployment import Deployment
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.core.versions import version_numbers
from moebox.engines.arguments import LaunchNode, flatten
from moebox.engines.engine import load_engine
from moebox.engines.flags import newest_version
from moebox.engines.kv_store import store_folder
from moebox.errors import refuse_if

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HUB_CACHE = "~/.cache/huggingface"  # where the Hub's client keeps downloads unless HF_HOME is set
HUB_CACHE_INSIDE = "/root/.cache/huggingface"
LABEL = "moebox.run"
GPU_OPTIONS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}


def build_launch(deployment: Deployment, *, rank: int = 0, master: str = "", addresses: tuple[str, ...] = ()) -> Launch:
    """Return the engine's own command with its environment, secrets, image and mounts.

    `launch_command` puts docker or podman around it.
    """
    node = LaunchNode(rank=rank, master=master or "127.0.0.1", follows=rank > 0, addresses=addresses)
    recipe, traits = deployment.recipe, deployment.engine
    engine = load_engine(traits.name)
    if node.follows and traits.worker_programs:  # serves the first node and no client: it gets no key
        command = engine.worker_command(deployment, node)
        return Launch(argv=command, env=engine.environment(deployment))
    inside = runs_in_container(recipe)
    host = "0.0.0.0" if inside and container_network(recipe) != "host" else recipe.listen.host  # noqa: S104
    entry = image_entry(deployment) if inside else engine.entry_command(recipe)
    command = (*entry, *flatten(engine.arguments(deployment, node=node, host=host)))
    # The key, and the Hub's token if weights are downloaded, are passed on by name.
    secrets = {traits.key_env: recipe.listen.key_env} if recipe.listen.key_env else {}
    if not weights_folder(deployment):
        secrets["HF_TOKEN"] = "HF_TOKEN"  # noqa: S105
    launch = Launch(
        argv=engine.hide_api_key(command) if recipe.listen.key_env else command,
        env=engine.environment(deployment) | (download_variable(deployment, HUB_CACHE_INSIDE) if inside else {}),
        secret_env=secrets,
        port=recipe.listen.port,
        host=recipe.listen.host,
    )
    return replace(launch, image=image_name(deployment), mounts=container_mounts(deployment)) if inside else launch


def runs_in_container(recipe: Recipe) -> bool:
    return recipe.runtime.kind in ("docker", "podman")


def image_name(deployment: Deployment) -> str:
    """Return the recipe's image, its preset's, or the engine's own for this version."""
    recipe, engine = deployment.recipe, deployment.engine
    if given := recipe.runtime.image or presets.load_preset(recipe.runtime.preset).image:
        return given
    version, repository = recipe.engine_version or newest_version(engine.name), engine.image.partition(":")[0]
    if version == "latest" and repository:
        return f"{repository}:latest"
    unknown = not version_numbers(version) or "dev" in version or "+" in version
    text = f"engine_version: no image of {engine.title} {version} is known"
    refuse_if(unknown, text, hint=f'name one: runtime.image = "{repository or "REPOSITORY"}:TAG"')
    return engine.image.format(version=version)


def image_entry(deployment: Deployment) -> tuple[str, ...]:
    """Return the command that starts the engine inside its image."""
    given = deployment.recipe.runtime.entry or presets.load_preset(deployment.recipe.runtime.preset).entry
    return validation.parse_entry(given) if given else deployment.engine.image_entry


def container_network(recipe: Recipe) -> str:
    """Return "host" if the container shares the machine's network, or "" if its port is published."""
    options = {*recipe.runtime.options, *map("=".join, pairwise(recipe.runtime.options))}
    if recipe.parallel.nodes > 1 or options & {"--network=host", "--net=host"}:
        return "host"  # ranks on other nodes must reach this one
    return presets.load_preset(recipe.runtime.preset).network


def container_mounts(deployment: Deployment) -> dict[str, str]:
    """Return host path to path inside: the recipe's own, the weights or the Hub's cache, and the preset's cache."""
    recipe, folder = deployment.recipe, weights_folder(deployment)
    mounts = dict(recipe.runtime.mounts)
    inside = [target.split(":")[0] for target in mounts.values()]
    if not folder and HUB_CACHE_INSIDE not in inside:
        mounts[recipe.runtime.models_dir or HUB_CACHE] = HUB_CACHE_INSIDE
    elif folder and folder not in mounts and not folder.startswith(tuple(inside)):
        mounts[folder] = f"{folder}:ro"
    if recipe.tiers.disk_gib:
        mounts[store_folder(deployment, outside=True)] = store_folder(deployment)
    cache = presets.load_preset(recipe.runtime.preset).cache
    if cache and cache not in mounts.values():
        # Named after the image, so that kernels of an older one are not found again.
        mounts[f"moebox-jit-{image_name(deployment).rpartition(':')[2]}"] = cache
    return mounts


def download_variable(deployment: Deployment, folder: str) -> dict[str, str]:
    """Return the variable that makes an engine keep downloaded weights in a mounted folder, if it needs one."""
    name = deployment.engine.cache_variable
    kept_elsewhere = not name or name in deployment.recipe.env or weights_folder(deployment)
    return {} if kept_elsewhere else {name: f"{folder}/{deployment.engine.name}"}


def weights_folder(deployment: Deployment) -> str:
    """Return the folder that holds the weights on this machine, or "" if they come from the Hub.

    In a Hub cache the files are links from snapshots/ into blobs/, so it is the whole `models--…` folder.
    """
    weights = deployment.weights_path
    if not weights.startswith(("/", "~", ".")):
        return ""
    path = PurePosixPath(weights)
    for parent in path.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            return str(parent.parent)
    return str(path.parent) if weights.endswith(".gguf") else weights


def launch_command(deployment: Deployment, launch: Launch, *, run: str = "", home: str = "") -> tuple[str, ...]:
    """Return the argv to execute: the engine's own, or docker's or podman's around it. `home` replaces a leading ~."""
    recipe = deployment.recipe
    if not runs_in_container(recipe):
        return launch.argv
    argv = [recipe.runtime.kind, "run", "--rm"]
    if run:
        argv += ["--name", f"moebox-{run}", "--label", f"{LABEL}={run}"]
    argv += container_options(deployment, launch)
    for outside, inside in launch.mounts.items():
        source = home + outside[1:] if home and outside.startswith("~") else outside
        argv += ["-v", f"{source}:{inside}"]
    for name, value in launch.env.items():
        argv += ["-e", f"{name}={value}"]
    for name in launch.secret_env:
        argv += ["-e", name]
    before, after = split_at_image(deployment, launch)
    return (*argv, *before, launch.image, *after)


def container_options(deployment: Deployment, launch: Launch) -> list[str]:
    """Return devices, shared memory, network and the recipe's own options."""
    recipe = deployment.recipe
    options = [*GPU_OPTIONS[recipe.runtime.kind]] if uses_gpus(deployment) else []
    if deployment.engine.shares_memory:
        options.append("--ipc=host")  # NCCL and the workers share memory; a container's own 64 MB is too little
    own = [*recipe.runtime.options, *presets.load_preset(recipe.runtime.preset).options]
    if container_network(recipe) != "host":
        options += ["-p", published_port(launch)]
    elif not any(option.startswith(("--network", "--net")) for option in own):
        options += ["--network", "host"]
    return options + own


def uses_gpus(deployment: Deployment) -> bool:
    """True if it uses any GPU: a container that requests devices does not start on a machine without them."""
    hybrid = deployment.recipe.hybrid
    return not (deployment.engine.runs_without_gpu and hybrid is not None and hybrid.gpu_layers == 0)


def published_port(launch: Launch) -> str:
    """Return the -p value: on loopback unless the recipe has another host."""
    if launch.host == "0.0.0.0":  # noqa: S104
        return f"{launch.port}:{launch.port}"
    host = "127.0.0.1" if launch.host in LOOPBACK else launch.host
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{launch.port}:{launch.port}"


def split_at_image(deployment: Deployment, launch: Launch) -> tuple[list[str], list[str]]:
    """Return the options that must be before the image, and the words after it."""
    recipe, engine = deployment.recipe, deployment.engine
    if recipe.runtime.setup:
        return ["--entrypoint", "bash"], ["-c", f"{recipe.runtime.setup} && exec {shlex.join(launch.argv)}"]
    entry = image_entry(deployment)
    if engine.image_has_entrypoint and entry == engine.image_entry:
        if launch.argv[: len(entry)] == entry:
            return [], list(launch.argv[len(entry) :])
        return ["--entrypoint", launch.argv[0]], list(launch.argv[1:])
    return [], list(launch.argv)


def python_entry(recipe: Recipe, *, program: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that starts a Python engine here: from PATH, a venv, or a named interpreter."""
    if recipe.runtime.entry:
        return validation.parse_entry(recipe.runtime.entry)
    python = recipe.runtime.python
    if not python:
        return program
    if PurePosixPath(python).name.startswith("python"):
        return (python, *module)
    return (f"{python.rstrip('/')}/bin/{program[0]}", *program[1:])


def shell_text(launch: Launch, argv: tuple[str, ...]) -> str:
    """Return the command to paste into a shell; secrets appear as the variables they come from."""
    refuse_if(not argv, "nothing to run")
    env = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()] if not launch.image else []
    env += [f'{name}="${source}"' for name, source in launch.secret_env.items() if name != source]
    return " ".join([*env, shlex.join(argv)])
