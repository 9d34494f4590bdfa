"""ik_llama.cpp: the fork with absorbed MLA and quants of its own; experts in RAM, the rest on the cards.

Flags by the help of the sources of April and August 2026.
"""

import re

from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.plan import Caution, Launch
from moebox.core.recipe import EngineName, Recipe
from moebox.engines import ggml, refuse
from moebox.engines.assemble import assemble, entry_words
from moebox.engines.events import MIB, Event, read, sign
from moebox.engines.flags import Word, catalogue, order, versions
from moebox.engines.words import Node, field_words, flag_words, merge, without

NAME: EngineName = "ik_llama.cpp"
VERSIONS = versions(NAME)
IMAGE = "ghcr.io/ikawrakow/ik-llama-cpp:cu13-server"
IMAGE_ENTRY: tuple[str, ...] = ("/app/llama-server",)
IMAGE_ENTERS = True
READY: re.Pattern[str] = re.compile(r"HTTP server listening")
HEALTH = "/health"
KEY_ENV = "LLAMA_API_KEY"

FIELDS = ggml.FIELDS
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
# The fork takes keys from argv or a file; bash makes a file out of the variable that is nowhere on disk.
ENTER_WITH_KEY = 'exec "$@" --api-key-file <(printf "%s\\n" "$LLAMA_API_KEY")'


def words(recipe: Recipe, model: Model | None, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    known = catalogue(NAME, recipe.engine_version)
    out = [*ggml.model_words(recipe, hub="--hf-repo"), *field_words(recipe, FIELDS, known, host=host)]
    out += ggml.context_words(recipe) + ggml.hybrid_words(recipe)
    if recipe.kv != "auto":
        out.append(("-ctk", ggml.KV.get(recipe.kv, recipe.kv)))  # MLA has one cache: K's type is all there is
    out.append(("--jinja",))
    if not recipe.thinking:
        out.append(_not_thinking(recipe))
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def _not_thinking(recipe: Recipe) -> Word:
    """The template's switch; from August 2026 on it sends the whole answer to reasoning_content, a budget of 0 not."""
    version = recipe.engine_version or VERSIONS[-1]
    if order(version) >= order("2026-08"):
        return ("--reasoning-budget", "0")
    return ("--chat-template-kwargs", '{"thinking":false}')


def speculation(recipe: Recipe) -> list[Word]:
    """Nothing: its drafts are not EAGLE's, and `refusals` says so."""
    return []


def environment(recipe: Recipe, model: Model | None) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(recipe.env)


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("llama-server",), module=("-m", "ik_llama_cpp.server"))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it."""
    return ("bash", "-c", ENTER_WITH_KEY, "engine", *argv)


def launch(
    recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
) -> Launch:
    """What to run on this machine."""
    return assemble(recipe, model, port=port, node=Node.of(rank, master))


def refusals(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """Known reasons why this will not start, or will disappoint."""
    return refuse.ik_llama(recipe, box, model)


SIGNS = (
    sign(r"HTTP server listening", "ready", "ready"),
    sign(r"llama_model_loader: loaded meta data", "phase", "loading weights"),
    sign(
        r"llm_load_tensors:\s+(?P<device>\S+) buffer size =\s+(?P<weights_bytes>[\d.]+) MiB",
        "fact",
        "loading weights",
        weights_bytes=MIB,
    ),
    sign(
        r"llama_kv_cache_init:\s+(?P<device>\S+) KV buffer size =\s+(?P<kv_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        kv_bytes=MIB,
    ),
    sign(r"llama_(?:init_from_model|new_context_with_model): n_ctx\s+= (?P<kv_tokens>\d+)", "fact", "allocating cache"),
    sign(
        r"llama_(?:init_from_model|new_context_with_model):\s+(?P<device>\S+) compute buffer size =\s+"
        r"(?P<activation_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        activation_bytes=MIB,
    ),
    sign(r"KV self size\s+=\s+(?P<kv_bytes>[\d.]+) MiB", "fact", "allocating cache", kv_bytes=MIB),
    sign(r"main\] build info", "phase", "starting"),
    sign(r"error: unknown argument: |error: invalid parameter for argument|invalid ggml type", "error"),
    sign(r"couldn't bind|unable to load model|failed to load model|error loading model", "error"),
    sign(r"CUDA error|out of memory|GGML_ASSERT", "error"),
)


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)
