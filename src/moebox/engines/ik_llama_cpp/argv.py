"""A deployment to ik_llama.cpp's command line. Flags by the help of the sources of April and August 2026."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Recipe
from moebox.engines.arguments import LaunchNode, add_recipe_flags, field_arguments, thinking_off_json
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue, version_key, version_or_newest
from moebox.engines.ggml import argv as ggml
from moebox.engines.ik_llama_cpp.traits import TRAITS

# The fork takes keys from argv or a file; bash makes a file out of the variable that is not on disk.
ENTER_WITH_KEY = 'exec "$@" --api-key-file <(printf "%s\\n" "$LLAMA_API_KEY")'


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    recipe, weights, checkpoint = deployment.recipe, deployment.weights_path, deployment.known_checkpoint
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    if ggml.is_local_file(weights):
        out: list[Argument] = [("-m", weights)]
    else:  # the repository and the file in it, without which the fork does not start
        file = checkpoint.file if checkpoint else ""
        out = [("--hf-repo", weights), *([("--hf-file", file)] if file else [])]
    out += field_arguments(recipe, ggml.FIELDS, known, host=host)
    out += [*ggml.layer_arguments(recipe), *ggml.tier_arguments(deployment)]
    if recipe.kv != "auto":
        out.append(("-ctk", recipe.kv))  # MLA has one cache: only the type of K matters
    out += [(flag,) for flag in ggml.ALWAYS_ON]
    if not recipe.thinking:
        # From August 2026 on the template's switch puts the answer into reasoning_content; a budget of 0 does not.
        by_budget = version_key(version_or_newest(recipe)) >= version_key("2026-08")
        switch = ("--chat-template-kwargs", thinking_off_json(deployment))
        out.append(("--reasoning-budget", "0") if by_budget else switch)
    return add_recipe_flags(out, recipe.flags, known)


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    return python_entry(recipe, program=("llama-server",), module=("-m", "ik_llama_cpp.server"))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Pass the API key in a file made by bash instead of in argv."""
    return ("bash", "-c", ENTER_WITH_KEY, "engine", *argv)
