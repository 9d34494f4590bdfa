"""vLLM: its command line and what it refuses. Flags by the parser of 0.32.0."""

import json
from collections.abc import Mapping
from typing import Literal

from moebox.core import presets
from moebox.core.box import Gpu
from moebox.core.calibration import decodes_in_graphs
from moebox.core.deployment import Deployment
from moebox.core.model import Mla
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.engines.arguments import (
    LaunchNode,
    add_rank,
    add_recipe_flags,
    field_arguments,
    flag_arguments,
    merge_arguments,
    thinking_off_json,
    vision_arguments,
)
from moebox.engines.assemble import python_entry
from moebox.engines.engine import Engine
from moebox.engines.flags import Argument, flag_catalogue, is_at_least
from moebox.engines.kv_store import GIB, store_folder
from moebox.engines.support import layer_override, plan_warning, require_fp8_cache, sm_majors, weight_format_refusals
from moebox.engines.vllm import memory
from moebox.engines.vllm.traits import TRAITS
from moebox.units import format_gib

# Loading and first compilation of a 600 GB checkpoint take longer than the 600 s that vLLM waits by default (envs.py).
READY_TIMEOUT = {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}

KV = {"fp8": "fp8", "bf16": "bfloat16", "f16": "float16"}  # recipe -> --kv-cache-dtype

TRITON = "TRITON_MLA"
# DeepSeek V4's own backends. FLASHMLA_SPARSE_DSV4 (the default except on SM12x), SM12x's and AMD's hold packed fp8 and
# assert it, also for "auto"; only this one, requested by name on SM10x, has bf16 rows (vLLM 0.28 models/deepseek_v4:
# attention.py _resolve_dsv4_kv_cache_dtype, nvidia/model.py _select_dsv4_attn_cls; pull requests 54233 and 55134).
PLAIN_ROWS = "FLASHINFER_MLA_SPARSE_DSV4"
COMPRESSED = "https://github.com/vllm-project/vllm/issues/47174; https://github.com/vllm-project/vllm/pull/55134"

STATE_BLOCKS = "https://github.com/vllm-project/vllm/issues/49064; vLLM config/compilation.py"
BLOCK_ERROR = 0.1  # of the number of blocks: how far the planned cache may be from the real one


def tier_arguments(deployment: Deployment) -> list[Argument]:
    """Return the connector of the KV tiers (docs/features/kv_offloading_usage.md of vLLM)."""
    recipe, tiers = deployment.recipe, deployment.recipe.tiers
    if not tiers.ram_gib:
        return []
    if tiers.connector == "native" and not tiers.disk_gib:  # in GiB, of all ranks together
        return [("--kv-offloading-size", f"{tiers.ram_gib:g}"), ("--kv-offloading-backend", "native")]
    config: dict[str, object] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    if tiers.connector == "native":
        kind = "fs" if is_at_least(recipe, "0.23") else "fs_python"  # llm-d pull 1859
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


def _workspace_warnings(deployment: Deployment, backend: str) -> list[PlanWarning]:
    """A warning if TRITON_MLA reserves a large workspace for dense latent attention."""
    recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.smallest_gpu
    on_triton = sm_majors(deployment) & {"8", "12"} or backend == TRITON
    if gpu is None or model is None or recipe.max_seqs is not None or not on_triton:
        return []
    size, seqs = memory.workspace_bytes(gpu, model, recipe), memory.max_seqs(gpu, recipe)
    if size < 2**30:
        return []
    text = f"without max_seqs, TRITON_MLA reserves {format_gib(size)} a GPU for {seqs:,} sequences"
    return [plan_warning("warning", f"{text}, after memory was planned", "max_seqs = 64", "vLLM 0.32.0 triton_mla.py")]


def _state_block_warnings(deployment: Deployment) -> list[PlanWarning]:
    """A refusal if fewer cache blocks fit than sequences are allowed: each needs one for its recurrent state."""
    gpu, recipe = deployment.smallest_gpu, deployment.recipe
    with_states = deployment.is_known and any(each.kind.state_bytes(1) for each in deployment.model.stack)
    if gpu is None or not with_states or recipe.flags.get("enforce-eager"):
        return []
    ranks, sequences = memory.VllmRanks(deployment), memory.max_seqs(gpu, recipe)
    left = [(ranks.utilized_bytes(gpu, at) - needs.inside_bytes, needs.pages) for at, needs in enumerate(ranks.needs)]
    blocks = min((int(free // pages.block_bytes) for free, pages in left if pages), default=0)
    if blocks <= 0 or sequences <= blocks * (1 - BLOCK_ERROR):
        return []
    text = f"about {blocks:,} cache blocks fit, and each of {sequences:,} sequences needs one: graph capture is refused"
    severity: Literal["warning", "fatal"] = "fatal" if sequences > blocks * (1 + BLOCK_ERROR) else "warning"
    return [plan_warning(severity, text, f"max_seqs = {max(1, round(blocks * (1 - BLOCK_ERROR)))}", STATE_BLOCKS)]


class VllmEngine(Engine):
    """Reads prompts in chunks beside decoding; the youngest request is preempted if the cache is full."""

    traits = TRAITS
    fields: Mapping[str, str] = {
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
    variables: Mapping[str, str] = {
        "--served-model-name": "SERVED_MODEL_NAME",
        "--max-model-len": "MAX_MODEL_LEN",
        "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
        "--port": "PORT",
    }
    memory_budget = staticmethod(memory.memory_budget)
    memory_lines = staticmethod(memory.memory_lines)
    setting_reasons = staticmethod(memory.setting_reasons)
    default_max_seqs = 1024  # on GPUs of 70 GiB and more (engine/arg_utils.py)
    schedules_ahead = True  # asynchronous scheduling, the default since 0.14
    # Dummy weights route every token to the same few experts; this routes evenly, as real routers do (envs.py).
    even_routing: Mapping[str, str] = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
    # GLM-5 in FP8: 2,042 kernels, seconds each the first time
    short_warmup: Mapping[str, str] = {"VLLM_DEEP_GEMM_WARMUP": "skip"}
    dummy_flags: Mapping[str, Flag] = {"load-format": "dummy"}

    def arguments(self, deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
        node, recipe = node or LaunchNode(), deployment.recipe
        known = flag_catalogue(TRAITS.name, recipe.engine_version)
        # The model is positional after `vllm serve`; the older module entry needs --model.
        named = "api_server" in recipe.runtime.entry
        out: list[Argument] = [("--model", deployment.weights_path) if named else (deployment.weights_path,)]
        out += field_arguments(recipe, self.fields, known, host=host)
        if recipe.tool_parser:
            out.append(("--enable-auto-tool-choice",))
        if recipe.kv != "auto":
            out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
        out += vision_arguments(deployment, ("--mm-encoder-tp-mode", "data"))
        if not recipe.thinking:
            out.append(("--default-chat-template-kwargs", thinking_off_json(deployment)))
        out += [*self.draft_arguments(recipe), *tier_arguments(deployment)]
        if recipe.parallel.nodes > 1 or node.count is not None:  # by vLLM's own multiprocessing (no Ray)
            out = add_rank(out, node, recipe)
            out += [("--master-addr", node.master), *([("--headless",)] if node.follows else [])]
        out = merge_arguments(out, flag_arguments(presets.load_preset(recipe.runtime.preset).flags, known), known)
        return add_recipe_flags(out, recipe.flags, known)

    def draft_arguments(self, recipe: Recipe) -> list[Argument]:
        draft = recipe.speculate
        if draft is None:
            return []
        settings: dict[str, object] = {"method": draft.method}
        settings |= {"model": draft.draft} if draft.draft else {}
        settings["num_speculative_tokens"] = draft.tokens
        settings |= presets.load_preset(recipe.runtime.preset).speculate
        return [("--speculative-config", json.dumps(settings, separators=(",", ":")))]

    def environment(self, deployment: Deployment) -> dict[str, str]:
        """Variables to set: a longer timeout for large models, the preset's, those of KV tiers and the recipe's."""
        recipe, model = deployment.recipe, deployment.known_model
        large = model is None or model.total_parameters > 100e9
        own = (READY_TIMEOUT if large else {}) | presets.load_preset(recipe.runtime.preset).environment
        return own | tier_environment(deployment) | recipe.env

    def entry_command(self, recipe: Recipe) -> tuple[str, ...]:
        return python_entry(recipe, program=("vllm", "serve"), module=("-m", "vllm.entrypoints.cli.main", "serve"))

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens that one step may read: by default more on larger GPUs."""
        return memory.step_tokens(gpu, recipe) if gpu else recipe.batched_tokens or TRAITS.step_tokens

    def captured_tokens(self, deployment: Deployment, gpu: Gpu) -> int:
        """Return the largest captured graph: twice the tokens that a full step decodes, at most 512 unless set."""
        recipe = deployment.recipe
        usual = min(2 * memory.max_seqs(gpu, recipe) * (1 + recipe.draft_tokens), 512)
        given = recipe.flags.get("max-cudagraph-capture-size", usual)
        return 0 if not decodes_in_graphs(recipe) else given if isinstance(given, int) else usual

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        return {**self.dummy_flags, "hf-overrides": layer_override(deployment, layers)}

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.smallest_gpu
        found, majors = super().find_refusals(deployment), sm_majors(deployment)
        stock = recipe.runtime.preset != "community"
        backend = str(recipe.flags.get("attention-backend", "")).upper()  # "" if vLLM chooses
        # With an indexer (DSA) other kernels decode, whose cache is fp8 by design.
        if model is not None and isinstance(model.attention, Mla) and model.attention.indexer is None:
            found += _workspace_warnings(deployment, backend)
        has_bf16_rows = majors == {"10"} and backend == PLAIN_ROWS
        takes_auto = recipe.kv == "auto" and is_at_least(recipe, "0.30.0")  # as fp8
        if model and model.has_compressed_cache and recipe.kv != "fp8" and not (has_bf16_rows or takes_auto):
            found.append(require_fp8_cache(COMPRESSED))
        found += _state_block_warnings(deployment)
        if recipe.parallel.dcp > 1 and recipe.speculate and stock:
            text = "speculative decoding under DCP takes the prefill path: acceptance collapses past the first token"
            source = "https://github.com/vllm-project/vllm/issues/50391"
            found.append(plan_warning("warning", text, "parallel.dcp = 1, or speculate.tokens = 1", source))
        found += weight_format_refusals(deployment)
        in_one_machine = recipe.parallel.group_nodes == 1
        if gpu is not None and not gpu.nvlink and recipe.parallel.tp > 2 and stock and in_one_machine:
            text = "custom all-reduce is off above two PCIe GPUs: NCCL carries every layer"
            remedy = 'env.VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC = "1" to try'
            found.append(plan_warning("note", text, remedy, "vLLM custom_all_reduce.py"))
        return found


ENGINE = VllmEngine()
