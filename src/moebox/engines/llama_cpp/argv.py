"""A deployment to the command line of mainline llama.cpp's server. Flags by the help of b11669."""

from pathlib import PurePosixPath

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, field_arguments, thinking_off_json
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.ggml import argv as ggml
from moebox.engines.llama_cpp.traits import TRAITS

LOOKUP = "ngram-simple"  # lookup in the prompt is the simplest of its n-gram kinds
VERBOSITY = "4"  # the lowest that prints buffer sizes


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    recipe, weights, checkpoint = deployment.recipe, deployment.weights_path, deployment.known_checkpoint
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    if ggml.is_local_file(weights):
        out: list[Argument] = [("-m", weights)]
    else:  # the repository with its quantisation, which may be that of several files
        out = [("-hf", weights)]
        if checkpoint and not checkpoint.path:
            exact = checkpoint.file and checkpoint.how == "read"
            quant = checkpoint.name.rpartition(":")[2]
            out = [*out, ("--hf-file", checkpoint.file)] if exact else [("-hf", f"{weights}:{quant}")]
    out += field_arguments(recipe, ggml.FIELDS, known, host=host)
    out += [*ggml.layer_arguments(recipe), *ggml.tier_arguments(deployment)]
    if recipe.kv != "auto":
        out += [("-ctk", recipe.kv), ("-ctv", recipe.kv)]  # MLA's one cache is read as both: they must be the same
    out += [(flag,) for flag in ggml.ALWAYS_ON]
    if not recipe.thinking:
        out.append(("--chat-template-kwargs", thinking_off_json(deployment)))
    out += draft_arguments(recipe)
    others = range(1, recipe.parallel.nodes)
    if others and "rpc" not in recipe.flags:  # RPC servers of the other nodes; placeholders until addresses are known
        addresses, port = node.addresses if node else (), recipe.listen.port + TRAITS.worker_port
        servers = (f"{addresses[rank] if addresses else f'node{rank}'}:{port}" for rank in others)
        out.append(("--rpc", ",".join(servers)))
    out.append(("-lv", VERBOSITY))
    return add_recipe_flags(out, recipe.flags, known)


def draft_arguments(recipe: Recipe) -> list[Argument]:
    draft = recipe.speculate
    if draft is None:
        return []
    kind = draft.method if draft.method.startswith(("draft-", "ngram-")) else f"draft-{draft.method}"
    out: list[Argument] = [("--spec-type", LOOKUP if draft.method == "ngram" else kind)]
    if draft.draft:
        out.append(("--spec-draft-model", draft.draft))
    return [*out, ("--spec-draft-n-max", str(draft.tokens))]


def worker_command(deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
    """The RPC server of a node: it offers that node's GPUs, or its CPU, at an address the first node can reach.

    It serves any client that connects, so it binds to the address the nodes use and never to all addresses.
    """
    recipe, rank = deployment.recipe, int(node.rank)
    address = node.addresses[rank] if node.addresses else f"node{rank}"
    threads = recipe.hybrid.threads if recipe.hybrid else None
    program = str(PurePosixPath(entry_command(recipe)[0]).with_name(TRAITS.worker_programs[0]))
    port = recipe.listen.port + TRAITS.worker_port
    return (program, "-H", address, "-p", str(port), *(("-t", str(threads)) if threads else ()))


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    return python_entry(recipe, program=("llama-server",), module=("-m", "xllamacpp.server"))
