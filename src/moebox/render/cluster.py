"""Files for a cluster: a Slurm job, a Kubernetes Deployment or LeaderWorkerSet (several nodes), a kustomize base."""

import dataclasses
import math
import shlex

from moebox.core.deployment import Deployment
from moebox.data import load_table
from moebox.engines import LaunchNode, build_launch
from moebox.engines.assemble import download_variable, image_name, split_at_image, uses_gpus, weights_folder
from moebox.engines.kv_store import store_folder
from moebox.engines.reasons import variable_reason
from moebox.errors import refuse_if
from moebox.render import machine, options, quoting
from moebox.render.pieces import Context, ListItem, kubernetes_value, launch_pieces
from moebox.render.quoting import variable_slot
from moebox.units import plural

# Variables that LeaderWorkerSet sets in every pod of a group (lws.sigs.k8s.io, since v0.3; worker index since v0.5).
LEADER = LaunchNode(
    rank=variable_slot("LWS_WORKER_INDEX"),
    master=variable_slot("LWS_LEADER_ADDRESS"),
    count=variable_slot("LWS_GROUP_SIZE"),
)
WORKER = dataclasses.replace(LEADER, follows=True)
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104
CORES = 16  # to request if the recipe does not set the number of threads
OWN_GIB = 16  # RAM of the engine itself; plans count 12 GiB
NATIVE = 'runtime.kind = "native" (container runtimes differ from cluster to cluster)'
NO_IMAGE = "`moebox plan … --image stock` makes a recipe without it"
MODELS = "/models"  # where pods mount the volume for weights
FILES: dict[str, str] = load_table("launch_files")["kubernetes"]


def slurm_context(deployment: Deployment) -> Context:
    """Fill the template of a batch job with one task per node."""
    recipe = deployment.recipe
    text = "a Slurm job needs an engine that is installed on the nodes"
    refuse_if(recipe.runtime.kind in ("docker", "podman"), text, hint=NO_IMAGE if recipe.runtime.preset else NATIVE)
    reachable = _listen_everywhere(deployment)
    names = {variable.name for variable in launch_pieces(reachable).variables}
    refuse_if("PORT" not in names, f"{recipe.engine} cannot be rendered as a Slurm job")
    return machine.script_context(reachable) | {"template": "slurm.sbatch.j2", **_gpus_per_node(deployment)}


def k8s_context(deployment: Deployment) -> Context:
    """Fill the template of a Deployment or LeaderWorkerSet, and the Service in front of it."""
    recipe = deployment.recipe
    text = f"runtime.preset: {recipe.runtime.preset!r} needs the host's network and privileges"
    refuse_if(recipe.runtime.preset, text, hint="render it as script, compose or systemd, on the machine itself")
    folder = weights_folder(deployment)
    refuse_if(
        folder and not folder.startswith(MODELS),
        f"checkpoint: pods do not see {folder} of this machine",
        hint="put it on the volume for weights and name it /models/…, or use a Hub repository",
    )
    reachable = _listen_everywhere(deployment)
    many = recipe.parallel.nodes > 1
    leader = launch_pieces(reachable, node=LEADER if many else None, variable=False)
    worker = launch_pieces(reachable, node=WORKER, variable=False) if many else leader
    launch = build_launch(reachable)
    env = launch.env | download_variable(reachable, MODELS)
    before, after = split_at_image(reachable, launch)
    if recipe.runtime.setup:
        line = f'{recipe.runtime.setup} && exec {shlex.join(leader.entry_words(launch.argv))} "$@"'
        head, command = ["-c", line, "engine"], ["bash"]
    elif not leader.engine.image_has_entrypoint or recipe.runtime.entry:
        head, command = [], list(leader.entry_words(after))
    else:
        head, command = list(leader.entry_words(after)), before[1:]
    first = [ListItem(word=quoting.escape_kubernetes(word)) for word in head]
    known = deployment.known_checkpoint
    weights = sum(known.bytes_by_component.values()) if known else 0
    memory, cores = "128Gi", CORES
    if recipe.hybrid:  # experts are kept in RAM
        memory = f"{math.ceil(weights / 2**30) + OWN_GIB}Gi" if weights else "512Gi"
        cores = recipe.hybrid.threads or CORES
    return {
        "template": "k8s.yaml.j2",
        "recipe": recipe,
        "name": quoting.make_slug(recipe.name),
        "engine": recipe.engine,
        "version": leader.version,
        "image": image_name(deployment),
        "nodes": recipe.parallel.nodes,
        "memory": memory,
        "cores": cores,
        **_gpus_per_node(deployment),
        "command": [*map(quoting.escape_kubernetes, command)],
        "leader": [*first, *leader.list_items(kubernetes_value)],
        "worker": [*first, *worker.list_items(kubernetes_value)],
        "env": {name: quoting.escape_kubernetes(value) for name, value in env.items()},
        "why": {name: variable_reason(reachable, name) for name in env},
        "secrets": launch.secret_env,
        "port": recipe.listen.port,
        "health": deployment.engine.health_path,
        "host_folder": recipe.runtime.models_dir,
        # half as much again, for a download beside the weights
        "storage": f"{max(math.ceil(weights * 1.5 / 2**30), 1)}Gi" if weights else "1Ti",
        "store": store_folder(reachable) if recipe.tiers.disk_gib else "",
        "shared_memory": options.shared_memory_size(recipe),
    }


def _listen_everywhere(deployment: Deployment) -> Deployment:
    """Listen on all addresses, as other machines must reach the engine; the cluster's network protects it."""
    listen = dataclasses.replace(deployment.recipe.listen, host=ALL_ADDRESSES)
    return deployment.with_recipe(dataclasses.replace(deployment.recipe, listen=listen))


def _gpus_per_node(deployment: Deployment) -> Context:
    """Return the GPUs of a node as a number, and the sentence about nodes and GPUs in the file's head."""
    nodes, gpus = deployment.recipe.parallel.nodes, deployment.recipe.gpus_per_node if uses_gpus(deployment) else 0
    has = f"{plural(gpus, 'GPU')}{' each' if nodes > 1 else ''}" if gpus else "no GPU"
    return {"gpus": gpus, "wants": f"{plural(nodes, 'node') if nodes > 1 else 'one node'} with {has}"}


def split_objects(text: str) -> dict[str, str]:
    """Return the rendered Kubernetes objects in `text` as files by name."""
    first, *rest = text.split("\n---\n")
    lines = first.splitlines(keepends=True)
    cut = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    head = "".join(lines[:cut])  # the comment at the top goes into every file
    files = {}
    for document in ("".join(lines[cut:]), *rest):
        kinds = (line.partition(":")[2].strip() for line in document.splitlines() if line.startswith("kind:"))
        kind = next(kinds, "")
        refuse_if(kind not in FILES, f"a Kubernetes object of kind {kind!r} has no file in a kustomize base")
        files[FILES[kind]] = head + document.rstrip("\n") + "\n"
    return files
