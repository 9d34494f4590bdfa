"""A deployment to what is run: the engine's command, and the docker or podman command around it.

Nothing is started here. Keys are passed by name only; their values never stand in an argv.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from moebox.core import grammar, presets
from moebox.core.deployment import Deployment
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.engines import modules
from moebox.engines.arguments import LaunchNode, flatten
from moebox.engines.flags import newest_version
from moebox.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HUB_CACHE = "~/.cache/huggingface"  # where the Hub's client keeps downloads unless HF_HOME says otherwise
HUB_CACHE_INSIDE = "/root/.cache/huggingface"
LABEL = "moebox.run"
GPU_OPTIONS = {"docker": ("--gpus", "all"), "podman": ("--device", "nvidia.com/gpu=all")}


def assemble_launch(deployment: Deployment, *, node: LaunchNode) -> Launch:
    """The engine's own command with everything it needs around it."""
    recipe, argv = deployment.recipe, modules.argv_module(deployment.engine.name)
    if node.follows and deployment.engine.worker_programs:  # it serves the first node and no client: it gets no key
        return Launch(argv=argv.worker_command(deployment, node), env=argv.environment(deployment), rank=int(node.rank))
    inside = runs_in_container(recipe)
    host = "0.0.0.0" if inside and container_network(recipe) != "host" else recipe.listen.host  # noqa: S104
    start = image_entry(deployment) if inside else argv.entry_command(recipe)
    words = (*start, *flatten(argv.arguments(deployment, node=node, host=host)))
    launch = Launch(
        argv=argv.hide_api_key(words) if recipe.listen.key_env else words,
        env=argv.environment(deployment) | (download_variable(deployment, HUB_CACHE_INSIDE) if inside else {}),
        secret_env=secret_variables(deployment),
        port=recipe.listen.port,
        host=recipe.listen.host,
        rank=node.rank if isinstance(node.rank, int) else 0,
    )
    return replace(launch, image=image_name(deployment), mounts=container_mounts(deployment)) if inside else launch


def runs_in_container(recipe: Recipe) -> bool:
    """Whether it runs in a container."""
    return recipe.runtime.kind in ("docker", "podman")


def image_name(deployment: Deployment) -> str:
    """The recipe's image, its preset's, or the engine's own for this version."""
    recipe, engine = deployment.recipe, deployment.engine
    own = engine.image.format(version=recipe.engine_version or newest_version(engine.name))
    return recipe.runtime.image or presets.recipe_preset(recipe).image or own


def image_entry(deployment: Deployment) -> tuple[str, ...]:
    """The words that start the engine inside its image."""
    given = deployment.recipe.runtime.entry or presets.recipe_preset(deployment.recipe).entry
    return grammar.parse_entry(given) if given else deployment.engine.image_entry


def container_network(recipe: Recipe) -> str:
    """ "host" where the container shares the machine's network, "" where its port is published."""
    if recipe.parallel.nodes > 1:
        return "host"  # the ranks of other machines must find this one
    for place, option in enumerate(recipe.runtime.options):
        if option in ("--network=host", "--net=host"):
            return "host"
        if option in ("--network", "--net") and recipe.runtime.options[place + 1 : place + 2] == ("host",):
            return "host"
    return presets.recipe_preset(recipe).network


def container_mounts(deployment: Deployment) -> dict[str, str]:
    """Host path to path inside: the recipe's own, and where the weights are."""
    recipe = deployment.recipe
    mounted = dict(recipe.runtime.mounts)
    mounted |= _weights_mount(deployment, mounted)
    cache = presets.recipe_preset(recipe).cache
    if cache and cache not in mounted.values():
        # named after the image: kernels of an older one must not be found again
        mounted[f"moebox-jit-{image_name(deployment).rpartition(':')[2]}"] = cache
    return mounted


def _weights_mount(deployment: Deployment, mounted: Mapping[str, str]) -> dict[str, str]:
    """The weights' folder, or the Hub's cache, where `mounted` does not hold it yet."""
    inside = [target.split(":")[0] for target in mounted.values()]
    folder = weights_folder(deployment)
    if not folder:
        outside = deployment.recipe.runtime.models_dir or HUB_CACHE
        return {} if HUB_CACHE_INSIDE in inside else {outside: HUB_CACHE_INSIDE}
    there = folder in mounted or folder.startswith(tuple(inside))
    return {} if there else {folder: f"{folder}:ro"}


def download_variable(deployment: Deployment, folder: str) -> dict[str, str]:
    """The variable that makes an engine keep downloads of weights in a mounted folder: a container forgets its own."""
    name = deployment.engine.cache_variable
    kept_elsewhere = not name or name in deployment.recipe.env or weights_folder(deployment)
    return {} if kept_elsewhere else {name: f"{folder}/{deployment.engine.name}"}


def weights_folder(deployment: Deployment) -> str:
    """The folder that holds the weights on this machine; "" for those from the Hub.

    In a Hub cache the files are links from snapshots/ into blobs/, so the whole `models--…` folder counts.
    """
    weights = deployment.weights_path
    if not weights.startswith(("/", "~", ".")):
        return ""
    path = PurePosixPath(weights)
    for parent in path.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith("models--"):
            return str(parent.parent)
    return str(path.parent) if weights.endswith(".gguf") else weights


def secret_variables(deployment: Deployment) -> dict[str, str]:
    """Variables handed through by name: the key, and the Hub's token."""
    key_env = deployment.recipe.listen.key_env
    key = {deployment.engine.key_env: key_env} if key_env else {}
    return key | ({} if weights_folder(deployment) else {"HF_TOKEN": "HF_TOKEN"})


def launch_command(deployment: Deployment, launch: Launch, *, run: str = "", home: str = "") -> tuple[str, ...]:
    """The argv to execute: the engine's own, or docker's or podman's around it. `home` stands for a leading ~."""
    recipe = deployment.recipe
    if not runs_in_container(recipe):
        return launch.argv
    tool = recipe.runtime.kind
    argv = [tool, "run", "--rm"]
    if run:
        argv += ["--name", f"moebox-{run}", "--label", f"{LABEL}={run}"]
    argv += container_options(deployment, launch)
    for outside, inside in launch.mounts.items():
        argv += ["-v", f"{_at_home(outside, home)}:{inside}"]
    for name, value in launch.env.items():
        argv += ["-e", f"{name}={value}"]
    for name in launch.secret_env:
        argv += ["-e", name]
    before, after = split_at_image(deployment, launch)
    return (*argv, *before, launch.image, *after)


def _at_home(path: str, home: str) -> str:
    return home + path[1:] if home and path.startswith("~") else path


def container_options(deployment: Deployment, launch: Launch) -> list[str]:
    """Devices, shared memory, network and the recipe's own options."""
    recipe = deployment.recipe
    options = [*GPU_OPTIONS[recipe.runtime.kind]] if uses_gpus(deployment) else []
    if deployment.engine.shares_memory:
        options.append("--ipc=host")  # NCCL and the workers share memory; a container's own 64 MB is too little
    own = [*recipe.runtime.options, *presets.recipe_preset(recipe).options]
    if container_network(recipe) != "host":
        options += ["-p", published_port(launch)]
    elif not any(option.startswith(("--network", "--net")) for option in own):
        options += ["--network", "host"]
    return options + own


def uses_gpus(deployment: Deployment) -> bool:
    """Whether it wants any: a container that names devices does not start on a machine without them."""
    hybrid = deployment.recipe.hybrid
    alone = deployment.engine.runs_without_gpu and hybrid is not None and hybrid.gpu_layers == 0
    return not alone


def published_port(launch: Launch) -> str:
    """The -p value: on loopback unless the recipe says otherwise."""
    if launch.host == "0.0.0.0":  # noqa: S104
        return f"{launch.port}:{launch.port}"
    host = "127.0.0.1" if launch.host in LOOPBACK else launch.host
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{launch.port}:{launch.port}"


def split_at_image(deployment: Deployment, launch: Launch) -> tuple[list[str], list[str]]:
    """Options that must stand before the image, and the words after it."""
    recipe, engine = deployment.recipe, deployment.engine
    if recipe.runtime.setup:
        return ["--entrypoint", "bash"], ["-c", f"{recipe.runtime.setup} && exec {shlex.join(launch.argv)}"]
    start = image_entry(deployment)
    if engine.image_has_entrypoint and start == engine.image_entry:
        if launch.argv[: len(start)] == start:
            return [], list(launch.argv[len(start) :])
        return ["--entrypoint", launch.argv[0]], list(launch.argv[1:])
    return [], list(launch.argv)


def python_entry(recipe: Recipe, *, program: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...]:
    """The words that start a Python engine here: from PATH, a venv, or a named interpreter."""
    if recipe.runtime.entry:
        return grammar.parse_entry(recipe.runtime.entry)
    python = recipe.runtime.python
    if not python:
        return program
    if PurePosixPath(python).name.startswith("python"):
        return (python, *module)
    return (f"{python.rstrip('/')}/bin/{program[0]}", *program[1:])


def shell_text(launch: Launch, argv: tuple[str, ...]) -> str:
    """The command as a person would paste it; secrets stand as the variables they come from."""
    env = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()] if not launch.image else []
    for name, source in launch.secret_env.items():
        if name != source:
            env.append(f'{name}="${source}"')
    if not argv:
        raise BadInput("nothing to run")
    return " ".join([*env, shlex.join(argv)])
