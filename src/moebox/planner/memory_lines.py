"""The memory arithmetic written out, so that a person can check it with a calculator."""

import math

from moebox.core.box import Box, Gpu
from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.plan import Line, Memory
from moebox.core.recipe import Recipe
from moebox.engines.ggml import memory as llama
from moebox.engines.sglang import memory as sglang
from moebox.engines.vllm import memory as vllm
from moebox.sizing import gpu_list, shards
from moebox.sizing.constants import GRAPHS_COUNTED, constant, counts_graphs, generation_of, visible
from moebox.sizing.kv import kv_type, layer_bytes, token_bytes


def lines(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, memory: Memory) -> tuple[Line, ...]:
    """Every step from the card's size to the tokens of cache, on the first card the recipe uses."""
    used = gpu_list.used_gpus(box, recipe)
    if recipe.engine in ("vllm", "sglang"):
        if not used:
            return ()
        gpu = gpu_list.all_gpus(box)[used[0]]
        write = _vllm if recipe.engine == "vllm" else _sglang
        return tuple(write(gpu, model, checkpoint, recipe))
    return tuple(_llama(model, checkpoint, recipe, memory))


def _bytes(what: str, value: float, formula: str = "", source: str = "") -> Line:
    return Line(what=what, formula=formula, value=value, unit="B", source=source)


def _token(model: Model, recipe: Recipe, value: int) -> Line:
    kind = kv_type(recipe)
    formula = f"{model.layers} layers × {layer_bytes(model, recipe):g} B"
    if model.mla:
        formula += f" ({model.mla.kv_lora} + {model.mla.rope} elements in {kind}, the same on every rank)"
    else:
        formula += f" (keys and values of the rank's heads in {kind})"
    return _bytes("cache a token", value, formula, f"{KV_BYTES[kind]:g} B an element; {model.source}")


def _weights(weights: dict[Component, int], model: Model, checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    """Each component's bytes on the first rank of the first stage."""
    parallel, sizes = recipe.parallel, checkpoint.bytes_by_component
    here = shards.stages(model.layers, parallel.pp)[0]
    part = f" × {here}/{model.layers} layers" if parallel.pp > 1 else ""
    whole = shards.copied_share(model, parallel.tp)
    twice = shards.absorbed(model, parallel.tp, here)
    sliced = f"({whole:.6f} whole + {1 - whole:.6f} / {parallel.tp})" if whole else f"1 / {parallel.tp}"
    hows: dict[Component, str] = {
        "attention": f"{sizes.get('attention', 0):,}{part} × {sliced}"
        + (f" + {twice:,} of kv_b again" if twice else ""),
        "router": f"{sizes.get('router', 0):,}{part}, whole on every rank",
        "norms": f"{sizes.get('norms', 0):,}{part} + {constant('load', 'slack')} GiB of rope tables and rounding",
    }
    if model.moe:
        share = shards.expert_share(model, parallel)
        rows = f" × {here - min(here, model.dense_layers)}/{model.moe_layers} layers" if parallel.pp > 1 else ""
        hows["routed_experts"] = f"{sizes.get('routed_experts', 0):,}{rows} × {share:.6g}"
        if recipe.engine == "sglang" and checkpoint.quant == "nvfp4":
            hows["routed_experts"] += f" × (1 + 1/9 × {constant('load', 'sglang_nvfp4_scale_copies')} scales twice)"
    if recipe.engine == "sglang":
        hows["vision"] = f"{sizes.get('vision', 0):,}, whole on every rank"
    return [
        _bytes(f"- {name}", size, hows.get(name, f"{sizes.get(name, 0):,} / {parallel.tp}"), checkpoint.source)
        for name, size in weights.items()
    ]


def _activations(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    used = model.moe.used if model.moe else 0
    tokens = vllm.step_tokens(gpu, recipe)
    seqs, live = vllm.max_seqs(gpu, recipe), constant("vllm", "live_copies")
    text = f"max({tokens:,} × {model.hidden:,} × 2 × ({used} + {live}), {seqs} × {model.vocab:,} × 16)"
    if model.mla and model.mla.indexer:
        text += " + the indexer's logits"
    if recipe.speculate:
        text += f" + {seqs} × {1 + recipe.speculate.tokens} × {model.vocab:,} × 4 × 3 for guesses"
    return text


def _graphs(recipe: Recipe) -> str:
    if not counts_graphs(recipe):
        return f"{GRAPHS_COUNTED}=0: not taken off"
    guesses = 1 + (recipe.speculate.tokens if recipe.speculate else 0)
    draft = f" + {constant('vllm', 'graph_speculative')} with a draft" if recipe.speculate else ""
    each = f"{constant('vllm', 'graph_per_dcp_token')} × DCP {recipe.parallel.dcp} × {guesses}"
    return f"{constant('vllm', 'graph_base')} + {each}{draft} GiB"


def _workspace(gpu: Gpu, model: Model, recipe: Recipe) -> str:
    if not model.mla or model.mla.indexer or not vllm.triton_mla(gpu, recipe):
        return "not this kernel"
    heads = model.mla.heads // recipe.parallel.tp
    splits = vllm.splits(gpu, recipe)
    seqs, dcp = vllm.max_seqs(gpu, recipe), recipe.parallel.dcp
    return f"{seqs} sequences × {heads} heads × DCP {dcp} × {splits} splits × 513 × 4"


def _vllm(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    needs, generation = vllm.needs_of(gpu, model, checkpoint, recipe, 0), generation_of(recipe)
    utilization = recipe.memory_utilization or constant("vllm", "utilization")
    claim, block = math.floor(utilization * visible(gpu)), constant("vllm", "block")
    left = claim - needs.inside
    rows = [
        _bytes("memory CUDA sees", visible(gpu), f"{gpu.memory:,} - {gpu.memory - visible(gpu):,}", gpu.source),
        _bytes("claimed", claim, f"{utilization} × {visible(gpu):,}", "--gpu-memory-utilization"),
        *_weights(needs.weights, model, checkpoint, recipe),
    ]
    if needs.draft:
        rows.append(_bytes("- draft", needs.draft, "(draft - shared embedding) / TP", "data/memory.toml [draft]"))
    rows += [
        _bytes("- activations", needs.activations, _activations(gpu, model, recipe), "data/memory.toml [vllm]"),
        _bytes("- context and NCCL", needs.non_torch, "constant", generation.source),
        _bytes("- CUDA graphs", needs.graphs, _graphs(recipe), "rtx6kpro wiki kimi-k26 and kimi-k26-v2"),
        _bytes("= KV budget", left, f"{claim:,} - {needs.inside:,}"),
        _token(model, recipe, needs.token),
        Line(
            what="KV tokens",
            formula=f"floor({left:,} / ({needs.token:,} × {block})) × {block} × DCP {recipe.parallel.dcp}",
            value=vllm.tokens_in(left, needs, recipe),
            unit="tokens",
            source="vLLM kv_cache_utils.py",
        ),
        _bytes(
            "Triton MLA workspace",
            vllm.workspace_bytes(gpu, model, recipe),
            _workspace(gpu, model, recipe),
            "vLLM 0.32 triton_mla.py; outside the claim",
        ),
    ]
    return rows


def _sglang(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    needs = sglang.needs_of(model, checkpoint, recipe, 0)
    before, share = sglang.before_loading(gpu), sglang.fraction(gpu, model, recipe)
    left = sglang.kv_budget(gpu, model, recipe, needs)
    return [
        _bytes("free before loading", before, f"{gpu.memory:,} - {gpu.memory - before:,}", "data/memory.toml [sglang]"),
        Line(
            what="mem_fraction_static",
            formula="as given" if recipe.memory_utilization else "SGLang's own choice",
            value=share,
            unit="",
            source="SGLang server_args.py",
        ),
        *_weights(needs.weights, model, checkpoint, recipe),
        _bytes("= KV budget", left, f"{before:,} × {share:.6g} - {needs.loaded:,}"),
        _token(model, recipe, needs.token),
        Line(
            what="KV tokens",
            formula=f"floor({left:,} / {needs.token:,})",
            value=sglang.tokens_on(gpu, model, recipe, needs),
            unit="tokens",
            source="SGLang model_runner.py",
        ),
        _bytes("left to a step", sglang.step_room(gpu, model, recipe), "activations, request table, drafts"),
    ]


def _llama(model: Model, checkpoint: Checkpoint, recipe: Recipe, memory: Memory) -> list[Line]:
    hybrid = llama.placement(recipe)
    rows = [
        _bytes("routed experts a layer", checkpoint.expert_layer_bytes, checkpoint.quant, checkpoint.source),
        _token(model, recipe, token_bytes(model, recipe)),
        Line(what="KV tokens", formula="context × slots", value=memory.kv_tokens, unit="tokens"),
    ]
    for one in memory.devices:
        if not one.weights:
            continue
        rows += [_bytes(f"{one.device}: {name}", size) for name, size in one.weights.items()]
        rows += [
            _bytes(f"{one.device}: cache", one.kv, "its layers' share"),
            _bytes(
                f"{one.device}: compute and staging",
                one.activations,
                f"-ub {hybrid.ubatch}, -amb {hybrid.attention_buffer or 'unset'}; a layer's experts while prefilling",
                "llama-fit-params of llama.cpp b11669; ik_llama.cpp logs of August 2026",
            ),
            _bytes(f"{one.device}: free", one.free, "what is left of it"),
        ]
    return rows
