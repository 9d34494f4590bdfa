"""Deployment to ik_llama.cpp's command line and back. Flags by the help of the sources of April and August 2026."""

from moebox.core.deployment import Deployment
from moebox.core.recipe import Flag, Recipe
from moebox.engines.arguments import Node, field_words, flag_words, merge, thinking_off, without
from moebox.engines.assemble import entry_words
from moebox.engines.flags import Word, catalogue, versions
from moebox.engines.ggml import argv as ggml
from moebox.engines.ik_llama_cpp.traits import TRAITS
from moebox.engines.reading import Reader, Reading, taken, template_arguments
from moebox.engines.retired import order

FIELDS = ggml.FIELDS
READS = ggml.FIELDS | ggml.HYBRID
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
# The fork takes keys from argv or a file; bash makes a file out of the variable that is nowhere on disk.
ENTER_WITH_KEY = 'exec "$@" --api-key-file <(printf "%s\\n" "$LLAMA_API_KEY")'


def words(deployment: Deployment, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    recipe = deployment.recipe
    known = catalogue(TRAITS.name, recipe.engine_version)
    out = [*ggml.fork_words(deployment), *field_words(recipe, FIELDS, known, host=host)]
    out += ggml.context_words(recipe) + ggml.hybrid_words(recipe)
    if recipe.kv != "auto":
        out.append(("-ctk", ggml.KV.get(recipe.kv, recipe.kv)))  # MLA has one cache: K's type is all there is
    out += [(flag,) for flag in ggml.ALWAYS]
    if not recipe.thinking:
        out.append(_not_thinking(deployment))
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def _not_thinking(deployment: Deployment) -> Word:
    """The template's switch; from August 2026 on it sends the whole answer to reasoning_content, a budget of 0 not."""
    version = deployment.recipe.engine_version or versions(TRAITS.name)[-1]
    if order(version) >= order("2026-08"):
        return ("--reasoning-budget", "0")
    return ("--chat-template-kwargs", thinking_off(deployment))


def speculation(recipe: Recipe) -> list[Word]:
    """Nothing: its drafts are not EAGLE's, and `refusals` says so."""
    return []


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(deployment.recipe.env)


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("llama-server",), module=("-m", "ik_llama_cpp.server"))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it."""
    return ("bash", "-c", ENTER_WITH_KEY, "engine", *argv)


def understood(word: Word, name: str, reading: Reading) -> bool:
    """Take a word that is more than one field, or a field said otherwise, into `reading`."""
    return taken(word, name, reading, SAID, READERS)


finished = ggml.finished
SAID: dict[Word, tuple[str, Flag]] = {("--reasoning-budget", "0"): ("thinking", False)}
READERS: dict[str, Reader] = ggml.READERS | {"--chat-template-kwargs": template_arguments}
