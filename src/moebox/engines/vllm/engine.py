"""vLLM: its log, what it refuses, and the object that moebox uses."""

from typing import Literal

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Mla
from moebox.core.plan import PlanWarning
from moebox.core.recipe import Flag, Recipe
from moebox.engines.engine import Engine
from moebox.engines.refusals import layer_override, plan_warning, require_fp8_cache, sm_majors, weight_format_refusals
from moebox.engines.vllm import argv, memory
from moebox.engines.vllm.traits import TRAITS
from moebox.units import format_gib

# Dummy weights route every token to the same few experts; this routes evenly, as real routers do on average (envs.py).
EVEN_ROUTING = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
DUMMY_FLAGS: dict[str, Flag] = {"load-format": "dummy"}

TRITON = "TRITON_MLA"
# DeepSeek V4's own backends. FLASHMLA_SPARSE_DSV4 (the default except on SM12x), SM12x's and AMD's hold packed fp8 and
# assert it, also for "auto"; only this one, requested by name on SM10x, has bf16 rows (vLLM 0.28 models/deepseek_v4:
# attention.py _resolve_dsv4_kv_cache_dtype, nvidia/model.py _select_dsv4_attn_cls; pull requests 54233 and 55134).
PLAIN_ROWS = "FLASHINFER_MLA_SPARSE_DSV4"
COMPRESSED = "https://github.com/vllm-project/vllm/issues/47174; https://github.com/vllm-project/vllm/pull/55134"

STATE_BLOCKS = "https://github.com/vllm-project/vllm/issues/49064; vLLM config/compilation.py"
BLOCK_ERROR = 0.1  # of the number of blocks: how far the planned cache may be from the real one


def _workspace_warnings(deployment: Deployment, backend: str) -> list[PlanWarning]:
    """A warning if TRITON_MLA reserves a large workspace for dense latent attention."""
    recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.smallest_gpu
    found, majors = [], sm_majors(deployment)
    on_triton = majors & {"8", "12"} or backend == TRITON
    if gpu is not None and model is not None and recipe.max_seqs is None and on_triton:
        size, seqs = memory.workspace_bytes(gpu, model, recipe), memory.max_seqs(gpu, recipe)
        if size >= 2**30:
            text = (
                f"without max_seqs, TRITON_MLA reserves {format_gib(size)} a GPU for {seqs:,} sequences, after memory "
                "was planned"
            )
            found.append(plan_warning("warning", text, "max_seqs = 64", "vLLM 0.32.0 triton_mla.py"))
    return found


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
    fields = argv.FIELDS
    variables = argv.VARIABLES
    arguments = staticmethod(argv.arguments)
    draft_arguments = staticmethod(argv.draft_arguments)
    environment = staticmethod(argv.environment)
    entry_command = staticmethod(argv.entry_command)
    memory_budget = staticmethod(memory.memory_budget)
    memory_lines = staticmethod(memory.memory_lines)
    setting_reasons = staticmethod(memory.setting_reasons)
    default_max_seqs = 1024  # on GPUs of 70 GiB and more (engine/arg_utils.py)
    schedules_ahead = True  # asynchronous scheduling, the default since 0.14
    even_routing = EVEN_ROUTING
    dummy_flags = DUMMY_FLAGS

    def step_tokens(self, recipe: Recipe, gpu: Gpu | None = None) -> int:
        """Prompt tokens that one step may read: by default more on larger GPUs."""
        return memory.step_tokens(gpu, recipe) if gpu else recipe.batched_tokens or TRAITS.step_tokens

    def captured_tokens(self, recipe: Recipe, gpu: Gpu) -> int:
        """Return the largest captured graph: twice the tokens that a full step decodes, at most 512 unless set."""
        usual = min(2 * memory.max_seqs(gpu, recipe) * (1 + recipe.draft_tokens), 512)
        given = recipe.flags.get("max-cudagraph-capture-size", usual)
        return given if isinstance(given, int) else usual

    def dummy_weight_flags(self, deployment: Deployment, layers: int) -> dict[str, Flag]:
        return {**DUMMY_FLAGS, "hf-overrides": layer_override(deployment, layers)}

    def find_refusals(self, deployment: Deployment) -> list[PlanWarning]:
        recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.smallest_gpu
        found, majors = super().find_refusals(deployment), sm_majors(deployment)
        stock = recipe.runtime.preset != "community"
        backend = str(recipe.flags.get("attention-backend", "")).upper()  # "" if vLLM chooses
        # With an indexer (DSA) other kernels decode, whose cache is fp8 by design.
        if model is not None and isinstance(model.attention, Mla) and model.attention.indexer is None:
            found += _workspace_warnings(deployment, backend)
        has_bf16_rows = majors == {"10"} and backend == PLAIN_ROWS
        if model is not None and model.has_compressed_cache and recipe.kv != "fp8" and not has_bf16_rows:
            found.append(require_fp8_cache(COMPRESSED))
        found += _state_block_warnings(deployment)
        if model is not None and model.architecture.startswith("Qwen4Exp") and recipe.parallel.pp > 1:
            text = f"vLLM runs {model.title} in one pipeline stage only"
            found.append(plan_warning("fatal", text, "parallel.pp = 1", "vLLM 0.32.0 model_executor/models/config.py"))
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
