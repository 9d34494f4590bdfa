"""Deployment to the command line of mainline llama.cpp's server and back. Flags by the help of b11669."""

from pathlib import PurePosixPath

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import (
    LaunchNode,
    drop_disabled,
    field_arguments,
    flag_arguments,
    merge_arguments,
    thinking_off_json,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.ggml import argv as ggml
from moebox.engines.llama_cpp.traits import TRAITS
from moebox.engines.reading import Reader, Reading, taken, template_arguments

FIELDS = ggml.FIELDS
READS = ggml.FIELDS | ggml.HYBRID
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
LOOKUP = "ngram-simple"
LOUD_ENOUGH = "4"  # the lowest verbosity that prints buffer sizes


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    out = [*ggml.mainline_weights(deployment), *field_arguments(recipe, FIELDS, known, host=host)]
    out += ggml.context_arguments(recipe) + ggml.hybrid_arguments(recipe)
    if recipe.kv != "auto":
        kind = ggml.KV.get(recipe.kv, recipe.kv)
        out += [("-ctk", kind), ("-ctv", kind)]  # MLA's one cache is read as both: they must be alike
    out += [(flag,) for flag in ggml.ALWAYS_ON]
    if not recipe.thinking:
        out.append(("--chat-template-kwargs", thinking_off_json(deployment)))
    out += draft_arguments(recipe)
    out += _workers(recipe, node)
    out.append(("-lv", LOUD_ENOUGH))
    return merge_arguments(drop_disabled(out, recipe.flags, known), flag_arguments(recipe.flags, known), known)


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    chosen: list[Argument] = [("--spec-type", _kind(draft.method))]
    if draft.draft:
        chosen.append(("--spec-draft-model", draft.draft))
    return [*chosen, ("--spec-draft-n-max", str(draft.tokens))]


def _workers(recipe: Recipe, node: LaunchNode | None) -> list[Argument]:
    """Where the first node finds the RPC servers of the others; their names stand for addresses not known yet."""
    others = range(1, recipe.parallel.nodes)
    if not others or "rpc" in recipe.flags:
        return []
    known = node.addresses if node else ()
    port = recipe.listen.port + TRAITS.worker_port
    return [("--rpc", ",".join(f"{known[rank] if known else f'node{rank}'}:{port}" for rank in others))]


def worker_command(deployment: Deployment, node: LaunchNode) -> tuple[str, ...]:
    """The RPC server of a node: it offers that node's GPUs, or its CPU, and listens where the first node can reach it.

    It answers whoever connects, so it takes the address the nodes use and never all of them.
    """
    recipe, rank = deployment.recipe, int(node.rank)
    address = node.addresses[rank] if node.addresses else f"node{rank}"
    threads = recipe.hybrid.threads if recipe.hybrid else None
    own = ("-t", str(threads)) if threads else ()
    program = str(PurePosixPath(entry_command(recipe)[0]).with_name(TRAITS.worker_programs[0]))
    return (program, "-H", address, "-p", str(recipe.listen.port + TRAITS.worker_port), *own)


def _kind(method: str) -> str:
    """A method by llama.cpp's name for it; lookup in the prompt is the simplest of its n-gram kinds."""
    if method == "ngram":
        return LOOKUP
    return method if method.startswith(("draft-", "ngram-")) else f"draft-{method}"


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(deployment.recipe.env)


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return python_entry(recipe, program=("llama-server",), module=("-m", "xllamacpp.server"))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: the server reads LLAMA_API_KEY itself."""
    return argv


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `reading`."""
    if (name, word[-1]) == ("-lv", LOUD_ENOUGH):
        return True
    return taken(word, name, reading, {}, READERS)


finished = ggml.finished


def _values(value: str, reading: Reading) -> bool:
    """-ctv, which follows -ctk"""
    return reading.text("kv") == value


def _method(value: str, reading: Reading) -> bool:
    """--spec-type"""
    reading.put("speculate.method", "ngram" if value == LOOKUP else value.removeprefix("draft-"))
    return True


def _draft(value: str, reading: Reading) -> bool:
    """--spec-draft-model"""
    reading.put("speculate.draft", value)
    return True


def _tokens(value: str, reading: Reading) -> bool:
    """--spec-draft-n-max"""
    reading.put("speculate.tokens", int(value) if value.isdecimal() else value)
    return True


def _split(value: str, reading: Reading) -> bool:
    """-ts; proportions that are no whole layers stay a flag"""
    counts = value.split(",")
    if not all(count.isdecimal() for count in counts):
        return False
    reading.put("hybrid.split", [int(count) for count in counts])
    return True


READERS: dict[str, Reader] = ggml.READERS | {
    "-ts": _split,
    "-ctv": _values,
    "--chat-template-kwargs": template_arguments,
    "--spec-type": _method,
    "--spec-draft-model": _draft,
    "--spec-draft-n-max": _tokens,
}
