"""The memory arithmetic written out, so that a person can check it with a calculator."""

import math

from moebox.core.box import Box, Gpu
from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.plan import Line, Memory
from moebox.core.recipe import Recipe
from moebox.planner.memory import cards, llama, sglang, vllm
from moebox.planner.memory.constants import constant, generation_of, visible
from moebox.planner.memory.kv import kv_type, layer_bytes, token_bytes


def lines(box: Box, model: Model, checkpoint: Checkpoint, recipe: Recipe, memory: Memory) -> tuple[Line, ...]:
    """Every step from the card's size to the tokens of cache, on the first card the recipe uses."""
    used = cards.used_cards(box, recipe)
    if recipe.engine in ("vllm", "sglang"):
        if not used:
            return ()
        gpu = cards.all_cards(box)[used[0]]
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


def _weights(weights: dict[Component, int], checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    tp = recipe.parallel.tp
    stage = f", one of {recipe.parallel.pp} stages" if recipe.parallel.pp > 1 else ""
    cuts: dict[Component, str] = {
        "attention": f"q_a and kv_a whole, the rest / {tp}, kv_b twice",
        "router": "whole on every rank",
        "norms": "whole, with rope tables and rounding",
        "vision": "whole on every rank" if recipe.engine == "sglang" else f"/ {tp}",
    }
    if recipe.parallel.ep:
        cuts["routed_experts"] = f"whole experts over {tp * recipe.parallel.dp} ranks"
    return [
        _bytes(f"- {name}", size, cuts.get(name, f"/ {tp}") + stage, checkpoint.source)
        for name, size in weights.items()
    ]


def _vllm(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    needs, generation = vllm.needs_of(gpu, model, checkpoint, recipe, 0), generation_of(recipe)
    utilization = recipe.memory_utilization or constant("vllm", "utilization")
    claim, block = math.floor(utilization * visible(gpu)), constant("vllm", "block")
    left = claim - needs.inside
    step = "max(step tokens × hidden × 2 × (experts used + 4), sequences × vocabulary × 16)"
    rows = [
        _bytes("memory CUDA sees", visible(gpu), f"{gpu.memory:,} - the driver's part", gpu.source),
        _bytes("claimed", claim, f"{utilization} × visible", "--gpu-memory-utilization"),
        *_weights(needs.weights, checkpoint, recipe),
    ]
    if needs.draft:
        rows.append(_bytes("- draft", needs.draft, "(draft - shared embedding) / TP", "data/memory.toml [draft]"))
    rows += [
        _bytes("- activations", needs.activations, step, "data/memory.toml [vllm]"),
        _bytes("- context and NCCL", needs.non_torch, "constant", generation.source),
        _bytes("- CUDA graphs", needs.graphs, "estimated" if needs.graphs else "not taken off", generation.source),
        _bytes("= KV budget", left),
        _token(model, recipe, needs.token),
        Line(
            what="KV tokens",
            formula=f"floor(budget / (token × {block})) × {block} × DCP {recipe.parallel.dcp}",
            value=vllm.tokens_in(left, needs, recipe),
            unit="tokens",
            source="vLLM kv_cache_utils.py",
        ),
        _bytes(
            "Triton MLA workspace",
            vllm.workspace_bytes(gpu, model, recipe),
            "sequences × heads / TP × DCP × splits × 513 × 4, outside the claim",
            "vLLM 0.32 triton_mla.py",
        ),
    ]
    return rows


def _sglang(gpu: Gpu, model: Model, checkpoint: Checkpoint, recipe: Recipe) -> list[Line]:
    needs = sglang.needs_of(model, checkpoint, recipe, 0)
    before = sglang.before_loading(gpu)
    return [
        _bytes("free before loading", before, f"{gpu.memory:,} - driver - context", "data/memory.toml [sglang]"),
        Line(
            what="mem_fraction_static",
            formula="as given" if recipe.memory_utilization else "SGLang's own choice",
            value=sglang.fraction(gpu, model, recipe),
            unit="",
            source="SGLang server_args.py",
        ),
        *_weights(needs.weights, checkpoint, recipe),
        _bytes("= KV budget", sglang.kv_budget(gpu, model, recipe, needs), "free × fraction - weights"),
        _token(model, recipe, needs.token),
        Line(
            what="KV tokens",
            formula="floor(budget / token)",
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
