"""Deployment to SGLang's command line and back. Flags by the parser of 0.5.23."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe, Speculate
from moebox.engines.arguments import (
    LaunchNode,
    drop_disabled,
    field_arguments,
    flag_arguments,
    merge_arguments,
    parse_number,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.reading import Reader, Reading, ignored, note_absent, taken, template_arguments

FIELDS: dict[str, str] = {
    "--served-model-name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--trust-remote-code": "trust_remote_code",
    "--tp-size": "parallel.tp",
    "--pp-size": "parallel.pp",
    "--dcp-size": "parallel.dcp",
    "--dp-size": "parallel.dp",
    "--nnodes": "parallel.nodes",
    "--context-length": "context",
    "--mem-fraction-static": "memory_utilization",
    "--max-running-requests": "max_seqs",
    "--chunked-prefill-size": "batched_tokens",
    "--tool-call-parser": "tool_parser",
    "--reasoning-parser": "reasoning_parser",
}
READS = FIELDS
KV = {"fp8": "fp8_e4m3", "bf16": "bf16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--model-path": "MODEL_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--context-length": "MAX_MODEL_LEN",
    "--mem-fraction-static": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}
DRAFT_FIELDS = {
    "--speculative-algorithm": "method",
    "--speculative-draft-model-path": "draft",
    "--speculative-num-steps": "tokens",
}
# The model's own prediction layers go by the name of the paper that calls them next-n (speculative/spec_info.py).
OWN_LAYERS = "NEXTN"
ALGORITHMS = {"mtp": OWN_LAYERS}
SPEC_V2_ENV = {"SGLANG_ENABLE_SPEC_V2": "True"}  # rtx6kpro wiki, sglang; newer versions have it on
# Figures for whoever watches, and in every reply how much of its prompt was cached: a benchmark must know.
ALWAYS_ON = ("--enable-metrics", "--enable-cache-report")
MODULE = "sglang.launch_server"
# SGLang takes its key from argv alone (server_args.py); this puts it there inside the process, where no `ps` sees it.
ENTER_WITH_KEY = (
    "import os, runpy, sys; sys.argv[1:1] = ['--api-key', os.environ['SGLANG_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    out = base_arguments(deployment, node=node, host=host)
    return merge_arguments(drop_disabled(out, recipe.flags, known), flag_arguments(recipe.flags, known), known)


def base_arguments(deployment: Deployment, *, node: LaunchNode | None, host: str) -> list[Argument]:
    """The same before the recipe's own flags; forks add theirs."""
    recipe = deployment.recipe
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    out: list[Argument] = [
        ("--model-path", deployment.weights_path),
        *field_arguments(recipe, FIELDS, known, host=host),
    ]
    ranks = recipe.parallel.tp * recipe.parallel.dp
    if recipe.parallel.dp > 1:
        # SGLang counts all GPUs of its data-parallel attention groups under --tp-size.
        out = [*merge_arguments(out, [("--tp-size", str(ranks))], known), ("--enable-dp-attention",)]
    if recipe.parallel.ep:
        out.append(("--ep-size", str(ranks)))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    if recipe.prefix_caching is False:
        out.append(("--disable-radix-cache",))
    optional = [*vision_arguments(deployment, ("--mm-enable-dp-encoder",)), *_thinking_words(deployment)]
    out += [word for word in optional if word[0] in known.specs]  # a fork may have no such flag
    out += draft_arguments(recipe)
    out += [(flag,) for flag in ALWAYS_ON]
    return _for_node(out, deployment, node or LaunchNode())


def _thinking_words(deployment: Deployment) -> list[Argument]:
    return [] if deployment.recipe.thinking else [("--default-chat-template-kwargs", thinking_off_json(deployment))]


def _for_node(out: list[Argument], deployment: Deployment, node: LaunchNode) -> list[Argument]:
    """One machine's share of a launch over several."""
    nodes = deployment.recipe.parallel.nodes
    if nodes == 1 and node.count is None:
        return out
    left_out = ("--nnodes", "--host", "--port") if node.follows else ("--nnodes",)
    kept = [word for word in out if word[0] not in left_out]
    kept += [("--nnodes", str(node.count or nodes)), ("--node-rank", str(node.rank))]
    return [*kept, ("--dist-init-addr", f"{node.master}:{deployment.engine.rendezvous_port}")]


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    chosen: list[Argument] = [("--speculative-algorithm", _algorithm(draft))]
    if draft.draft:
        chosen.append(("--speculative-draft-model-path", draft.draft))
    # A chain without branches: as many steps as guesses, and one verified token more than guessed.
    chosen += [("--speculative-num-steps", str(draft.tokens)), ("--speculative-eagle-topk", "1")]
    return [*chosen, ("--speculative-num-draft-tokens", str(draft.tokens + 1))]


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: without this one the model is loaded twice to draft."""
    recipe = deployment.recipe
    own_layers = recipe.speculate is not None and _algorithm(recipe.speculate) == OWN_LAYERS
    return (SPEC_V2_ENV if own_layers else {}) | recipe.env


def _algorithm(draft: Speculate) -> str:
    return ALGORITHMS.get(draft.method, draft.method.upper())


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return python_entry(recipe, program=("sglang", "serve"), module=("-m", MODULE))


def module_entry(recipe: Recipe) -> tuple[str, ...]:
    """The same by its module."""
    return python_entry(recipe, program=("python3", "-m", MODULE), module=("-m", MODULE))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: Python hands it over from SGLANG_API_KEY."""
    first = next(place for place, word in enumerate(argv) if word.startswith("--"))
    folder, slash, name = argv[0].rpartition("/")
    python = argv[0] if name.startswith("python") else f"{folder}{slash}python3"
    return (python, "-c", ENTER_WITH_KEY, *argv[first:])


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `reading`."""
    if name in DRAFT_FIELDS:
        _drafting(DRAFT_FIELDS[name], word[-1], reading)
        return True
    return taken(word, name, reading, SAID, READERS)


def finished(names: set[str], reading: Reading) -> None:
    """What follows from several words together, and from those that are not there."""
    groups = reading.count("parallel.dp", 1)
    if reading.flags.pop("enable-dp-attention", False) and groups > 1:
        reading.put("parallel.tp", max(reading.count("parallel.tp", 1) // groups, 1))
    reading.settings.setdefault("vision", True)
    note_absent(names, reading, *ALWAYS_ON)
    if "speculate.draft" not in reading.settings:
        return
    tokens = reading.count("speculate.tokens", 3)
    reading.put("speculate.tokens", tokens)
    for key, usual in (("speculative-eagle-topk", 1), ("speculative-num-draft-tokens", tokens + 1)):
        if reading.flags.get(key) == usual:
            del reading.flags[key]


def _drafting(path: str, value: str, reading: Reading) -> None:
    """One field of the draft; its path keeps its letters."""
    reading.settings.setdefault("speculate.draft", "")
    methods = {algorithm: method for method, algorithm in ALGORITHMS.items()}
    read = {"draft": value, "method": methods.get(value.upper(), value.lower())}
    reading.put(f"speculate.{path}", read.get(path, parse_number(value)))


def _kv(value: str, reading: Reading) -> bool:
    """--kv-cache-dtype"""
    reading.put("kv", {"fp8_e4m3": "fp8", "bfloat16": "bf16"}.get(value, value))
    return True


def _experts(value: str, reading: Reading) -> bool:
    """--ep-size"""
    if not value.isdecimal():
        return False
    reading.put("parallel.ep", int(value) > 1)
    return True


SAID: dict[Argument, tuple[str, Flag]] = {
    ("--disable-radix-cache",): ("prefix_caching", False),
    ("--language-model-only",): ("vision", False),
    ("--mm-enable-dp-encoder",): ("vision", True),
}
READERS: dict[str, Reader] = {
    **dict.fromkeys(ALWAYS_ON, ignored),
    "--kv-cache-dtype": _kv,
    "--ep-size": _experts,
    "--default-chat-template-kwargs": template_arguments,
}
