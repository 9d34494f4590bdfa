"""What vLLM will not run, and why."""

from moebox.core.deployment import Deployment
from moebox.core.model import Mla
from moebox.core.plan import PlanWarning
from moebox.core.symptom import version_in_range
from moebox.engines.common import (
    MLA_FP8,
    common_refusals,
    fp8_cache_required,
    plan_warning,
    sm_majors,
    weight_format_refusals,
)
from moebox.engines.flags import newest_version
from moebox.engines.vllm.memory import max_seqs, workspace_bytes
from moebox.engines.vllm.traits import TRAITS
from moebox.units import format_gib

# Decode backends for dense MLA by compute capability's major number (vLLM 0.32 platforms/cuda.py).
# Consumer Blackwell (12) has none of those that want much shared memory.
TRITON = "TRITON_MLA"
DENSE_MLA = {
    "8": (TRITON,),
    "9": ("FLASHMLA", "FLASH_ATTN_MLA", TRITON),
    "10": ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", TRITON, "TOKENSPEED_MLA"),
    "12": (TRITON,),
}

# DeepSeek V4's own backends. FLASHMLA_SPARSE_DSV4 (the default but on SM12x), SM12x's and AMD's hold packed fp8 and
# assert it, for "auto" too; only this one, asked for by name on SM10x, has rows of bf16 (vLLM 0.28 models/deepseek_v4:
# attention.py _resolve_dsv4_kv_cache_dtype, nvidia/model.py _select_dsv4_attn_cls; pull requests 54233 and 55134).
PLAIN_ROWS = "FLASHINFER_MLA_SPARSE_DSV4"
COMPRESSED = "https://github.com/vllm-project/vllm/issues/47174; https://github.com/vllm-project/vllm/pull/55134"


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """Known reasons why this will not start, or will disappoint."""
    found = common_refusals(deployment)
    if _dense_mla(deployment):
        found += _fp8_on_consumer_blackwell(deployment) + _backend(deployment) + _workspace(deployment)
    found += _compressed(deployment)
    return [*found, *_drafts_under_dcp(deployment), *weight_format_refusals(deployment), *_pcie(deployment)]


def _dense_mla(deployment: Deployment) -> bool:
    """Latent attention without an indexer: with one (DSA) other kernels decode, whose cache is fp8 by nature."""
    model = deployment.known_model
    return model is not None and isinstance(model.attention, Mla) and model.attention.indexer is None


def _stock(deployment: Deployment) -> bool:
    """Whether it is vLLM as released, without the community's patches."""
    return deployment.recipe.runtime.preset != "community"


def _asked_backend(deployment: Deployment) -> str:
    """The attention backend that the recipe asks for; "" where vLLM chooses."""
    return str(deployment.recipe.flags.get("attention-backend", "")).upper()


def _fp8_on_consumer_blackwell(deployment: Deployment) -> list[PlanWarning]:
    recipe = deployment.recipe
    version = recipe.engine_version or newest_version(TRAITS.name)
    fp8_there = "12" in sm_majors(deployment) and recipe.kv == "fp8"
    if not fp8_there or not _stock(deployment) or not version_in_range(version, ">=0.24,<=0.32.99"):
        return []
    return [
        plan_warning(
            "fatal",
            "TRITON_MLA with an fp8 cache needs 102,400 bytes of shared memory in its two-stage decode tile, "
            "and SM120 has 101,376: it does not start",
            'kv = "bf16", or runtime.preset = "community", or patch vLLM: '
            "`moebox doctor kernels --engine vllm --kv fp8 --fix --apply`",
            "https://github.com/vllm-project/vllm/issues/53748; compiled again for 0.32.0 in November 2026",
            symptom=MLA_FP8,
        )
    ]


def _compressed(deployment: Deployment) -> list[PlanWarning]:
    model = deployment.known_model
    if model is None or not model.has_compressed_cache or deployment.recipe.kv == "fp8":
        return []
    plain_rows = sm_majors(deployment) == {"10"} and _asked_backend(deployment) == PLAIN_ROWS
    return [] if plain_rows else [fp8_cache_required(COMPRESSED)]


def _backend(deployment: Deployment) -> list[PlanWarning]:
    backend = _asked_backend(deployment)
    without = [sm for sm in sm_majors(deployment) & DENSE_MLA.keys() if backend and backend not in DENSE_MLA[sm]]
    text = "{} has no kernel for SM {}.x; dense MLA decodes with {} there"
    return [plan_warning("fatal", text.format(backend, sm, " or ".join(DENSE_MLA[sm]))) for sm in sorted(without)]


def _drafts_under_dcp(deployment: Deployment) -> list[PlanWarning]:
    recipe = deployment.recipe
    if recipe.parallel.dcp == 1 or recipe.speculate is None or not _stock(deployment):
        return []
    return [
        plan_warning(
            "warning",
            "speculative decoding under DCP takes the prefill path: acceptance collapses past the first token",
            "parallel.dcp = 1, or speculate.tokens = 1",
            "https://github.com/vllm-project/vllm/issues/50391",
        )
    ]


def _workspace(deployment: Deployment) -> list[PlanWarning]:
    """TRITON_MLA's decode workspace, which the engine does not plan for."""
    recipe, model, gpu = deployment.recipe, deployment.known_model, deployment.smallest_gpu
    on_triton = sm_majors(deployment) & {"8", "12"} or _asked_backend(deployment) == TRITON
    if gpu is None or model is None or recipe.max_seqs is not None or not on_triton:
        return []
    size = workspace_bytes(gpu, model, recipe)
    if size < 2**30:
        return []
    seqs = max_seqs(gpu, recipe)
    text = (
        f"without max_seqs, TRITON_MLA sets {format_gib(size)} a GPU aside for {seqs:,} sequences, "
        "after memory was planned"
    )
    return [plan_warning("warning", text, "max_seqs = 64", "vLLM 0.32.0 triton_mla.py")]


def _pcie(deployment: Deployment) -> list[PlanWarning]:
    gpu = deployment.smallest_gpu
    if gpu is None or gpu.nvlink or deployment.recipe.parallel.tp <= 2 or not _stock(deployment):
        return []
    text = "custom all-reduce is off above two PCIe GPUs: NCCL carries every layer"
    return [
        plan_warning(
            "note", text, 'env.VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC = "1" to try', "vLLM custom_all_reduce.py"
        )
    ]
