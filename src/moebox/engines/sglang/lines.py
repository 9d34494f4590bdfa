"""SGLang's memory arithmetic, written out."""

from dataclasses import replace

from moebox.core.deployment import Deployment
from moebox.core.model import Checkpoint, Model
from moebox.core.plan import ArithmeticLine, Memory
from moebox.core.recipe import Recipe
from moebox.engines.devices import first_gpu, fullest_gpu
from moebox.engines.lines import bytes_line, expert_formula, stage_note, token_line, weight_lines
from moebox.engines.sglang import memory as rules
from moebox.sizing.constants import memory_constant
from moebox.units import format_count


def memory_lines(deployment: Deployment, memory: Memory) -> tuple[ArithmeticLine, ...]:
    """Every step from the GPU's size to the tokens of cache, on the GPU that holds the fewest."""
    _, model, checkpoint, recipe = deployment.facts
    deciding = fullest_gpu(deployment, rules.SglangRanks(deployment))
    if deciding is None:
        return ()
    gpu, stage = deciding
    needs = rules.rank_needs(model, checkpoint, recipe, stage)
    before, share = rules.free_before_loading(gpu), rules.static_fraction(gpu, model, recipe)
    left = rules.kv_budget(gpu, model, recipe, needs)
    rows = [
        bytes_line(
            "free before loading", before, f"{gpu.memory:,} - {gpu.memory - before:,}", "data/memory.toml [sglang]"
        ),
        ArithmeticLine(
            what="mem_fraction_static",
            formula="as given" if recipe.memory_utilization else "SGLang's own choice",
            value=share,
            unit="",
            source="SGLang server_args.py",
        ),
        *weight_lines(needs.weights, model, checkpoint, recipe, stage, **_own(model, checkpoint, recipe, stage)),
        bytes_line("= KV budget", left, f"{before:,} × {share:.6g} - {needs.loaded_bytes:,}"),
        token_line(model, recipe, needs.token, stage),
        ArithmeticLine(
            what="KV tokens",
            formula=f"floor({left:,} / {needs.token:,})" + stage_note(recipe, stage),
            value=rules.tokens_on_gpu(gpu, model, recipe, needs),
            unit="tokens",
            source="SGLang model_runner.py",
        ),
        bytes_line("left to a step", rules.step_bytes(gpu, model, recipe), "activations, request table, drafts"),
    ]
    return tuple(rows)


def _own(model: Model, checkpoint: Checkpoint, recipe: Recipe, stage: int) -> dict[str, str]:
    """Formulas that are SGLang's alone."""
    hows = {"vision": f"{checkpoint.bytes_by_component.get('vision', 0):,}, whole on every rank"}
    if model.moe and checkpoint.quant == "nvfp4":
        copies = memory_constant("load", "sglang_nvfp4_scale_copies")
        usual = expert_formula(model, checkpoint, recipe, stage)
        hows["routed_experts"] = f"{usual} × (1 + 1/9 × {copies} scales twice)"
    return hows


def setting_reasons(deployment: Deployment, memory: Memory) -> list[str]:
    """Why settings that are SGLang's alone are as they are."""
    box, model, _, recipe = deployment.facts
    gpu = first_gpu(box, recipe)
    if gpu is None:
        return []
    own = rules.automatic_fraction(gpu, model, recipe)
    alone = rules.memory_budget(deployment.with_recipe(replace(recipe, memory_utilization=None)))
    if alone.kv_tokens == memory.kv_tokens:
        return []
    return [
        f"mem_fraction_static {recipe.memory_utilization:g} is set: left alone SGLang would take {own:.3f} "
        f"and hold {format_count(alone.kv_tokens)} tokens instead of {format_count(memory.kv_tokens)}"
    ]
