"""SGLang: tensor parallel serving of safetensors on GPUs.

Flags by the parser of 0.5.23; log lines as that version prints them.
"""

import re

from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.plan import Caution, Launch
from moebox.core.recipe import EngineName, Recipe
from moebox.engines import refuse
from moebox.engines.assemble import assemble, entry_words
from moebox.engines.events import GB, Event, read, sign
from moebox.engines.flags import Word, catalogue, versions
from moebox.engines.words import Node, field_words, flag_words, has_vision, merge, weights_of, without

NAME: EngineName = "sglang"
VERSIONS = versions(NAME)
IMAGE = "lmsysorg/sglang:v{version}"
IMAGE_ENTRY: tuple[str, ...] = ("python3", "-m", "sglang.launch_server")
IMAGE_ENTERS = False  # the image has no server as its entry point: the whole command follows it
READY: re.Pattern[str] = re.compile(r"The server is fired up and ready to roll")
HEALTH = "/health"
KEY_ENV = "SGLANG_API_KEY"

FIELDS: dict[str, str] = {
    "--served-model-name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--trust-remote-code": "trust_remote_code",
    "--tp-size": "parallel.tp",
    "--pp-size": "parallel.pp",
    "--dcp-size": "parallel.dcp",
    "--dp-size": "parallel.dp",
    "--nnodes": "parallel.nodes",
    "--context-length": "context",
    "--mem-fraction-static": "memory_utilization",
    "--max-running-requests": "max_seqs",
    "--chunked-prefill-size": "batched_tokens",
    "--tool-call-parser": "tool_parser",
    "--reasoning-parser": "reasoning_parser",
}
KV = {"fp8": "fp8_e4m3", "bf16": "bf16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--model-path": "MODEL_PATH",
    "--served-model-name": "SERVED_MODEL_NAME",
    "--context-length": "MAX_MODEL_LEN",
    "--mem-fraction-static": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}
RENDEZVOUS = 20000  # port of rank 0, as in SGLang's own multi-node examples
# SGLang takes its key from argv alone (server_args.py); this puts it there inside the process, where no `ps` sees it.
ENTER_WITH_KEY = (
    "import os, runpy, sys; sys.argv[1:1] = ['--api-key', os.environ['SGLANG_API_KEY']]; "
    "runpy.run_module('sglang.launch_server', run_name='__main__', alter_sys=True)"
)


def words(recipe: Recipe, model: Model | None, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    node = node or Node()
    known = catalogue(NAME, recipe.engine_version)
    tower = has_vision(model)
    out: list[Word] = [("--model-path", weights_of(recipe)), *field_words(recipe, FIELDS, known, host=host)]
    if recipe.parallel.ep:
        out.append(("--ep-size", str(recipe.parallel.tp)))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    if recipe.prefix_caching is False:
        out.append(("--disable-radix-cache",))
    if tower and not recipe.vision:
        out.append(("--language-model-only",))
    elif tower and recipe.parallel.tp > 1:
        out.append(("--mm-enable-dp-encoder",))  # the tower is small: a copy per card beats slicing it
    if not recipe.thinking:
        out.append(("--default-chat-template-kwargs", '{"thinking":false}'))
    out += speculation(recipe)
    if recipe.parallel.nodes > 1 or node.count is not None:
        out = [word for word in out if word[0] != "--nnodes" and not (node.follows and word[0] in ("--host", "--port"))]
        out += [("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]
        out.append(("--dist-init-addr", f"{node.master}:{RENDEZVOUS}"))
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def speculation(recipe: Recipe) -> list[Word]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    chosen: list[Word] = [("--speculative-algorithm", draft.method.upper())]
    if draft.draft:
        chosen.append(("--speculative-draft-model-path", draft.draft))
    # A chain without branches: as many steps as guesses, and one verified token more than guessed.
    chosen += [("--speculative-num-steps", str(draft.tokens)), ("--speculative-eagle-topk", "1")]
    return [*chosen, ("--speculative-num-draft-tokens", str(draft.tokens + 1))]


def environment(recipe: Recipe, model: Model | None) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe: none."""
    return dict(recipe.env)


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("sglang", "serve"), module=("-m", "sglang.launch_server"))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: Python hands it over from SGLANG_API_KEY."""
    first = next(place for place, word in enumerate(argv) if word.startswith("--"))
    folder, slash, name = argv[0].rpartition("/")
    python = argv[0] if name.startswith("python") else f"{folder}{slash}python3"
    return (python, "-c", ENTER_WITH_KEY, *argv[first:])


def launch(
    recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
) -> Launch:
    """What to run on this machine."""
    return assemble(recipe, model, port=port, node=Node.of(rank, master))


def refusals(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """Known reasons why this will not start, or will disappoint."""
    return refuse.sglang(recipe, box, model)


SIGNS = (
    sign(r"The server is fired up and ready to roll", "ready", "ready"),  # http_server.py
    sign(r"Loading safetensors[\w ]*:\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+)", "progress", "loading weights"),
    sign(r"Load weight begin\. avail mem=(?P<free_bytes>[\d.]+) GB", "fact", "loading weights", free_bytes=GB),
    sign(
        r"(?:TP(?P<device>\d+).*)?Load weight end\. (?:elapsed=(?P<load_s>[\d.]+) s, )?.*"
        r"mem usage=(?P<weights_bytes>[\d.]+) GB",
        "fact",
        "allocating cache",
        weights_bytes=GB,
    ),
    sign(r"KV Cache is allocated.*#tokens: (?P<kv_tokens>\d+)", "fact", "allocating cache"),
    sign(r"Memory pool end\. avail mem=(?P<free_bytes>[\d.]+) GB", "fact", "capturing graphs", free_bytes=GB),
    sign(r"Capturing batches.*?(?P<done>\d+)/(?P<total>\d+)", "progress", "capturing graphs"),
    sign(r"Capture [\w ]*cuda graph begin|Capture [\w ]*CUDA graph begin", "phase", "capturing graphs"),
    sign(r"Capture [\w ]*(?:cuda|CUDA) graph end.*elapsed=(?P<graph_s>[\d.]+) s", "fact", "capturing graphs"),
    sign(
        r"max_total_num_tokens=(?P<kv_tokens>\d+), .*max_running_requests=(?P<max_concurrency>\d+), "
        r"context_len=(?P<context>\d+)",
        "fact",
    ),  # scheduler.py
    sign(r"server_args=", "phase", "starting"),
    sign(r"Scheduler hit an exception|Capture cuda graph failed|Received sigquit from a child process", "error"),
    sign(r"sglang serve: error: |launch_server.py: error: |[Aa]ddress already in use", "error"),
    sign(r"torch\.OutOfMemoryError|out of resource: shared memory|RuntimeError: Not enough memory", "error"),
)


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)
