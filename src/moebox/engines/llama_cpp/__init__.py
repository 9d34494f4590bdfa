"""llama.cpp: GGUF on cards, CPU or both, by the server of the mainline project.

Flags by the help of b11669. `-lv 4` makes it print the buffers that plans are compared with.
"""

import re

from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.plan import Caution, Launch
from moebox.core.recipe import EngineName, Recipe
from moebox.engines import ggml, refuse
from moebox.engines.assemble import assemble, entry_words
from moebox.engines.events import MIB, Event, read, sign
from moebox.engines.flags import Word, catalogue, versions
from moebox.engines.words import Node, field_words, flag_words, merge, without

NAME: EngineName = "llama.cpp"
VERSIONS = versions(NAME)
IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda-{version}"
IMAGE_ENTRY: tuple[str, ...] = ("/app/llama-server",)
IMAGE_ENTERS = True
READY: re.Pattern[str] = re.compile(r"model loaded|server is listening on http|listening on http://")
HEALTH = "/health"
KEY_ENV = "LLAMA_API_KEY"

FIELDS = ggml.FIELDS
VARIABLES = {"-m": "MODEL_PATH", "--alias": "SERVED_MODEL_NAME", "-c": "MAX_MODEL_LEN", "--port": "PORT"}
LOUD_ENOUGH = "4"  # the lowest verbosity that prints buffer sizes


def words(recipe: Recipe, model: Model | None, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    known = catalogue(NAME, recipe.engine_version)
    out = [*ggml.model_words(recipe, hub="-hf"), *field_words(recipe, FIELDS, known, host=host)]
    out += ggml.context_words(recipe) + ggml.hybrid_words(recipe)
    if recipe.kv != "auto":
        kind = ggml.KV.get(recipe.kv, recipe.kv)
        out += [("-ctk", kind), ("-ctv", kind)]  # MLA's one cache is read as both: they must be alike
    out.append(("--jinja",))
    if not recipe.thinking:
        out.append(("--chat-template-kwargs", '{"thinking":false}'))
    out += speculation(recipe)
    out.append(("-lv", LOUD_ENOUGH))
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def speculation(recipe: Recipe) -> list[Word]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    kind = draft.method if draft.method.startswith(("draft-", "ngram-")) else f"draft-{draft.method}"
    chosen: list[Word] = [("--spec-type", kind)]
    if draft.draft:
        chosen.append(("--spec-draft-model", draft.draft))
    return [*chosen, ("--spec-draft-n-max", str(draft.tokens))]


def environment(recipe: Recipe, model: Model | None) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(recipe.env)


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("llama-server",), module=("-m", "xllamacpp.server"))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: the server reads LLAMA_API_KEY itself."""
    return argv


def launch(
    recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
) -> Launch:
    """What to run on this machine."""
    return assemble(recipe, model, port=port, node=Node.of(rank, master))


def refusals(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """Known reasons why this will not start, or will disappoint."""
    return refuse.llama_cpp(recipe, box, model)


SIGNS = (
    sign(r"srv\s+llama_server: model loaded|listening on http://", "ready", "ready"),
    sign(r"load_model: loading model", "phase", "loading weights"),
    sign(
        r"load_tensors:\s+(?P<device>\S+) model buffer size =\s+(?P<weights_bytes>[\d.]+) MiB",
        "fact",
        "loading weights",
        weights_bytes=MIB,
    ),
    sign(
        r"llama_kv_cache:\s+(?P<device>\S+) KV buffer size =\s+(?P<kv_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        kv_bytes=MIB,
    ),
    sign(r"llama_context: n_ctx\s+= (?P<kv_tokens>\d+)", "fact", "allocating cache"),
    sign(
        r"sched_reserve:\s+(?P<device>\S+) compute buffer size =\s+(?P<activation_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        activation_bytes=MIB,
    ),
    sign(r"warming up the model", "phase", "compiling"),
    sign(r"srv\s+llama_server: initializing", "phase", "starting"),
    sign(r"error: invalid argument: |error while handling argument|invalid ggml type", "error"),
    sign(r"couldn't bind|failed to load model|error loading model|CUDA error|out of memory|GGML_ASSERT", "error"),
)


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)
