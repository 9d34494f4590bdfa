"""SGLang's memory arithmetic, written out."""

from dataclasses import replace

from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import Line, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import first_gpu
from moebox.engines.lines import expert_formula, in_bytes, token_line, weight_lines
from moebox.engines.sglang import memory as rules
from moebox.sizing.constants import constant
from moebox.units import count


def lines(deployment: Deployment, memory: Memory) -> tuple[Line, ...]:
    """Every step from the GPU's size to the tokens of cache, on the first GPU the recipe uses."""
    box, model, checkpoint, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    if gpu is None:
        return ()
    needs = rules.needs_of(model, checkpoint, recipe, 0)
    before, share = rules.before_loading(gpu), rules.fraction(gpu, model, recipe)
    left = rules.kv_budget(gpu, model, recipe, needs)
    rows = [
        in_bytes(
            "free before loading", before, f"{gpu.memory:,} - {gpu.memory - before:,}", "data/memory.toml [sglang]"
        ),
        Line(
            what="mem_fraction_static",
            formula="as given" if recipe.memory_utilization else "SGLang's own choice",
            value=share,
            unit="",
            source="SGLang server_args.py",
        ),
        *weight_lines(needs.weights, model, checkpoint, recipe, **_own(model, checkpoint, recipe)),
        in_bytes("= KV budget", left, f"{before:,} × {share:.6g} - {needs.loaded:,}"),
        token_line(model, recipe, needs.token),
        Line(
            what="KV tokens",
            formula=f"floor({left:,} / {needs.token:,})",
            value=rules.tokens_on(gpu, model, recipe, needs),
            unit="tokens",
            source="SGLang model_runner.py",
        ),
        in_bytes("left to a step", rules.step_room(gpu, model, recipe), "activations, request table, drafts"),
    ]
    return tuple(rows)


def _own(model: Model, checkpoint: Checkpoint, recipe: Recipe) -> dict[str, str]:
    """Formulas that are SGLang's alone."""
    hows = {"vision": f"{checkpoint.bytes_by_component.get('vision', 0):,}, whole on every rank"}
    if model.moe and checkpoint.quant == "nvfp4":
        copies = constant("load", "sglang_nvfp4_scale_copies")
        hows["routed_experts"] = f"{expert_formula(model, checkpoint, recipe)} × (1 + 1/9 × {copies} scales twice)"
    return hows


def reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Why settings that are SGLang's alone are as they are."""
    box, model, checkpoint, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    if gpu is None:
        return []
    own = rules.automatic_fraction(gpu, model, recipe)
    needs = rules.needs_of(model, checkpoint, recipe, 0)
    tokens = rules.tokens_on(gpu, model, replace(recipe, memory_utilization=None), needs)
    return [
        f"mem_fraction_static {recipe.memory_utilization:g} is set: left alone SGLang would take {own:.3f} "
        f"and hold {count(tokens)} tokens instead of {count(memory.kv_tokens)}"
    ]
