"""Change one setting of a recipe by its path, and choose the checks that it can break."""

import difflib
import re
from itertools import pairwise
from typing import Any

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.core import registry, validation
from moebox.core.recipe import Recipe
from moebox.core.setting import get_setting, with_settings
from moebox.errors import BadInput, refuse_if, suggest_names
from moebox.planner import candidates
from moebox.planner.constraints import DRAFT_METHODS

# Setting -> checks that a change of it can break. For other settings: all checks that are cheap.
CHECKS_BY_SETTING: dict[str, tuple[str, ...]] = {
    "context": ("alive", "plain", "long-context", "limits"),
    "speculate": ("alive", "plain", "arithmetic", "code", "json", "streaming", "tools", "concurrency"),
    "kv": ("alive", "plain", "arithmetic", "json", "tools", "long-context"),
    "prefix_caching": ("alive", "plain", "streaming", "concurrency", "long-context"),
    "hybrid": ("alive", "plain", "arithmetic", "concurrency", "long-context"),
    "parallel": ("alive", "plain", "arithmetic", "concurrency", "long-context"),
    "tool_parser": ("alive", "json", "thinking", "tools", "anthropic"),
    "reasoning_parser": ("alive", "json", "thinking", "tools", "anthropic"),
    "max_seqs": ("alive", "plain", "concurrency"),
    "batched_tokens": ("alive", "plain", "concurrency", "long-context"),
    "memory_utilization": ("alive", "plain", "concurrency", "long-context"),
}
DEFAULT_CHECKS = ("alive", "plain", "arithmetic", "json", "streaming", "tools", "long-context", "concurrency", "limits")


def checks_for(path: str) -> tuple[str, ...]:
    """The checks to run again after a change of this setting."""
    return CHECKS_BY_SETTING.get(path, CHECKS_BY_SETTING.get(path.split(".")[0], DEFAULT_CHECKS))


def with_setting(recipe: Recipe, path: str, value: Any) -> Recipe:
    """Change one setting. Raise BadInput if there is no such setting or value."""
    if path == "speculate" and isinstance(value, str):
        value = candidates.recipe_draft(deploy(recipe), value)
    return with_settings(recipe, {path: value})


def current_value(recipe: Recipe, path: str) -> Any:
    if path == "speculate":
        return recipe.speculate.method if recipe.speculate else "none"
    return codec.to_plain(get_setting(recipe, path))


def draft_problem(recipe: Recipe, method: str) -> str:
    """Why the recipe cannot use that draft method, or ""."""
    traits = registry.engine_traits(recipe.engine)
    if method in DRAFT_METHODS and method not in (*traits.draft_methods, "none"):
        return f"{traits.title} has no {method} drafts"
    try:
        candidates.recipe_draft(deploy(recipe), method)
    except BadInput as problem:
        return problem.message
    return ""


def check_climb_settings(recipe: Recipe) -> None:
    """Raise BadInput if the climb names a setting or value that does not exist."""
    for length in recipe.climb.contexts:
        refuse_if(length < 1, f"climb.contexts: {length} is not a valid number of tokens")
    for before, length in pairwise(recipe.climb.contexts):
        hint = "write them in ascending order"
        refuse_if(length <= before, f"climb.contexts: {length} after {before} would not be tried", hint=hint)
    for method in recipe.climb.speculate:
        # Engines have more methods than moebox knows, but a near miss of a known one is a typing error.
        near = method not in DRAFT_METHODS and difflib.get_close_matches(method, DRAFT_METHODS, cutoff=0.75)
        wrong = near or not re.fullmatch(r"[A-Za-z][\w.-]*", method)
        hint = suggest_names(method, DRAFT_METHODS)
        refuse_if(wrong, f"climb.speculate: no draft method {method!r}", hint=hint)
    for path, values in recipe.climb.settings.items():
        refuse_if(not values, f"climb setting {path!r} has no values to try")
        for value in values:
            try:
                changed = with_setting(recipe, path, value)
                validation.validate_recipe(changed)
                engines.check_recipe(deploy(changed))
            except BadInput as problem:
                raise BadInput(f"climb setting {path!r} = {value!r}: {problem.message}", hint=problem.hint) from None
