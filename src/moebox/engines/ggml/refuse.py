"""What neither of the two llama.cpp servers will run, and why."""

from collections.abc import Iterator

from moebox.core.deployment import Deployment
from moebox.core.plan import PlanWarning
from moebox.engines.common import common_refusals, plan_warning
from moebox.engines.ggml.memory import cache_tokens
from moebox.sizing.kv import keeps_all_heads, token_bytes
from moebox.units import format_gib

NOTICED = 2**30  # bytes of cache that are worth a word


def find_refusals(deployment: Deployment) -> list[PlanWarning]:
    """What the two llama.cpp servers share."""
    recipe, found = deployment.recipe, common_refusals(deployment)
    if "special" in recipe.flags and recipe.flags.get("jinja", True):
        text = "--special with --jinja breaks tool calls: the markers reach the parser as text"
        found.append(plan_warning("warning", text, "leave flags.special out", "tried on b11669 and ik of August 2026"))
    if {"ncmoe", "n-cpu-moe"} & set(recipe.flags):
        text = "-ncmoe counts the first layers in llama.cpp and the last, or a share per GPU, in ik_llama.cpp"
        found.append(plan_warning("warning", text, "hybrid.experts names the layers", "tried, November 2026"))
    if recipe.kv == "fp8":
        found.append(plan_warning("fatal", f"{deployment.engine.title} has no fp8 cache", 'kv = "q8_0"'))
        return found
    return [*found, *_whole_heads(deployment)]


def _whole_heads(deployment: Deployment) -> Iterator[PlanWarning]:
    """A cache of every head's keys and values, where the latent would do."""
    model, recipe = deployment.known_model, deployment.recipe
    if model is None or model.mla is None or not keeps_all_heads(model.mla, recipe):
        return
    held = token_bytes(model, recipe) * cache_tokens(recipe)
    latent = held * model.mla.kv_width / model.mla.heads_width
    if held - latent < NOTICED:
        return
    cost = f"{format_gib(held)} of cache at {recipe.context:,} tokens, where the latent takes {format_gib(latent)}"
    if recipe.hybrid and recipe.hybrid.mla == 0:
        yield plan_warning("warning", f"-mla 0 keeps every head's keys and values: {cost}", "hybrid.mla = 3")
        return
    text = f"the file has keys and values in one matrix, so llama.cpp keeps them for every head: {cost}"
    source = "llama.cpp b21e4de deepseek2.cpp: without attention.key_length_mla there is no latent cache"
    yield plan_warning(
        "warning", text, "a GGUF made since April 2025 has them apart; ik_llama.cpp takes them apart", source
    )
