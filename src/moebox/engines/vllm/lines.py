"""vLLM's memory arithmetic, written out."""

import math
from dataclasses import replace

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import ArithmeticLine, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import first_gpu, fullest_gpu
from moebox.engines.lines import bytes_line, norms_formula, stage_note, token_line, weight_lines
from moebox.engines.vllm import memory as rules
from moebox.sizing.constants import (
    GRAPH_ESTIMATE_ENV,
    memory_constant,
    reserves_graph_memory,
    visible_bytes,
    vllm_build,
)
from moebox.units import format_gib


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every step from the GPU's size to the tokens of cache, on the GPU that holds the fewest."""
    _, model, checkpoint, recipe = deployment.facts
    deciding = fullest_gpu(deployment, rules.VllmRanks(deployment))
    if deciding is None:
        return ()
    gpu, stage = deciding
    needs, generation = rules.rank_needs(gpu, model, checkpoint, recipe, stage), vllm_build(recipe)
    utilization = recipe.memory_utilization or memory_constant("vllm", "utilization")
    claim, block = math.floor(utilization * visible_bytes(gpu)), memory_constant("vllm", "block")
    left = claim - needs.inside_bytes
    rows = [
        bytes_line(
            "memory CUDA sees", visible_bytes(gpu), f"{gpu.memory:,} - {gpu.memory - visible_bytes(gpu):,}", gpu.source
        ),
        bytes_line("claimed", claim, f"{utilization} × {visible_bytes(gpu):,}", "--gpu-memory-utilization"),
        *weight_lines(needs.weights, model, checkpoint, recipe, stage, **_norms(checkpoint, recipe)),
    ]
    if needs.draft:
        rows.append(bytes_line("- draft", needs.draft, "(draft - shared embedding) / TP", "data/memory.toml [draft]"))
    rows += [
        bytes_line("- activations", needs.activations, _activations(gpu, model, recipe), "data/memory.toml [vllm]"),
        bytes_line(
            "- context and NCCL", needs.non_torch, "constant", "" if rules.is_single_gpu(recipe) else generation.source
        ),
        bytes_line("- CUDA graphs", needs.graphs, _graphs(model, recipe), "data/memory.toml [vllm]"),
        bytes_line("= KV budget", left, f"{claim:,} - {needs.inside_bytes:,}"),
        token_line(model, recipe, needs.token, stage),
        ArithmeticLine(
            what="KV tokens",
            formula=f"floor({left:,} / ({needs.token:,} × {block})) × {block} × DCP {recipe.parallel.dcp}"
            + stage_note(recipe, stage),
            value=rules.tokens_in_bytes(left, needs, recipe),
            unit="tokens",
            source="vLLM kv_cache_utils.py",
        ),
        bytes_line(
            "Triton MLA workspace",
            rules.workspace_bytes(gpu, model, recipe),
            _workspace(gpu, model, recipe),
            "vLLM 0.32 triton_mla.py; outside the claim",
        ),
    ]
    return tuple(rows)


def _norms(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, str]:
    """The norms' own formula where one GPU works alone."""
    return {"norms": norms_formula(checkpoint, rules.slack_gib(recipe))} if rules.is_single_gpu(recipe) else {}


def _activations(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    used = model.experts_used
    tokens = rules.step_tokens(gpu, recipe)
    seqs, live = rules.max_seqs(gpu, recipe), memory_constant("load", "live_copies")
    each = f"{model.hidden:,} × ({used} + {live})"
    if model.mla:
        heads = model.mla.heads / recipe.parallel.tp
        each = f"({model.hidden:,} × ({used} + {memory_constant('vllm', 'latent_copies')})"
        each += f" + {heads:g} heads × {memory_constant('vllm', 'latent_head_elements'):,})"
    text = f"max({tokens:,} × 2 × {each}, {seqs} × {model.vocab:,} × 16)"
    if model.mla and model.mla.indexer:
        text += " + the indexer's logits"
    if recipe.speculate:
        text += f" + {seqs} × {1 + recipe.speculate.tokens} × {model.vocab:,} × 4 × 3 for draft tokens"
    return text


def _graphs(model: Model, recipe: Recipe) -> str:
    if not reserves_graph_memory(recipe):
        return f"{GRAPH_ESTIMATE_ENV}=0: not taken off"
    if rules.is_single_gpu(recipe) and not recipe.speculate:
        layers = f"{memory_constant('vllm', 'alone_graph_layer')} × {model.layers} layers"
        return f"{memory_constant('vllm', 'alone_graph_base')} + {layers} GiB"
    tokens_a_step = 1 + recipe.draft_tokens
    draft = f" + {memory_constant('vllm', 'graph_speculative')} with a draft" if recipe.speculate else ""
    each = f"{memory_constant('vllm', 'graph_per_dcp_token')} × DCP {recipe.parallel.dcp} × {tokens_a_step}"
    return f"{memory_constant('vllm', 'graph_base')} + {each}{draft} GiB"


def _workspace(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    if not model.mla or model.mla.indexer or not rules.uses_triton_mla(gpu, recipe):
        return "not this kernel"
    heads = model.mla.heads // recipe.parallel.tp
    splits = rules.mla_splits(gpu, recipe)
    seqs, dcp = rules.max_seqs(gpu, recipe), recipe.parallel.dcp
    return f"{seqs} sequences × {heads} heads × DCP {dcp} × {splits} splits × 513 × 4"


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Why settings that are vLLM's alone are as they are."""
    box, model, _, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    if gpu is None:
        return []
    size = rules.workspace_bytes(gpu, model, recipe)
    if not size:
        return []
    default = rules.workspace_bytes(gpu, model, replace(recipe, max_seqs=None))
    if default <= size:  # as many were asked for
        return []
    return [
        f"max_seqs {recipe.max_seqs}: Triton MLA's workspace is {format_gib(size)} a GPU; "
        f"at vLLM's default of 1,024 sequences it would be {format_gib(default)}, after memory was planned"
    ]
