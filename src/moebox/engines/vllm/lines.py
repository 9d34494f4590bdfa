"""vLLM's memory arithmetic, written out."""

import math
from dataclasses import replace

from moebox.core.box import Gpu
from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Line, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import first_gpu, fullest
from moebox.engines.lines import in_bytes, norms_formula, of_stage, token_line, weight_lines
from moebox.engines.vllm import memory as rules
from moebox.sizing.constants import GRAPHS_COUNTED, constant, counts_graphs, generation_of, visible
from moebox.units import gib


def lines(deployment: Deployment, memory: Memory) -> tuple[Line, ...]:
    """Every step from the GPU's size to the tokens of cache, on the GPU that holds the fewest."""
    _, model, checkpoint, recipe = deployment.facts
    deciding = fullest(deployment, rules.Ranks(deployment))
    if deciding is None:
        return ()
    gpu, stage = deciding
    needs, generation = rules.needs_of(gpu, model, checkpoint, recipe, stage), generation_of(recipe)
    utilization = recipe.memory_utilization or constant("vllm", "utilization")
    claim, block = math.floor(utilization * visible(gpu)), constant("vllm", "block")
    left = claim - needs.inside
    rows = [
        in_bytes("memory CUDA sees", visible(gpu), f"{gpu.memory:,} - {gpu.memory - visible(gpu):,}", gpu.source),
        in_bytes("claimed", claim, f"{utilization} × {visible(gpu):,}", "--gpu-memory-utilization"),
        *weight_lines(needs.weights, model, checkpoint, recipe, stage, **_norms(checkpoint, recipe)),
    ]
    if needs.draft:
        rows.append(in_bytes("- draft", needs.draft, "(draft - shared embedding) / TP", "data/memory.toml [draft]"))
    rows += [
        in_bytes("- activations", needs.activations, _activations(gpu, model, recipe), "data/memory.toml [vllm]"),
        in_bytes("- context and NCCL", needs.non_torch, "constant", "" if rules.alone(recipe) else generation.source),
        in_bytes("- CUDA graphs", needs.graphs, _graphs(model, recipe), "data/memory.toml [vllm]"),
        in_bytes("= KV budget", left, f"{claim:,} - {needs.inside:,}"),
        token_line(model, recipe, needs.token, stage),
        Line(
            what="KV tokens",
            formula=f"floor({left:,} / ({needs.token:,} × {block})) × {block} × DCP {recipe.parallel.dcp}"
            + of_stage(recipe, stage),
            value=rules.tokens_in(left, needs, recipe),
            unit="tokens",
            source="vLLM kv_cache_utils.py",
        ),
        in_bytes(
            "Triton MLA workspace",
            rules.workspace_bytes(gpu, model, recipe),
            _workspace(gpu, model, recipe),
            "vLLM 0.32 triton_mla.py; outside the claim",
        ),
    ]
    return tuple(rows)


def _norms(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, str]:
    """The norms' own formula where one GPU works alone."""
    return {"norms": norms_formula(checkpoint, rules.slack_gib(recipe))} if rules.alone(recipe) else {}


def _activations(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    used = model.experts_used
    tokens = rules.step_tokens(gpu, recipe)
    seqs, live = rules.max_seqs(gpu, recipe), constant("load", "live_copies")
    each = f"{model.hidden:,} × ({used} + {live})"
    if model.mla:
        heads = model.mla.heads / recipe.parallel.tp
        each = f"({model.hidden:,} × ({used} + {constant('vllm', 'latent_copies')})"
        each += f" + {heads:g} heads × {constant('vllm', 'latent_head_elements'):,})"
    text = f"max({tokens:,} × 2 × {each}, {seqs} × {model.vocab:,} × 16)"
    if model.mla and model.mla.indexer:
        text += " + the indexer's logits"
    if recipe.speculate:
        text += f" + {seqs} × {1 + recipe.speculate.tokens} × {model.vocab:,} × 4 × 3 for draft tokens"
    return text


def _graphs(model: Model, recipe: Recipe) -> str:
    if not counts_graphs(recipe):
        return f"{GRAPHS_COUNTED}=0: not taken off"
    if rules.alone(recipe) and not recipe.speculate:
        layers = f"{constant('vllm', 'alone_graph_layer')} × {model.layers} layers"
        return f"{constant('vllm', 'alone_graph_base')} + {layers} GiB"
    tokens_a_step = 1 + recipe.draft_tokens
    draft = f" + {constant('vllm', 'graph_speculative')} with a draft" if recipe.speculate else ""
    each = f"{constant('vllm', 'graph_per_dcp_token')} × DCP {recipe.parallel.dcp} × {tokens_a_step}"
    return f"{constant('vllm', 'graph_base')} + {each}{draft} GiB"


def _workspace(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    if not model.mla or model.mla.indexer or not rules.triton_mla(gpu, recipe):
        return "not this kernel"
    heads = model.mla.heads // recipe.parallel.tp
    splits = rules.splits(gpu, recipe)
    seqs, dcp = rules.max_seqs(gpu, recipe), recipe.parallel.dcp
    return f"{seqs} sequences × {heads} heads × DCP {dcp} × {splits} splits × 513 × 4"


def reasons(deployment: Deployment, memory: Memory) -> list[str]:
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
        f"max_seqs {recipe.max_seqs}: Triton MLA's workspace is {gib(size)} a GPU; "
        f"at vLLM's default of 1,024 sequences it would be {gib(default)}, after memory was planned"
    ]
