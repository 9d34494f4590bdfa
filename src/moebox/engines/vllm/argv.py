"""Deployment to vLLM's command line and back. Flags by the parser of 0.32.0."""

import json

from moebox.core import presets
from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.arguments import (
    LaunchNode,
    drop_disabled,
    field_arguments,
    flag_arguments,
    merge_arguments,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.reading import Reader, Reading, ignored, json_object, taken, template_arguments
from moebox.engines.vllm.traits import TRAITS

# Loading and first compilation of a 600 GB checkpoint outlast the 600 s that vLLM waits by default (envs.py).
READY_TIMEOUT = {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}

FIELDS: dict[str, str] = {
    "--served-model-name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--trust-remote-code": "trust_remote_code",
    "--tensor-parallel-size": "parallel.tp",
    "--pipeline-parallel-size": "parallel.pp",
    "--decode-context-parallel-size": "parallel.dcp",
    "--data-parallel-size": "parallel.dp",
    "--enable-expert-parallel": "parallel.ep",
    "--nnodes": "parallel.nodes",
    "--max-model-len": "context",
    "--gpu-memory-utilization": "memory_utilization",
    "--max-num-seqs": "max_seqs",
    "--max-num-batched-tokens": "batched_tokens",
    "--enable-prefix-caching": "prefix_caching",
    "--tool-call-parser": "tool_parser",
    "--reasoning-parser": "reasoning_parser",
}
READS = FIELDS
KV = {"fp8": "fp8", "bf16": "bfloat16", "f16": "float16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--served-model-name": "SERVED_MODEL_NAME",
    "--max-model-len": "MAX_MODEL_LEN",
    "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry, word by word."""
    node, recipe = node or LaunchNode(), deployment.recipe
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    out: list[Argument] = [_model_word(deployment), *field_arguments(recipe, FIELDS, known, host=host)]
    if recipe.tool_parser:
        out.append(("--enable-auto-tool-choice",))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    out += vision_arguments(deployment, ("--mm-encoder-tp-mode", "data"))
    if not recipe.thinking:
        out.append(("--default-chat-template-kwargs", thinking_off_json(deployment)))
    out += draft_arguments(recipe)
    out = _for_node(out, recipe, node)
    out = merge_arguments(out, flag_arguments(presets.recipe_preset(recipe).flags, known), known)
    return merge_arguments(drop_disabled(out, recipe.flags, known), flag_arguments(recipe.flags, known), known)


def _model_word(deployment: Deployment) -> Argument:
    """Positional after `vllm serve`; the older module entry wants --model."""
    named = "api_server" in deployment.recipe.runtime.entry
    return ("--model", deployment.weights_path) if named else (deployment.weights_path,)


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    settings: dict[str, object] = {"method": draft.method}
    settings |= {"model": draft.draft} if draft.draft else {}
    settings["num_speculative_tokens"] = draft.tokens
    settings |= presets.recipe_preset(recipe).speculate
    return [("--speculative-config", json.dumps(settings, separators=(",", ":")))]


def _for_node(out: list[Argument], recipe: Recipe, node: LaunchNode) -> list[Argument]:
    """One machine's share of a launch over several, by vLLM's own multiprocessing (no Ray)."""
    if recipe.parallel.nodes == 1 and node.count is None:
        return out
    left_out = ("--nnodes", "--host", "--port") if node.follows else ("--nnodes",)
    kept = [word for word in out if word[0] not in left_out]
    kept += [("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]
    kept.append(("--master-addr", node.master))
    return [*kept, ("--headless",)] if node.follows else kept


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe."""
    recipe, model = deployment.recipe, deployment.known_model
    large = model is None or model.total_parameters > 100e9
    return (READY_TIMEOUT if large else {}) | presets.recipe_preset(recipe).environment | recipe.env


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return python_entry(recipe, program=("vllm", "serve"), module=("-m", "vllm.entrypoints.cli.main", "serve"))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: vLLM reads VLLM_API_KEY itself."""
    return argv


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `reading`."""
    return taken(word, name, reading, SAID, READERS)


def finished(names: set[str], reading: Reading) -> None:
    """What follows from words that are not there."""
    reading.settings.setdefault("vision", True)


def _kv(value: str, reading: Reading) -> bool:
    """--kv-cache-dtype"""
    reading.put("kv", {spelled: kind for kind, spelled in KV.items()}.get(value, value))
    return True


def _drafting(value: str, reading: Reading) -> bool:
    """--speculative-config, less what presets add to it; one with more in it than a recipe says stays a flag."""
    added = [item for name in presets.preset_names() for item in presets.load_preset(name).speculate.items()]
    own = {key: given for key, given in json_object(value).items() if (key, given) not in added}
    if not own.keys() <= {"method", "model", "num_speculative_tokens"}:
        return False
    tokens = own.get("num_speculative_tokens", 3)
    reading.put("speculate.method", str(own.get("method", "draft_model")))
    reading.put("speculate.draft", str(own.get("model", "")))
    reading.put("speculate.tokens", tokens if isinstance(tokens, int) else str(tokens))
    return True


SAID: dict[Argument, tuple[str, Flag]] = {
    ("--language-model-only",): ("vision", False),
    ("--mm-encoder-tp-mode", "data"): ("vision", True),
}
READERS: dict[str, Reader] = {
    "--kv-cache-dtype": _kv,
    "--enable-auto-tool-choice": ignored,
    "--default-chat-template-kwargs": template_arguments,
    "--speculative-config": _drafting,
}
