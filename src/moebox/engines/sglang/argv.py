"""Deployment to SGLang's command line and back. Flags by the parser of 0.5.23."""

from typing import Any

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import (
    Node,
    field_words,
    flag_words,
    is_thinking_off,
    merge,
    number,
    thinking_off,
    without,
)
from moebox.engines.assemble import entry_words
from moebox.engines.flags import Word, catalogue

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
MODULE = "sglang.launch_server"
# SGLang takes its key from argv alone (server_args.py); this puts it there inside the process, where no `ps` sees it.
ENTER_WITH_KEY = (
    "import os, runpy, sys; sys.argv[1:1] = ['--api-key', os.environ['SGLANG_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)


def words(deployment: Deployment, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = catalogue(recipe.engine, recipe.engine_version)
    out = serving_words(deployment, node=node, host=host)
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def serving_words(deployment: Deployment, *, node: Node | None, host: str) -> list[Word]:
    """The same before the recipe's own flags; forks add theirs."""
    node, recipe, tower = node or Node(), deployment.recipe, deployment.vision_tower
    known = catalogue(recipe.engine, recipe.engine_version)
    out: list[Word] = [("--model-path", deployment.weights), *field_words(recipe, FIELDS, known, host=host)]
    if recipe.parallel.ep:
        out.append(("--ep-size", str(recipe.parallel.tp)))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    if recipe.prefix_caching is False:
        out.append(("--disable-radix-cache",))
    if tower and not recipe.vision:
        out.append(("--language-model-only",))
    elif tower and recipe.parallel.tp > 1:
        out.append(("--mm-enable-dp-encoder",))  # the tower is small: a copy per card beats slicing it
    if not recipe.thinking:
        out.append(("--default-chat-template-kwargs", thinking_off(deployment)))
    out += speculation(recipe)
    if recipe.parallel.nodes > 1 or node.count is not None:
        out = [word for word in out if word[0] != "--nnodes" and not (node.follows and word[0] in ("--host", "--port"))]
        out += [("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]
        out.append(("--dist-init-addr", f"{node.master}:{deployment.engine.meets_at}"))
    return out


def speculation(recipe: Recipe) -> list[Word]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    chosen: list[Word] = [("--speculative-algorithm", draft.method.upper())]
    if draft.draft:
        chosen.append(("--speculative-draft-model-path", draft.draft))
    # A chain without branches: as many steps as guesses, and one verified token more than guessed.
    chosen += [("--speculative-num-steps", str(draft.tokens)), ("--speculative-eagle-topk", "1")]
    return [*chosen, ("--speculative-num-draft-tokens", str(draft.tokens + 1))]


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(deployment.recipe.env)


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("sglang", "serve"), module=("-m", MODULE))


def module_entry(recipe: Recipe) -> tuple[str, ...]:
    """The same by its module."""
    return entry_words(recipe, program=("python3", "-m", MODULE), module=("-m", MODULE))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: Python hands it over from SGLANG_API_KEY."""
    first = next(place for place, word in enumerate(argv) if word.startswith("--"))
    folder, slash, name = argv[0].rpartition("/")
    python = argv[0] if name.startswith("python") else f"{folder}{slash}python3"
    return (python, "-c", ENTER_WITH_KEY, *argv[first:])


def understood(word: Word, name: str, document: dict[str, Any]) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `document`."""
    value = word[-1]
    if name == "--kv-cache-dtype":
        document["kv"] = {"fp8_e4m3": "fp8", "bfloat16": "bf16"}.get(value, value)
    elif name == "--ep-size" and value.isdecimal():
        document.setdefault("parallel", {})["ep"] = int(value) > 1
    elif name == "--disable-radix-cache":
        document["prefix_caching"] = False
    elif name == "--language-model-only":
        document["vision"] = False
    elif name == "--mm-enable-dp-encoder":
        document["vision"] = True
    elif name == "--default-chat-template-kwargs" and is_thinking_off(value):
        document["thinking"] = False
    elif name in DRAFT_FIELDS:
        document.setdefault("speculate", {"draft": ""})[DRAFT_FIELDS[name]] = number(value.lower())
        if name == "--speculative-draft-model-path":
            document["speculate"]["draft"] = value
    else:
        return False
    return True


def finished(names: set[str], document: dict[str, Any]) -> None:
    """What follows from several words together, and from those that are not there."""
    document["vision"] = document.get("vision", True)
    draft, flags = document.get("speculate"), document["flags"]
    if draft is None:
        return
    tokens = draft.setdefault("tokens", 3)
    for key, usual in (("speculative-eagle-topk", 1), ("speculative-num-draft-tokens", tokens + 1)):
        if flags.get(key) == usual:
            del flags[key]
