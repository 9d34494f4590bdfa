"""Lines of memory arithmetic that several engines write out, so that a person can check them with a calculator."""

from collections.abc import Mapping

from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.plan import ArithmeticLine
from moebox.core.recipe import Parallel, Recipe
from moebox.sizing import shards
from moebox.sizing.constants import memory_constant
from moebox.sizing.kv import index_bytes, keeps_all_heads, kv_type, token_bytes


def bytes_line(what: str, value: float, formula: str = "", source: str = "") -> ArithmeticLine:
    """A line whose value is in bytes."""
    return ArithmeticLine(what=what, formula=formula, value=value, unit="B", source=source)


def stage_note(recipe: Recipe, stage: int) -> str:
    """Which stage the arithmetic is of, where there are several."""
    return f"; stage {stage + 1} of {recipe.parallel.pp} holds the fewest" if recipe.parallel.pp > 1 else ""


def token_line(model: Model, recipe: Recipe, value: int, stage: int = 0) -> ArithmeticLine:
    """What one token of cache costs in a stage."""
    kind, mean = kv_type(recipe), "" if len(model.stack) == 1 else ", mean of all layers"
    each = token_bytes(model, recipe) / model.layers
    formula = f"{shards.stage_layers(model.layers, recipe.parallel.pp)[stage]} layers × {each:g} B"
    if model.mla and keeps_all_heads(model.mla, recipe):
        formula += f" ({model.mla.heads_width} elements in {kind}: keys and values of every head{mean})"
    elif model.mla:
        index = f", {index_bytes(model.mla):g} B of selector keys" if model.mla.indexer else ""
        formula += f" ({model.mla.kv_lora} + {model.mla.rope} elements in {kind}{index}, the same on every rank{mean})"
    else:
        formula += f" (keys and values of the rank's heads in {kind}{mean})"
    return bytes_line("cache a token", value, formula, f"{KV_BYTES[kind]:g} B an element; {model.source}")


def weight_lines(
    weights: dict[Component, int], model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int, **hows: str
) -> list[ArithmeticLine]:
    """Each component's bytes on a rank of one stage; `hows` are an engine's own formulas."""
    usual = _formulas(model, checkpoint, recipe, stage) | hows
    sizes = checkpoint.bytes_by_component
    return [
        bytes_line(
            f"- {name}", size, usual.get(name, f"{sizes.get(name, 0):,} / {recipe.parallel.tp}"), checkpoint.source
        )
        for name, size in weights.items()
    ]


def _formulas(model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> dict[str, str]:
    parallel, sizes = recipe.parallel, checkpoint.bytes_by_component
    dense, with_experts = shards.layers_in_stage(model, parallel.pp, stage)
    here = dense + with_experts
    part = _of_layers(here, model.layers)
    whole = shards.replicated_share(model, parallel.tp)
    twice = shards.absorbed_kv_bytes(model, parallel.tp, here)
    sliced = f"({whole:.6f} whole + {1 - whole:.6f} / {parallel.tp})" if whole else f"1 / {parallel.tp}"
    again = f" + {twice:,} of kv_b again" if twice else ""
    hows = {
        "attention": f"{sizes.get('attention', 0):,}{part} × {sliced}{again}",
        "router": f"{sizes.get('router', 0):,}{part}, whole on every rank",
        "norms": norms_formula(checkpoint, memory_constant("load", "slack"), part),
        "dense_ffn": _sliced(sizes, "dense_ffn", parallel, _of_layers(dense, model.layers - model.moe_layers)),
    }
    if model.moe:
        hows["routed_experts"] = expert_formula(model, checkpoint, recipe, stage)
        hows["shared_experts"] = _sliced(sizes, "shared_experts", parallel, _of_layers(with_experts, model.moe_layers))
    return hows


def _sliced(sizes: Mapping[Component, int], name: Component, parallel: Parallel, part: str) -> str:
    return f"{sizes.get(name, 0):,}{part} / {parallel.tp}"


def _of_layers(here: int, every: int) -> str:
    """The part of a component that lies in a stage; "" where that is all of it."""
    return f" × {here}/{every} layers" if here < every else ""


def norms_formula(checkpoint: Checkpoint, slack_gib: float, part: str = "") -> str:
    """The norms' bytes, and what weights take beyond all tensors."""
    slack = f" + {slack_gib} GiB of rope tables and rounding" if slack_gib else ""
    return f"{checkpoint.bytes_by_component.get('norms', 0):,}{part}{slack}"


def expert_formula(model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> str:
    """How the routed experts' bytes on one rank come about."""
    parallel = recipe.parallel
    _, with_experts = shards.layers_in_stage(model, parallel.pp, stage)
    rows = _of_layers(with_experts, model.moe_layers)
    size = checkpoint.bytes_by_component.get("routed_experts", 0)
    return f"{size:,}{rows} × {shards.expert_share(model, parallel):.6g}"
