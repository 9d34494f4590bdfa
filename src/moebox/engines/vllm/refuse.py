"""What vLLM will not run, and why."""

from dataclasses import replace

from moebox.core.box import Box
from moebox.core.deployment import Deployment
from moebox.core.model import Mla
from moebox.core.plan import Caution
from moebox.core.recipe import Recipe
from moebox.core.symptom import in_range
from moebox.engines.common import MLA_FP8, caution, everywhere, major, weights_want_newer_gpus
from moebox.engines.flags import newest
from moebox.engines.vllm.memory import max_seqs, workspace_bytes
from moebox.engines.vllm.traits import TRAITS
from moebox.units import gib

# Decode backends for dense MLA by compute capability's major number (vLLM 0.32 platforms/cuda.py).
# Consumer Blackwell (12) has none of those that want much shared memory.
DENSE_MLA = {
    "8": ("TRITON_MLA",),
    "9": ("FLASHMLA", "FLASH_ATTN_MLA", "TRITON_MLA"),
    "10": ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA", "TOKENSPEED_MLA"),
    "12": ("TRITON_MLA",),
}


def refusals(deployment: Deployment) -> list[Caution]:
    """Known reasons why this will not start, or will disappoint."""
    recipe, box, model = deployment.recipe, deployment.box, deployment.found_model
    found = everywhere(deployment)
    sm, stock = major(box), recipe.runtime.preset != "community"
    version = recipe.engine_version or newest(TRAITS.name)
    # Dense latent attention: models with an indexer (DSA) decode with other kernels, whose cache is fp8 by nature.
    mla = isinstance(model.attention, Mla) and model.attention.indexer is None if model else False
    backend = str(recipe.flags.get("attention-backend", "")).upper()
    if mla and sm == "12" and recipe.kv == "fp8" and stock and in_range(version, ">=0.24,<=0.32.99"):
        found.append(
            caution(
                "fatal",
                "TRITON_MLA with an fp8 cache needs 102,400 bytes of shared memory in its two-stage decode tile, "
                "and SM120 has 101,376: it does not start",
                'kv = "bf16", or runtime.preset = "community", or patch vLLM: '
                "`moebox doctor kernels --engine vllm --kv fp8 --fix --apply`",
                "https://github.com/vllm-project/vllm/issues/53748; compiled again for 0.32.0 in November 2026",
                symptom=MLA_FP8,
            )
        )
    if mla and backend and sm in DENSE_MLA and backend not in DENSE_MLA[sm]:
        usable = " or ".join(DENSE_MLA[sm])
        found.append(caution("fatal", f"{backend} has no kernel for SM {sm}.x; dense MLA decodes with {usable} there"))
    found += _workspace(deployment) if mla and (sm in ("8", "12") or backend == "TRITON_MLA") else []
    if recipe.parallel.dcp > 1 and recipe.speculate and stock:
        found.append(
            caution(
                "warning",
                "speculative decoding under DCP takes the prefill path: acceptance collapses past the first token",
                "parallel.dcp = 1, or speculate.tokens = 1",
                "https://github.com/vllm-project/vllm/issues/50391",
            )
        )
    return found + weights_want_newer_gpus(deployment) + _pcie(recipe, box, stock=stock)


def _workspace(deployment: Deployment) -> list[Caution]:
    """TRITON_MLA's decode workspace, which the engine does not plan for."""
    recipe, model, box = deployment.recipe, deployment.found_model, deployment.box
    gpu = box.gpu if box else None
    if gpu is None or model is None or recipe.max_seqs is not None:
        return []
    size = workspace_bytes(gpu, model, replace(recipe, context=recipe.context or model.context))
    if size < 2**30:
        return []
    seqs = max_seqs(gpu, recipe)
    text = f"without max_seqs, TRITON_MLA sets {gib(size)} a GPU aside for {seqs:,} sequences, after memory was planned"
    return [caution("warning", text, "max_seqs = 64", "vLLM 0.32.0 triton_mla.py")]


def _pcie(recipe: Recipe, box: Box | None, *, stock: bool) -> list[Caution]:
    gpu = box.gpu if box else None
    if gpu is None or gpu.nvlink or recipe.parallel.tp <= 2 or not stock:
        return []
    text = "custom all-reduce is off above two PCIe GPUs: NCCL carries every layer"
    return [caution("note", text, "env.VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC = 1 to try", "vLLM custom_all_reduce.py")]
