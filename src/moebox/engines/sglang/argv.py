"""A deployment to SGLang's command line. Flags by the parser of 0.5.23."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe, Speculate
from moebox.engines.arguments import (
    LaunchNode,
    add_recipe_flags,
    field_arguments,
    merge_arguments,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue
from moebox.engines.kv_store import GIB, store_folder

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
KV = {"fp8": "fp8_e4m3", "bf16": "bf16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--model-path": "MODEL_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--context-length": "MAX_MODEL_LEN",
    "--mem-fraction-static": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}
# The model's own prediction layers go by the name of the paper that calls them next-n (speculative/spec_info.py).
OWN_LAYERS = "NEXTN"
ALGORITHMS = {"mtp": OWN_LAYERS}
SPEC_V2_ENV = {"SGLANG_ENABLE_SPEC_V2": "True"}  # rtx6kpro wiki, sglang; newer versions have it on
# Metrics for monitoring, and in every reply how much of its prompt was cached, which a benchmark must know.
ALWAYS_ON = ("--enable-metrics", "--enable-cache-report")
GB = 10**9
MODULE = "sglang.launch_server"
# SGLang takes its key from argv only (server_args.py); this adds it inside the process, where `ps` does not show it.
ENTER_WITH_KEY = (
    "import os, runpy, sys; sys.argv[1:1] = ['--api-key', os.environ['SGLANG_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    recipe = deployment.recipe
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    return add_recipe_flags(base_arguments(deployment, node=node, host=host), recipe.flags, known)


def base_arguments(deployment: Deployment, *, node: LaunchNode | None, host: str) -> list[Argument]:
    """Arguments before the recipe's own flags; forks add theirs."""
    node, recipe, parallel = node or LaunchNode(), deployment.recipe, deployment.recipe.parallel
    known = flag_catalogue(recipe.engine, recipe.engine_version)
    out: list[Argument] = [("--model-path", deployment.weights_path)]
    out += field_arguments(recipe, FIELDS, known, host=host)
    ranks = parallel.tp * parallel.dp
    if parallel.dp > 1:
        # SGLang counts all GPUs of its data-parallel attention groups under --tp-size.
        out = [*merge_arguments(out, [("--tp-size", str(ranks))], known), ("--enable-dp-attention",)]
    if parallel.ep:
        out.append(("--ep-size", str(ranks)))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    if recipe.prefix_caching is False:
        out.append(("--disable-radix-cache",))
    optional = vision_arguments(deployment, ("--mm-enable-dp-encoder",))
    if not recipe.thinking:
        optional.append(("--default-chat-template-kwargs", thinking_off_json(deployment)))
    out += [argument for argument in optional if argument[0] in known.specs]  # a fork may have no such flag
    out += [*draft_arguments(recipe), *tier_arguments(recipe)]
    out += [(flag,) for flag in ALWAYS_ON]
    if parallel.nodes > 1 or node.count is not None:
        omitted = ("--nnodes", "--host", "--port") if node.follows else ("--nnodes",)
        out = [argument for argument in out if argument[0] not in omitted]
        out += [("--nnodes", str(node.count or parallel.nodes)), ("--node-rank", str(node.rank))]
        out.append(("--dist-init-addr", f"{node.master}:{deployment.engine.rendezvous_port}"))
    return out


def rank_gb(recipe: Recipe) -> int:
    """Return the RAM of HiCache for each rank, in the whole GB of --hicache-size (memory_pool_host.py)."""
    return int(recipe.tiers.ram_gib * GIB) // (recipe.parallel.gpu_count * GB)


def tier_arguments(recipe: Recipe) -> list[Argument]:
    """Return HiCache's flags."""
    tiers = recipe.tiers
    if not tiers.ram_gib:
        return []
    out: list[Argument] = [("--enable-hierarchical-cache",), ("--hicache-size", str(max(rank_gb(recipe), 1)))]
    # Written at once and waited for: with the defaults a reboot found 3 % (support row sglang-hicache-file-hit-rate).
    out.append(("--hicache-write-policy", "write_through"))
    if tiers.disk_gib:
        out += [("--hicache-storage-backend", "file"), ("--hicache-storage-prefetch-policy", "wait_complete")]
        out += [("--hicache-mem-layout", "page_first_direct"), ("--hicache-io-backend", "direct")]
    return out


def draft_arguments(recipe: Recipe) -> list[Argument]:
    draft = recipe.speculate
    if draft is None:
        return []
    out: list[Argument] = [("--speculative-algorithm", _algorithm(draft))]
    if draft.draft:
        out.append(("--speculative-draft-model-path", draft.draft))
    # A chain without branches: as many steps as draft tokens, and one verified token more.
    out += [("--speculative-num-steps", str(draft.tokens)), ("--speculative-eagle-topk", "1")]
    return [*out, ("--speculative-num-draft-tokens", str(draft.tokens + 1))]


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables to set: without SPEC_V2_ENV the model is loaded twice to draft by its own layers."""
    draft = deployment.recipe.speculate
    own_layers = draft is not None and _algorithm(draft) == OWN_LAYERS
    found, tiers = dict(SPEC_V2_ENV) if own_layers else {}, deployment.recipe.tiers
    if tiers.disk_gib:
        model, ranks = deployment.known_model, deployment.recipe.parallel.gpu_count
        owners = 1 if model is not None and model.mla else ranks  # ranks of a latent cache share their files
        found["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = store_folder(deployment)
        found["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"] = str(int(tiers.disk_gib * GIB / owners))
    return found | deployment.recipe.env


def _algorithm(draft: Speculate) -> str:
    return ALGORITHMS.get(draft.method, draft.method.upper())


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    return python_entry(recipe, program=("sglang", "serve"), module=("-m", MODULE))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Pass the API key from SGLANG_API_KEY inside the Python process instead of in argv."""
    first = next(place for place, word in enumerate(argv) if word.startswith("--"))
    folder, slash, name = argv[0].rpartition("/")
    python = argv[0] if name.startswith("python") else f"{folder}{slash}python3"
    return (python, "-c", ENTER_WITH_KEY, *argv[first:])
