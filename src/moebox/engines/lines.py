"""Lines of memory arithmetic that several engines write out, so that a person can check them with a calculator."""

from moebox.core.model import KV_BYTES, Checkpoint, Component, Model
from moebox.core.plan import Line
from moebox.core.recipe import Recipe
from moebox.sizing import shards
from moebox.sizing.constants import constant
from moebox.sizing.kv import kv_type, layer_bytes


def in_bytes(what: str, value: float, formula: str = "", source: str = "") -> Line:
    """A line whose value is in bytes."""
    return Line(what=what, formula=formula, value=value, unit="B", source=source)


def token_line(model: Model, recipe: Recipe, value: int) -> Line:
    """What one token of cache costs."""
    kind = kv_type(recipe)
    formula = f"{model.layers} layers × {layer_bytes(model, recipe):g} B"
    if model.mla:
        formula += f" ({model.mla.kv_lora} + {model.mla.rope} elements in {kind}, the same on every rank)"
    else:
        formula += f" (keys and values of the rank's heads in {kind})"
    return in_bytes("cache a token", value, formula, f"{KV_BYTES[kind]:g} B an element; {model.source}")


def weight_lines(
    weights: dict[Component, int], model: Model, checkpoint: Checkpoint, recipe: Recipe, **hows: str
) -> list[Line]:
    """Each component's bytes on the first rank of the first stage; `hows` are an engine's own formulas."""
    usual = _formulas(model, checkpoint, recipe) | hows
    sizes = checkpoint.bytes_by_component
    return [
        in_bytes(
            f"- {name}", size, usual.get(name, f"{sizes.get(name, 0):,} / {recipe.parallel.tp}"), checkpoint.source
        )
        for name, size in weights.items()
    ]


def _formulas(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> dict[str, str]:
    parallel, sizes = recipe.parallel, checkpoint.bytes_by_component
    here = shards.stages(model.layers, parallel.pp)[0]
    part = f" × {here}/{model.layers} layers" if parallel.pp > 1 else ""
    whole = shards.copied_share(model, parallel.tp)
    twice = shards.absorbed(model, parallel.tp, here)
    sliced = f"({whole:.6f} whole + {1 - whole:.6f} / {parallel.tp})" if whole else f"1 / {parallel.tp}"
    again = f" + {twice:,} of kv_b again" if twice else ""
    hows = {
        "attention": f"{sizes.get('attention', 0):,}{part} × {sliced}{again}",
        "router": f"{sizes.get('router', 0):,}{part}, whole on every rank",
        "norms": norms_formula(checkpoint, constant("load", "slack"), part),
    }
    if model.moe:
        hows["routed_experts"] = expert_formula(model, checkpoint, recipe)
    return hows


def norms_formula(checkpoint: Checkpoint, slack_gib: float, part: str = "") -> str:
    """The norms' bytes, and what weights take beyond all tensors."""
    slack = f" + {slack_gib} GiB of rope tables and rounding" if slack_gib else ""
    return f"{checkpoint.bytes_by_component.get('norms', 0):,}{part}{slack}"


def expert_formula(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> str:
    """How the routed experts' bytes on one rank come about."""
    parallel = recipe.parallel
    here = shards.stages(model.layers, parallel.pp)[0]
    rows = f" × {here - min(here, model.dense_layers)}/{model.moe_layers} layers" if parallel.pp > 1 else ""
    size = checkpoint.bytes_by_component.get("routed_experts", 0)
    return f"{size:,}{rows} × {shards.expert_share(model, parallel):.6g}"
