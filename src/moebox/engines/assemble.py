"""A recipe to what is run: the engine's command, and the docker or podman command around it.

Nothing is started here. Keys are passed by name only; their values never stand in an argv.
"""

import dataclasses
import shlex
from pathlib import PurePosixPath

from moebox.core import grammar, presets
from moebox.core.model import Model
from moebox.core.plan import Launch
from moebox.core.recipe import Recipe
from moebox.engines.flags import newest
from moebox.engines.words import Node, flatten, weights_of
from moebox.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HUB_CACHE = "~/.cache/huggingface"  # where the Hub's client keeps downloads unless HF_HOME says otherwise
HUB_CACHE_INSIDE = "/root/.cache/huggingface"
LABEL = "moebox.run"


def assemble(recipe: Recipe, model: Model | None, *, port: int | None, node: Node) -> Launch:
    """The engine's own command with everything it needs around it."""
    from moebox.engines import ENGINES

    engine = ENGINES[recipe.engine]
    if port is not None:
        recipe = dataclasses.replace(recipe, listen=dataclasses.replace(recipe.listen, port=port))
    inside = contained(recipe)
    host = "0.0.0.0" if inside and network(recipe) != "host" else recipe.listen.host  # noqa: S104
    start = image_entry(recipe) if inside else engine.entry(recipe)
    argv = (*start, *flatten(engine.words(recipe, model, node=node, host=host)))
    return Launch(
        argv=engine.guarded(argv) if recipe.listen.key_env else argv,
        env=engine.environment(recipe, model),
        secret_env=secrets(recipe, engine.KEY_ENV),
        image=image(recipe) if inside else "",
        mounts=mounts(recipe) if inside else {},
        port=recipe.listen.port,
        host=recipe.listen.host,
        rank=node.rank if isinstance(node.rank, int) else 0,
    )


def contained(recipe: Recipe) -> bool:
    """Whether it runs in a container."""
    return recipe.runtime.kind in ("docker", "podman")


def image(recipe: Recipe) -> str:
    """The recipe's image, its preset's, or the engine's own for this version."""
    from moebox.engines import ENGINES

    preset = presets.of(recipe)
    own = ENGINES[recipe.engine].IMAGE.format(version=recipe.engine_version or newest(recipe.engine))
    return recipe.runtime.image or (preset.image if preset else "") or own


def image_entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start the engine inside its image."""
    from moebox.engines import ENGINES

    preset = presets.of(recipe)
    given = recipe.runtime.entry or (preset.entry if preset else "")
    return grammar.entry(given) if given else ENGINES[recipe.engine].IMAGE_ENTRY


def network(recipe: Recipe) -> str:
    """ "host" where the container shares the machine's network, "" where its port is published."""
    if recipe.parallel.nodes > 1:
        return "host"  # the ranks of other machines must find this one
    for place, option in enumerate(recipe.runtime.options):
        if option in ("--network=host", "--net=host"):
            return "host"
        if option in ("--network", "--net") and recipe.runtime.options[place + 1 : place + 2] == ("host",):
            return "host"
    preset = presets.of(recipe)
    return preset.network if preset else ""


def mounts(recipe: Recipe) -> dict[str, str]:
    """Host path to path inside: the recipe's own, and where the weights are."""
    found = dict(recipe.runtime.mounts)
    folder = weights_folder(recipe)
    if folder:
        inside = [target.split(":")[0] for target in found.values()]
        if folder not in found and not any(folder.startswith(one) for one in inside):
            found[folder] = f"{folder}:ro"
    elif not any(target.split(":")[0] == HUB_CACHE_INSIDE for target in found.values()):
        found[recipe.runtime.models_dir or HUB_CACHE] = HUB_CACHE_INSIDE
    preset = presets.of(recipe)
    if preset and preset.cache and preset.cache not in found.values():
        # named after the image: kernels of an older one must not be found again
        found[f"moebox-jit-{image(recipe).rpartition(':')[2]}"] = preset.cache
    return found


def weights_folder(recipe: Recipe) -> str:
    """The folder of weights that lie on this machine; "" for those from the Hub."""
    weights = weights_of(recipe)
    if not weights.startswith(("/", "~", ".")):
        return ""
    return str(PurePosixPath(weights).parent) if weights.endswith(".gguf") else weights


def secrets(recipe: Recipe, key_env: str) -> dict[str, str]:
    """Variables handed through by name: the key, and the Hub's token."""
    key = {key_env: recipe.listen.key_env} if recipe.listen.key_env else {}
    return key | ({} if weights_folder(recipe) else {"HF_TOKEN": "HF_TOKEN"})


def command(recipe: Recipe, launch: Launch, *, run: str = "", detach: bool = False, home: str = "") -> tuple[str, ...]:
    """The argv to execute: the engine's own, or docker's or podman's around it. `home` stands for a leading ~."""
    if not contained(recipe):
        return launch.argv
    tool = recipe.runtime.kind
    argv = [tool, "run", "-d" if detach else "--rm"]
    if run:
        argv += ["--name", f"moebox-{run}", "--label", f"{LABEL}={run}"]
    argv += container_options(recipe, launch)
    for outside, inside in launch.mounts.items():
        argv += ["-v", f"{home + outside[1:] if home and outside.startswith('~') else outside}:{inside}"]
    for name, value in launch.env.items():
        argv += ["-e", f"{name}={value}"]
    for name in launch.secret_env:
        argv += ["-e", name]
    before, after = around_image(recipe, launch)
    return (*argv, *before, launch.image, *after)


def container_options(recipe: Recipe, launch: Launch) -> list[str]:
    """Devices, shared memory, network and the recipe's own options."""
    options = ["--gpus", "all"] if recipe.runtime.kind == "docker" else ["--device", "nvidia.com/gpu=all"]
    if recipe.engine in ("vllm", "sglang"):
        options.append("--ipc=host")  # NCCL and the workers share memory; a container's own 64 MB is too little
    preset = presets.of(recipe)
    own = [*recipe.runtime.options, *(preset.options if preset else ())]
    if network(recipe) != "host":
        options += ["-p", published(launch)]
    elif not any(option.startswith(("--network", "--net")) for option in own):
        options += ["--network", "host"]
    return options + own


def published(launch: Launch) -> str:
    """The -p value: on loopback unless the recipe says otherwise."""
    if launch.host == "0.0.0.0":  # noqa: S104
        return f"{launch.port}:{launch.port}"
    host = "127.0.0.1" if launch.host in LOOPBACK else launch.host
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{launch.port}:{launch.port}"


def around_image(recipe: Recipe, launch: Launch) -> tuple[list[str], list[str]]:
    """Options that must stand before the image, and the words after it."""
    from moebox.engines import ENGINES

    engine = ENGINES[recipe.engine]
    if recipe.runtime.setup:
        return ["--entrypoint", "bash"], ["-c", f"{recipe.runtime.setup} && exec {shlex.join(launch.argv)}"]
    start = image_entry(recipe)
    if engine.IMAGE_ENTERS and start == engine.IMAGE_ENTRY:
        if launch.argv[: len(start)] == start:
            return [], list(launch.argv[len(start) :])
        return ["--entrypoint", launch.argv[0]], list(launch.argv[1:])
    return [], list(launch.argv)


def entry_words(recipe: Recipe, *, program: tuple[str, ...], module: tuple[str, ...]) -> tuple[str, ...]:
    """The words that start a Python engine here: from PATH, a venv, or a named interpreter."""
    if recipe.runtime.entry:
        return grammar.entry(recipe.runtime.entry)
    python = recipe.runtime.python
    if not python:
        return program
    if PurePosixPath(python).name.startswith("python"):
        return (python, *module)
    return (f"{python.rstrip('/')}/bin/{program[0]}", *program[1:])


def shown(launch: Launch, argv: tuple[str, ...]) -> str:
    """The command as a person would paste it; secrets stand as the variables they come from."""
    env = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()] if not launch.image else []
    for name, source in launch.secret_env.items():
        if name != source:
            env.append(f'{name}="${source}"')
    if not argv:
        raise BadInput("nothing to run")
    return " ".join([*env, shlex.join(argv)])
