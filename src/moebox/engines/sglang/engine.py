"""SGLang: its command line and what it refuses. Flags by the parser of 0.5.23."""

import math
from collections.abc import Callable, Mapping

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.plan import Memory, PlanWarning
from moebox.core.recipe import Flag, Recipe, Speculate
from moebox.engines.arguments import (
    LaunchNode,
    add_rank,
    add_recipe_flags,
    field_arguments,
    merge_arguments,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.engine import Engine
from moebox.engines.flags import Argument, flag_catalogue, is_at_least
from moebox.engines.kv_store import GIB, store_folder
from moebox.engines.sglang import memory
from moebox.engines.sglang.traits import TRAITS
from moebox.engines.support import layer_override, plan_warning, require_fp8_cache, weight_format_refusals
from moebox.units import format_gib

KV = {"fp8": "fp8_e4m3", "bf16": "bf16"}  # recipe -> --kv-cache-dtype
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
MOST_PREFILL = 16_384  # prompt tokens of all requests in a step by default (managers/schedule_policy.py)

NO_PROMPT_GRAPHS = ("disable-cuda-graph", "disable-piecewise-cuda-graph", "disable-prefill-cuda-graph")
VISION_IN_GRAPHS = ("KimiK25", "MiniMaxM3", "Qwen3_5Moe")  # architectures begin so
# With a token selector, or because the default attention on B200 falls back in graphs.
EAGER_PROMPTS = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
# Until 0.5.14 prompts were compiled in pieces, not with these (model_config.py, _handle_piecewise_cuda_graph).
NOT_COMPILED = ("Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM")
NO_COMPILED_PROMPTS = ("moe-a2a-backend", "enable-lora", "lora-paths", "enable-eplb", "enable-deterministic-inference")

# deepseek_v4_memory_pool.py asserts a store of packed fp8 on every GPU; "auto" becomes fp8 (arg_groups/overrides.py).
COMPRESSED = "https://github.com/sgl-project/sglang/issues/33194; SGLang deepseek_v4_memory_pool.py, August 2026"


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


def _algorithm(draft: Speculate) -> str:
    return ALGORITHMS.get(draft.method, draft.method.upper())


def bf16_cache_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Refuse DeepSeek V4's cache in bf16; the fork under KTransformers has the same pool."""
    model = deployment.known_model
    refused = model is not None and model.has_compressed_cache and deployment.recipe.kv == "bf16"
    return [require_fp8_cache(COMPRESSED)] if refused else []


def small_tier_refusals(deployment: Deployment, budget: Callable[[Deployment], Memory]) -> list[PlanWarning]:
    """Refuse less RAM than HiCache starts with: more whole GB for each rank than its GPU has cache."""
    recipe = deployment.recipe
    if not (recipe.tiers.ram_gib and deployment.is_known and deployment.box):
        return []
    held = max((device.kv for device in budget(deployment).devices if device.device != "ram"), default=0)
    if rank_gb(recipe) > held // GB:
        return []
    least = math.ceil((held // GB + 1) * GB * recipe.parallel.gpu_count / 2**30)
    text = f"HiCache does not start with less RAM than a GPU has cache: {format_gib(held)} for each rank"
    remedy = f"kv_tiers.ram_gib = {least} or more"
    return [plan_warning("fatal", text, remedy, "sglang memory_pool_host.py, 0.5.23")]


class SglangEngine(Engine):
    """Reads prompts before it decodes, and reserves cache for what requests have yet to write."""

    traits = TRAITS
    fields: Mapping[str, str] = {
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
    variables: Mapping[str, str] = {
        "--model-path": "MODEL_PATH",
        "--served-model-name": "SERVED_MODEL_NAME",
        "--context-length": "MAX_MODEL_LEN",
        "--mem-fraction-static": "GPU_MEMORY_UTILIZATION",
        "--port": "PORT",
    }
    memory_budget = staticmethod(memory.memory_budget)
    memory_lines = staticmethod(memory.memory_lines)
    setting_reasons = staticmethod(memory.setting_reasons)
    default_max_seqs = 4096  # at most, on GPUs of 70 GiB and more
    prompts_first = True
    reserves_output = True
    schedules_ahead = True  # the overlap scheduler, the default since 0.4
    # Dummy weights route every token to the same few experts; this routes evenly, as real routers do (environ.py).
    even_routing: Mapping[str, str] = {"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}
    even_routing_us = 10.2  # nine kernels behind the router's own, in a CUDA graph: 10.1 to 11.4 on an H200
    dummy_flags: Mapping[str, Flag] = {"load-format": "dummy"}

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        recipe = deployment.recipe
        known = flag_catalogue(recipe.engine, recipe.engine_version)
        return add_recipe_flags(self.base_arguments(deployment, node=node, host=host), recipe.flags, known)

    def base_arguments(self, deployment: Deployment, *, node: LaunchNode | None, host: str) -> list[Argument]:
        """Arguments before the recipe's own flags; forks add theirs."""
        node, recipe, parallel = node or LaunchNode(), deployment.recipe, deployment.recipe.parallel
        known = flag_catalogue(recipe.engine, recipe.engine_version)
        out: list[Argument] = [("--model-path", deployment.weights_path)]
        out += field_arguments(recipe, self.fields, known, host=host)
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
        out += [*self.draft_arguments(recipe), *tier_arguments(recipe)]
        out += [(flag,) for flag in ALWAYS_ON]
        if parallel.nodes > 1 or node.count is not None:
            out = add_rank(out, node, recipe)
            out.append(("--dist-init-addr", f"{node.master}:{deployment.engine.rendezvous_port}"))
        return out

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        draft = recipe.speculate
        if draft is None:
            return []
        out: list[Argument] = [("--speculative-algorithm", _algorithm(draft))]
        if draft.draft:
            out.append(("--speculative-draft-model-path", draft.draft))
        # A chain without branches: as many steps as draft tokens, and one verified token more.
        out += [("--speculative-num-steps", str(draft.tokens)), ("--speculative-eagle-topk", "1")]
        return [*out, ("--speculative-num-draft-tokens", str(draft.tokens + 1))]

    def environment(self, deployment: Deployment) -> dict[str, str]:
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

    def hide_api_key(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Pass the API key from SGLANG_API_KEY inside the Python process instead of in argv."""
        first = next(place for place, word in enumerate(argv) if word.startswith("--"))
        folder, slash, name = argv[0].rpartition("/")
        python = argv[0] if name.startswith("python") else f"{folder}{slash}python3"
        return (python, "-c", ENTER_WITH_KEY, *argv[first:])

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        return python_entry(recipe, program=("sglang", "serve"), module=("-m", MODULE))

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens that one step may read: a piece, larger on larger GPUs; max-prefill-tokens in all."""
        chunk = memory.chunk_and_batch(gpu, recipe)[0] if gpu else recipe.batched_tokens or TRAITS.step_tokens
        given = str(recipe.flags.get("max-prefill-tokens") or "")
        return min(chunk, int(given) if given.isdecimal() else MOST_PREFILL)

    def captured_tokens(self, deployment: Deployment, gpu: Gpu) -> int:
        """Return up to how many tokens of prompts run in graphs, by the rules of server_args.py since 0.5.10."""
        recipe, model = deployment.recipe, deployment.known_model
        groups = recipe.parallel.pp * recipe.parallel.dp * recipe.parallel.dcp
        if model is None or not is_at_least(recipe, "0.5.10") or gpu.vendor != "NVIDIA" or groups > 1:
            return 0
        if (
            any(map(recipe.flags.get, NO_PROMPT_GRAPHS))
            or recipe.flags.get("cuda-graph-backend-prefill") == "disabled"
            or model.has_compressed_cache
            or (
                model.vision and not (is_at_least(recipe, "0.5.18") and model.architecture.startswith(VISION_IN_GRAPHS))
            )
        ):
            return 0
        compiled = not is_at_least(recipe, "0.5.15")
        others = any(recipe.flags.get(flag) not in (None, False, "none") for flag in NO_COMPILED_PROMPTS)
        if compiled and (others or recipe.tiers.ram_gib or model.architecture in NOT_COMPILED):
            return 0
        chunk, most = memory.chunk_and_batch(gpu, recipe)[0], str(recipe.flags.get("cuda-graph-max-bs-prefill"))
        chunk = min(chunk, int(most)) if most.isdecimal() else chunk
        if model.mla is None:
            return chunk
        without = is_at_least(recipe, "0.5.15") and not is_at_least(recipe, "0.5.18")
        return 0 if without or model.architecture in EAGER_PROMPTS else min(chunk, 2048)

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        return {**self.dummy_flags, "json-model-override-args": layer_override(deployment, layers)}

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        found = [*super().find_refusals(deployment), *weight_format_refusals(deployment)]
        found += [*bf16_cache_refusals(deployment), *small_tier_refusals(deployment, memory.memory_budget)]
        if deployment.recipe.speculate and deployment.recipe.parallel.dcp > 1:
            text = "speculative decoding under DCP is not proven in SGLang"
            found.append(plan_warning("warning", text, "parallel.dcp = 1"))
        return found


ENGINE = SglangEngine()
