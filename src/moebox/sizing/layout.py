"""Whether a layout (tp, pp, dp, ep, dcp, nodes) is possible for a model, a checkpoint and an engine.

The only rule of what can be divided: plans, recipes, forecasts and rendered files all ask it.
"""

from dataclasses import dataclass

from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.recipe import Parallel
from moebox.core.traits import Traits

SIZES = ("tp", "pp", "dcp", "dp", "nodes")
# Quantisation groups along an expert's width that a rank must hold whole: with a part of a group vLLM and SGLang end
# while loading (vllm#17569: Qwen3-235B fp8 at TP8). mxfp4 kernels pad instead (vLLM mxfp4.py).
# Groups of 128 in int4: vllm#30210 (GLM-4.6 AWQ with TP8).
QUANT_GROUP = {"int4-g32": 32, "int4-g128": 128, "nvfp4": 16, "nvfp4-a16": 16, "fp8-block": 128}


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """Why a layout is impossible: the setting of [parallel] to change, the reason, and what to do."""

    setting: str
    reason: str
    hint: str = ""


def layout_problem(deployment: Deployment) -> LayoutProblem | None:
    """Return why the deployment's layout is impossible, or None; without a known model only the engine decides."""
    parallel = deployment.recipe.parallel
    return unsupported_layout(deployment.engine, parallel) or indivisible_layout(
        parallel, deployment.known_model, deployment.known_checkpoint
    )


def unsupported_layout(engine: Traits, parallel: Parallel) -> LayoutProblem | None:
    """Return the first way to divide a model that the engine does not have, or None."""
    used = [name for name in SIZES if getattr(parallel, name) > 1]
    for name in used:
        if name in engine.shards:
            continue
        if engine.uses_all_gpus:
            reason = f"{engine.title} distributes layers over the GPUs by itself"
            return LayoutProblem(name, reason, "leave [parallel] out")
        return LayoutProblem(name, f"{engine.title} does not divide a model that way", "leave it at 1")
    if parallel.ep and "ep" not in engine.shards:
        return LayoutProblem("ep", f"{engine.title} does not place whole experts", "leave it out")
    if parallel.gpu_count % parallel.nodes and not engine.uses_all_gpus:
        return LayoutProblem("nodes", f"{parallel.gpu_count} GPUs are not divisible by {parallel.nodes} nodes")
    return None


def indivisible_layout(
    parallel: Parallel, model: Model | None, checkpoint: Checkpoint | None = None
) -> LayoutProblem | None:
    """Return why the model's heads, layers, experts or cache cannot be divided this way, or None."""
    if model is None:
        return None
    tp, dcp, ranks = parallel.tp, parallel.dcp, parallel.tp * parallel.dp
    heads, gqa, moe = model.attention.heads, model.gqa, model.moe
    group = QUANT_GROUP.get(checkpoint.quant, 1) if checkpoint else 1
    if heads % tp:
        reason = f"the {heads} attention heads of {model.title} are not divisible by TP{tp}"
        return LayoutProblem("tp", reason, "parallel.tp = 1, 2, 4 or 8")
    if gqa and gqa.kv_heads % tp and tp % gqa.kv_heads:
        return LayoutProblem("tp", f"neither of {gqa.kv_heads} KV heads and TP{tp} is divisible by the other")
    if parallel.pp > model.layers:
        return LayoutProblem("pp", f"{model.layers} layers are not enough for {parallel.pp} stages")
    if moe and parallel.ep and moe.experts % ranks:
        return LayoutProblem("ep", f"{moe.experts} experts are not divisible by {ranks} ranks")
    if moe and not parallel.ep and moe.intermediate % (ranks * group):
        layout = f"TP{tp}" if parallel.dp == 1 else f"TP{tp}×DP{parallel.dp}"
        of_quant = f" in {checkpoint.quant} groups of {group}" if checkpoint and group > 1 else ""
        reason = f"an expert's width of {moe.intermediate} is not divisible by {layout}{of_quant}"
        whole = ranks > 1 and moe.experts % ranks == 0
        return LayoutProblem("tp", reason, "parallel.ep = true places whole experts" if whole else "")
    if tp % dcp:
        return LayoutProblem("dcp", f"TP{tp} is not divisible by DCP{dcp}")
    copies = tp if model.attention.shared_cache else tp // min(tp, gqa.kv_heads if gqa else tp)
    if dcp > copies:
        return LayoutProblem("dcp", f"DCP{dcp} needs {dcp} copies of the cache; TP{tp} holds {copies}")
    return None
