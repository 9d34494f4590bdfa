"""A deployment to vLLM's command line. Flags by the parser of 0.32.0."""

import json

from moebox.core import presets
from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import (
    LaunchNode,
    add_recipe_flags,
    field_arguments,
    flag_arguments,
    merge_arguments,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue, version_key, version_or_newest
from moebox.engines.kv_store import GIB, store_folder
from moebox.engines.vllm.traits import TRAITS

# Loading and first compilation of a 600 GB checkpoint take longer than the 600 s that vLLM waits by default (envs.py).
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
KV = {"fp8": "fp8", "bf16": "bfloat16", "f16": "float16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--served-model-name": "SERVED_MODEL_NAME",
    "--max-model-len": "MAX_MODEL_LEN",
    "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    node, recipe = node or LaunchNode(), deployment.recipe
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    # The model is positional after `vllm serve`; the older module entry needs --model.
    named = "api_server" in recipe.runtime.entry
    out: list[Argument] = [("--model", deployment.weights_path) if named else (deployment.weights_path,)]
    out += field_arguments(recipe, FIELDS, known, host=host)
    if recipe.tool_parser:
        out.append(("--enable-auto-tool-choice",))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    out += vision_arguments(deployment, ("--mm-encoder-tp-mode", "data"))
    if not recipe.thinking:
        out.append(("--default-chat-template-kwargs", thinking_off_json(deployment)))
    out += [*draft_arguments(recipe), *tier_arguments(deployment)]
    if recipe.parallel.nodes > 1 or node.count is not None:  # over several nodes by vLLM's own multiprocessing (no Ray)
        omitted = ("--nnodes", "--host", "--port") if node.follows else ("--nnodes",)
        out = [argument for argument in out if argument[0] not in omitted]
        out += [("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]
        out += [("--master-addr", node.master), *([("--headless",)] if node.follows else [])]
    out = merge_arguments(out, flag_arguments(presets.recipe_preset(recipe).flags, known), known)
    return add_recipe_flags(out, recipe.flags, known)


def tier_arguments(deployment: Deployment) -> list[Argument]:
    """Return the connector of the KV tiers (docs/features/kv_offloading_usage.md of vLLM)."""
    recipe, tiers = deployment.recipe, deployment.recipe.tiers
    if not tiers.ram_gib:
        return []
    if tiers.connector == "native" and not tiers.disk_gib:  # in GiB, of all ranks together
        return [("--kv-offloading-size", f"{tiers.ram_gib:g}"), ("--kv-offloading-backend", "native")]
    config: dict[str, object] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    if tiers.connector == "native":
        kind = "fs" if version_key(version_or_newest(recipe)) >= version_key("0.23") else "fs_python"  # llm-d pull 1859
        disk = {"type": kind, "root_dir": store_folder(deployment)}
        extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": int(tiers.ram_gib * GIB)}
        config = {**config, "kv_connector": "OffloadingConnector"}
        config["kv_connector_extra_config"] = {**extra, "secondary_tiers": [disk]}
    return [("--kv-transfer-config", json.dumps(config, separators=(",", ":")))]


def tier_environment(deployment: Deployment) -> dict[str, str]:
    """Variables of the KV tiers: LMCache's sizes, which are those of one rank, and a seed that outlives a restart."""
    tiers, ranks = deployment.recipe.tiers, deployment.recipe.parallel.gpu_count
    if tiers.connector == "native" or not tiers.ram_gib:
        return {"PYTHONHASHSEED": "0"} if tiers.disk_gib else {}
    found = {"LMCACHE_CHUNK_SIZE": "256", "LMCACHE_LOCAL_CPU": "True"}
    found["LMCACHE_MAX_LOCAL_CPU_SIZE"] = f"{tiers.ram_gib / ranks:g}"
    if tiers.disk_gib:
        found["LMCACHE_LOCAL_DISK"] = f"file://{store_folder(deployment)}/"
        found["LMCACHE_MAX_LOCAL_DISK_SIZE"] = f"{tiers.disk_gib / ranks:g}"
    return found


def draft_arguments(recipe: Recipe) -> list[Argument]:
    draft = recipe.speculate
    if draft is None:
        return []
    settings: dict[str, object] = {"method": draft.method}
    settings |= {"model": draft.draft} if draft.draft else {}
    settings["num_speculative_tokens"] = draft.tokens
    settings |= presets.recipe_preset(recipe).speculate
    return [("--speculative-config", json.dumps(settings, separators=(",", ":")))]


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables to set: a longer timeout for large models, the preset's, those of KV tiers and the recipe's."""
    recipe, model = deployment.recipe, deployment.known_model
    large = model is None or model.total_parameters > 100e9
    own = (READY_TIMEOUT if large else {}) | presets.recipe_preset(recipe).environment
    return own | tier_environment(deployment) | recipe.env


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    return python_entry(recipe, program=("vllm", "serve"), module=("-m", "vllm.entrypoints.cli.main", "serve"))
