"""What neither of the two llama.cpp servers will run, and why."""

from moebox.core.deployment import Deployment
from moebox.core.plan import Caution
from moebox.engines.common import caution, everywhere


def refusals(deployment: Deployment) -> list[Caution]:
    """What the two llama.cpp servers share."""
    recipe, found = deployment.recipe, everywhere(deployment)
    if "special" in recipe.flags and recipe.flags.get("jinja", True):
        text = "--special with --jinja breaks tool calls: the markers reach the parser as text"
        found.append(caution("warning", text, "leave flags.special out", "tried on b11669 and ik of August 2026"))
    if {"ncmoe", "n-cpu-moe"} & set(recipe.flags):
        text = "-ncmoe counts the first layers in llama.cpp and the last, or a share per GPU, in ik_llama.cpp"
        found.append(caution("warning", text, "hybrid.experts names the layers", "tried, November 2026"))
    if recipe.kv == "fp8":
        found.append(caution("fatal", f"{deployment.engine.title} has no fp8 cache", 'kv = "q8_0"'))
    return found
