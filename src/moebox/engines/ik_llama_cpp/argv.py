"""Deployment to ik_llama.cpp's command line and back. Flags by the help of the sources of April and August 2026."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.arguments import (
    LaunchNode,
    drop_disabled,
    field_arguments,
    flag_arguments,
    merge_arguments,
    thinking_off_json,
)
from moebox.engines.assemble import python_entry
from moebox.engines.flags import Argument, flag_catalogue, known_versions
from moebox.engines.ggml import argv as ggml
from moebox.engines.ik_llama_cpp.traits import TRAITS
from moebox.engines.reading import Reader, Reading, taken, template_arguments
from moebox.engines.retired import version_key

FIELDS = ggml.FIELDS
READS = ggml.FIELDS | ggml.HYBRID
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
# The fork takes keys from argv or a file; bash makes a file out of the variable that is nowhere on disk.
ENTER_WITH_KEY = 'exec "$@" --api-key-file <(printf "%s\\n" "$LLAMA_API_KEY")'


def arguments(deployment: Deployment, *, node: LaunchNode | None = None, host: str = "") -> list[Argument]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = flag_catalogue(TRAITS.name, recipe.engine_version)
    out = [*ggml.fork_weights(deployment), *field_arguments(recipe, FIELDS, known, host=host)]
    out += ggml.context_arguments(recipe) + ggml.hybrid_arguments(recipe)
    if recipe.kv != "auto":
        out.append(("-ctk", ggml.KV.get(recipe.kv, recipe.kv)))  # MLA has one cache: K's type is all there is
    out += [(flag,) for flag in ggml.ALWAYS_ON]
    if not recipe.thinking:
        out.append(_not_thinking(deployment))
    return merge_arguments(drop_disabled(out, recipe.flags, known), flag_arguments(recipe.flags, known), known)


def _not_thinking(deployment: Deployment) -> Argument:
    """The template's switch; from August 2026 on it sends the whole answer to reasoning_content, a budget of 0 not."""
    version = deployment.recipe.engine_version or known_versions(TRAITS.name)[-1]
    if version_key(version) >= version_key("2026-08"):
        return ("--reasoning-budget", "0")
    return ("--chat-template-kwargs", thinking_off_json(deployment))


def draft_arguments(recipe: Recipe) -> list[Argument]:
    """Nothing: its drafts are not EAGLE's, and `refusals` says so."""
    return []


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(deployment.recipe.env)


def entry_command(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return python_entry(recipe, program=("llama-server",), module=("-m", "ik_llama_cpp.server"))


def hide_api_key(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it."""
    return ("bash", "-c", ENTER_WITH_KEY, "engine", *argv)


def understood(word: Argument, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `reading`."""
    return taken(word, name, reading, SAID, READERS)


finished = ggml.finished
SAID: dict[Argument, tuple[str, Flag]] = {("--reasoning-budget", "0"): ("thinking", False)}
READERS: dict[str, Reader] = ggml.READERS | {"--chat-template-kwargs": template_arguments}
