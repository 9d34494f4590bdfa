"""One setting of a recipe at a time: by its path, and what it can break."""

import difflib
import re
from itertools import pairwise
from typing import Any

from moebox import codec, engines
from moebox.checkpoint import deploy
from moebox.core import registry, validation
from moebox.core.recipe import Recipe, Speculate
from moebox.errors import BadInput, refuse_if, suggest_names
from moebox.planner import candidates
from moebox.planner.constraints import DRAFT_METHODS

# Setting -> rungs that a change of it can break. Anything else can break everything that is cheap to look at.
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
    """The rungs to climb again after a change of this setting."""
    return CHECKS_BY_SETTING.get(path, CHECKS_BY_SETTING.get(path.split(".")[0], DEFAULT_CHECKS))


def with_setting(recipe: Recipe, path: str, value: Any) -> Recipe:
    """The recipe with one setting changed; BadInput where there is no such setting or value."""
    if path == "speculate" and isinstance(value, str):
        return with_setting(recipe, path, _speculation(recipe, value))
    document = codec.to_plain(recipe)
    head, _, rest = path.partition(".")
    if rest:
        table = document.get(head)
        if not isinstance(table, dict):
            table = document[head] = {}
        table[rest] = value
    else:
        document[head] = value
    return codec.decode(Recipe, document, where=f"climb setting {path!r}")


def current_value(recipe: Recipe, path: str) -> Any:
    """What the setting is now; None where it is not set."""
    if path == "speculate":
        return recipe.speculate.method if recipe.speculate else "none"
    value: Any = codec.to_plain(recipe)
    head, _, rest = path.partition(".")
    for key in (head, rest) if rest else (head,):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _speculation(recipe: Recipe, method: str) -> Any:
    return None if method == "none" else codec.to_plain(_draft(recipe, method))


def _draft(recipe: Recipe, method: str) -> Speculate:
    """How the recipe drafts by that method: as it says itself, else with what is known of its model."""
    if recipe.speculate and recipe.speculate.method == method:
        return recipe.speculate
    deployment = deploy(recipe)
    if deployment.is_known:
        return candidates.make_draft(deployment.model, method, recipe.runtime.preset)
    refuse_if(method == "eagle3", "the recipe names no draft model", hint="[speculate] draft = …")
    return Speculate(method=method)


def draft_problem(recipe: Recipe, method: str) -> str:
    """Why the recipe cannot draft that way, or nothing."""
    traits = registry.engine_traits(recipe.engine)
    if method in DRAFT_METHODS and method not in (*traits.draft_methods, "none"):
        return f"{traits.title} has no {method} drafts"
    try:
        _speculation(recipe, method)
    except BadInput as problem:
        return problem.message
    return ""


def check_climb_settings(recipe: Recipe) -> None:
    """Every setting that the climb names exists and may be so, told before anything is started."""
    for length in recipe.climb.contexts:
        refuse_if(length < 1, f"climb.contexts: {length} is no number of tokens")
    for before, length in pairwise(recipe.climb.contexts):
        hint = "write them in ascending order: a climb goes on to longer ones"
        refuse_if(length <= before, f"climb.contexts: {length} after {before} would not be tried", hint=hint)
    for method in recipe.climb.speculate:
        refuse_if(
            _mistyped(method), f"climb.speculate: no draft method {method!r}", hint=suggest_names(method, DRAFT_METHODS)
        )
    for path, values in recipe.climb.settings.items():
        if not values:
            raise BadInput(f"climb setting {path!r} has no values to try")
        for value in values:
            _check_value(recipe, path, value)


def _mistyped(method: str) -> bool:
    """No word at all, or nearly one of ours; engines have methods of their own beside those."""
    near = difflib.get_close_matches(method, DRAFT_METHODS, cutoff=0.75)
    return not re.fullmatch(r"[A-Za-z][\w.-]*", method) or (method not in DRAFT_METHODS and bool(near))


def _check_value(recipe: Recipe, path: str, value: Any) -> None:
    """BadInput where no engine could be started with it."""
    tried = with_setting(recipe, path, value)
    try:
        validation.validate_recipe(tried)
        engines.check_recipe(deploy(tried))
    except BadInput as problem:
        raise BadInput(f"climb setting {path!r} = {value!r}: {problem.message}", hint=problem.hint) from None
