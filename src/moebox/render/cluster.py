"""Files for a cluster: a Slurm job, and a Kubernetes Deployment or, over several nodes, a LeaderWorkerSet."""

import dataclasses
import math
import shlex

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines import LaunchNode, build_launch
from moebox.engines.assemble import download_variable, image_name, split_at_image, uses_gpus, weights_folder
from moebox.engines.reasons import variable_reason
from moebox.errors import refuse_if
from moebox.render import comments, machine, options, quoting
from moebox.render import pieces as parts
from moebox.render.context import Context
from moebox.render.pieces import LaunchPieces, launch_pieces
from moebox.render.quoting import variable_slot
from moebox.units import plural

# Variables that LeaderWorkerSet puts into every pod of a group (lws.sigs.k8s.io, since v0.3; worker index since v0.5).
LEADER = LaunchNode(
    rank=variable_slot("LWS_WORKER_INDEX"),
    master=variable_slot("LWS_LEADER_ADDRESS"),
    count=variable_slot("LWS_GROUP_SIZE"),
)
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104
CORES = 16  # to ask for where the recipe does not say how many threads compute
OWN_GIB = 16  # RAM of the engine itself; plans count 12 GiB
NATIVE = 'runtime.kind = "native" (container runtimes differ from cluster to cluster)'
NO_IMAGE = "`moebox plan … --image stock` makes a recipe without it"
MODELS = "/models"  # where pods find the volume for weights
WORKER = dataclasses.replace(LEADER, follows=True)


def slurm_context(deployment: Deployment) -> Context:
    """A batch job with one task a node."""
    recipe = deployment.recipe
    refuse_if(
        recipe.runtime.kind in ("docker", "podman"),
        "a Slurm job is rendered for an engine that is installed on the nodes",
        hint=NO_IMAGE if recipe.runtime.preset else NATIVE,
    )
    opened = _open(deployment)
    names = {variable.name for variable in launch_pieces(opened).variables}
    refuse_if("PORT" not in names, f"{recipe.engine} cannot be rendered as a Slurm job")
    return machine.script_context(opened) | {"template": "slurm.sbatch.j2", **_of_each_node(deployment)}


def k8s_context(deployment: Deployment) -> Context:
    """A Deployment or LeaderWorkerSet, and the Service in front of it."""
    recipe = deployment.recipe
    refuse_if(
        recipe.runtime.preset,
        f"runtime.preset: {recipe.runtime.preset!r} wants the host's network and privileges",
        hint="render it as script, compose or systemd, on the machine itself",
    )
    folder = weights_folder(deployment)
    refuse_if(
        folder and not folder.startswith(MODELS),
        f"checkpoint: pods do not see {folder} of this machine",
        hint="put it on the volume for weights and name it /models/…, or use a Hub repository",
    )
    many = recipe.parallel.nodes > 1
    opened = _open(deployment)
    whole = launch_pieces(opened, node=LEADER if many else None, variable=False)
    follow = launch_pieces(opened, node=WORKER, variable=False) if many else whole
    started = build_launch(opened)
    env = started.env | download_variable(opened, MODELS)
    before, after = split_at_image(opened, started)
    head, command = _head(started.argv, tuple(after), before, whole, opened.recipe)
    return {
        "template": "k8s.yaml.j2",
        "recipe": recipe,
        "name": quoting.make_slug(recipe.name),
        "engine": recipe.engine,
        "version": whole.version,
        "image": image_name(deployment),
        "nodes": recipe.parallel.nodes,
        "memory": _memory(deployment),
        "cores": recipe.hybrid.threads or CORES if recipe.hybrid else CORES,
        **_of_each_node(deployment),
        "command": [quoting.escape_kubernetes(word) for word in command],
        "leader": [*_plain_items(head), *_arguments(whole, opened.recipe)],
        "worker": [*_plain_items(head), *_arguments(follow, opened.recipe)],
        "env": {name: quoting.escape_kubernetes(value) for name, value in env.items()},
        "why": {name: variable_reason(opened, name) for name in env},
        "secrets": started.secret_env,
        "port": recipe.listen.port,
        "health": deployment.engine.health_path,
        "host_folder": recipe.runtime.models_dir,
        "storage": _storage(deployment),
        "shared_memory": options.shared_memory_size(recipe),
    }


def _of_each_node(deployment: Deployment) -> Context:
    """GPUs of a node: as a number, 0 where it wants none, and in the words of the file's head."""
    nodes, gpus = deployment.recipe.parallel.nodes, deployment.recipe.gpus_per_node if uses_gpus(deployment) else 0
    has = f"{plural(gpus, 'GPU')}{' each' if nodes > 1 else ''}" if gpus else "no GPU"
    return {"gpus": gpus, "wants": f"{plural(nodes, 'node') if nodes > 1 else 'one node'} with {has}"}


def _memory(deployment: Deployment) -> str:
    """RAM to ask for: for an engine that keeps experts there, what the weights and its own part take at most."""
    size = _weights_size(deployment)
    if deployment.recipe.hybrid is None:
        return "128Gi"
    return f"{math.ceil(size / 2**30) + OWN_GIB}Gi" if size else "512Gi"


def _storage(deployment: Deployment) -> str:
    """Room for the weights, and half as much again for a download beside them; a tebibyte where nobody knows."""
    size = _weights_size(deployment)
    return f"{max(math.ceil(size * 1.5 / 2**30), 1)}Gi" if size else "1Ti"


def _weights_size(deployment: Deployment) -> int:
    known = deployment.known_checkpoint
    return sum(known.bytes_by_component.values()) if known else 0


def _head(
    argv: tuple[str, ...], after: tuple[str, ...], before: list[str], whole: LaunchPieces, recipe: Recipe
) -> tuple[list[str], list[str]]:
    """Words before the arguments, and the container's command where the image's own entry does not do."""
    if recipe.runtime.setup:
        line = f'{recipe.runtime.setup} && exec {shlex.join(machine.entry_words(argv, whole))} "$@"'
        return ["-c", line, "engine"], ["bash"]
    start = machine.entry_words(after, whole)
    if not whole.engine.image_has_entrypoint or recipe.runtime.entry:
        return [], list(start)  # the image starts nothing by itself
    return list(start), before[1:]


def _plain_items(words: list[str]) -> list[comments.ListItem]:
    return [comments.ListItem(word=quoting.escape_kubernetes(word)) for word in words]


def _arguments(whole: LaunchPieces, recipe: Recipe) -> list[comments.ListItem]:
    given = whole.draft if recipe.speculate else ()
    return comments.list_items(whole, (*whole.args, *given), parts.kubernetes_value)


def _open(deployment: Deployment) -> Deployment:
    """Other machines must reach it: it listens on all addresses, and the cluster's network is the fence."""
    listen = dataclasses.replace(deployment.recipe.listen, host=ALL_ADDRESSES)
    return deployment.with_recipe(dataclasses.replace(deployment.recipe, listen=listen))
