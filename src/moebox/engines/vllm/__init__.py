"""vLLM: tensor and pipeline parallel serving of safetensors on GPUs.

Flags by the parser of 0.32.0; log lines as that version prints them (its file names are in the comments).
"""

import json
import re

from moebox.core import presets
from moebox.core.box import Box
from moebox.core.model import Model
from moebox.core.plan import Caution, Launch
from moebox.core.recipe import EngineName, Recipe
from moebox.engines import refuse
from moebox.engines.assemble import assemble, entry_words
from moebox.engines.events import GIB, Event, read, sign
from moebox.engines.flags import Word, catalogue, versions
from moebox.engines.words import Node, field_words, flag_words, has_vision, merge, weights_of, without

NAME: EngineName = "vllm"
VERSIONS = versions(NAME)
IMAGE = "vllm/vllm-openai:v{version}"
IMAGE_ENTRY: tuple[str, ...] = ("vllm", "serve")  # ENTRYPOINT of the image; what follows the image are its arguments
IMAGE_ENTERS = True
READY: re.Pattern[str] = re.compile(r"Application startup complete")
HEALTH = "/health"
KEY_ENV = "VLLM_API_KEY"
# Loading and first compilation of a 600 GB checkpoint outlast the 600 s that vLLM waits by default (envs.py).
READY_TIMEOUT = {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}

FIELDS: dict[str, str] = {
    "--served-model-name": "served_name",
    "--host": "listen.host",
    "--port": "listen.port",
    "--trust-remote-code": "trust_remote_code",
    "--tensor-parallel-size": "parallel.tp",
    "--pipeline-parallel-size": "parallel.pp",
    "--decode-context-parallel-size": "parallel.dcp",
    "--data-parallel-size": "parallel.dp",
    "--enable-expert-parallel": "parallel.ep",
    "--nnodes": "parallel.nodes",
    "--max-model-len": "context",
    "--gpu-memory-utilization": "memory_utilization",
    "--max-num-seqs": "max_seqs",
    "--max-num-batched-tokens": "batched_tokens",
    "--enable-prefix-caching": "prefix_caching",
    "--tool-call-parser": "tool_parser",
    "--reasoning-parser": "reasoning_parser",
}
KV = {"fp8": "fp8", "bf16": "bfloat16", "f16": "float16"}  # recipe -> --kv-cache-dtype
VARIABLES = {
    "--served-model-name": "SERVED_MODEL_NAME",
    "--max-model-len": "MAX_MODEL_LEN",
    "--gpu-memory-utilization": "GPU_MEMORY_UTILIZATION",
    "--port": "PORT",
}


def words(recipe: Recipe, model: Model | None, *, node: Node | None = None, host: str = "") -> list[Word]:
    """The command line after the entry, word by word."""
    node = node or Node()
    known = catalogue(NAME, recipe.engine_version)
    tower = has_vision(model)
    out: list[Word] = [_model_word(recipe), *field_words(recipe, FIELDS, known, host=host)]
    if recipe.tool_parser:
        out.append(("--enable-auto-tool-choice",))
    if recipe.kv != "auto":
        out.append(("--kv-cache-dtype", KV.get(recipe.kv, recipe.kv)))
    if tower and not recipe.vision:
        out.append(("--language-model-only",))
    elif tower and recipe.parallel.tp > 1:
        out.append(("--mm-encoder-tp-mode", "data"))  # the tower is small: a copy per card beats slicing it
    if not recipe.thinking:
        out.append(("--default-chat-template-kwargs", '{"thinking":false}'))
    out += speculation(recipe)
    out = _for_node(out, recipe, node)
    preset = presets.of(recipe)
    out = merge(out, flag_words(preset.flags, known), known) if preset else out
    return merge(without(out, recipe.flags, known), flag_words(recipe.flags, known), known)


def _model_word(recipe: Recipe) -> Word:
    """Positional after `vllm serve`; the older module entry wants --model."""
    return ("--model", weights_of(recipe)) if "api_server" in recipe.runtime.entry else (weights_of(recipe),)


def speculation(recipe: Recipe) -> list[Word]:
    """The words that turn a draft on; empty without one."""
    draft = recipe.speculate
    if draft is None:
        return []
    settings: dict[str, object] = {"method": draft.method}
    settings |= {"model": draft.draft} if draft.draft else {}
    settings["num_speculative_tokens"] = draft.tokens
    preset = presets.of(recipe)
    settings |= preset.speculate if preset else {}
    return [("--speculative-config", json.dumps(settings, separators=(",", ":")))]


def _for_node(out: list[Word], recipe: Recipe, node: Node) -> list[Word]:
    """One machine's share of a launch over several, by vLLM's own multiprocessing (no Ray)."""
    if recipe.parallel.nodes == 1 and node.count is None:
        return out
    kept = [word for word in out if word[0] != "--nnodes" and not (node.follows and word[0] in ("--host", "--port"))]
    kept += [("--nnodes", str(node.count or recipe.parallel.nodes)), ("--node-rank", str(node.rank))]
    kept.append(("--master-addr", node.master))
    return [*kept, ("--headless",)] if node.follows else kept


def environment(recipe: Recipe, model: Model | None) -> dict[str, str]:
    """Variables the engine needs beside those of the recipe."""
    large = model is None or model.total > 100e9
    preset = presets.of(recipe)
    return (READY_TIMEOUT if large else {}) | (preset.environment if preset else {}) | recipe.env


def entry(recipe: Recipe) -> tuple[str, ...]:
    """The words that start it on this machine."""
    return entry_words(recipe, program=("vllm", "serve"), module=("-m", "vllm.entrypoints.cli.main", "serve"))


def guarded(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv` so that the key reaches the engine without being in it: vLLM reads VLLM_API_KEY itself."""
    return argv


def launch(
    recipe: Recipe, model: Model | None = None, *, port: int | None = None, rank: int = 0, master: str = ""
) -> Launch:
    """What to run on this machine."""
    return assemble(recipe, model, port=port, node=Node.of(rank, master))


def refusals(recipe: Recipe, box: Box | None, model: Model | None) -> list[Caution]:
    """Known reasons why this will not start, or will disappoint."""
    return refuse.vllm(recipe, box, model)


RANK = r"(?:\(Worker_?(?P<device>\w*) .*)?"  # "(Worker_TP3 pid=…) INFO …": which rank speaks
SIGNS = (
    sign(r"Application startup complete", "ready", "ready"),  # uvicorn
    sign(
        r"Loading \w+ checkpoint shards:\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+)",
        "progress",
        "loading weights",
    ),
    sign(r"Starting to load model ", "phase", "loading weights"),  # gpu_model_runner.py
    sign(r"Loading weights took (?P<load_s>[\d.]+) seconds", "fact", "loading weights"),  # default_loader.py
    sign(
        RANK + r"Model loading took (?P<weights_bytes>[\d.]+) GiB memory and (?P<load_s>[\d.]+) seconds",
        "fact",
        "compiling",
        weights_bytes=GIB,
    ),
    sign(r"Dynamo bytecode transform time|Compiling a graph for compile range", "phase", "compiling"),
    sign(r"torch.compile took (?P<compile_s>[\d.]+) s in total", "fact", "allocating cache"),
    sign(
        RANK + r"Available KV cache memory: (?P<kv_bytes>[\d.]+) GiB", "fact", "allocating cache", kv_bytes=GIB
    ),  # gpu_worker.py
    sign(
        r"KV cache size: (?P<kv_tokens>[\d,]+) tokens"  # kv_cache_utils.py; one line in 0.32, two before
        r"(?:, Maximum concurrency for (?P<context>[\d,]+) tokens per request: (?P<max_concurrency>[\d.]+)x)?",
        "fact",
        "allocating cache",
    ),
    sign(r"Maximum concurrency for [\d,]+ tokens per request: (?P<max_concurrency>[\d.]+)x", "fact"),
    sign(r"Capturing CUDA graphs.*?\s(?P<done>\d+)/(?P<total>\d+)", "progress", "capturing graphs"),
    sign(r"Profiling CUDA graph memory|Capturing CUDA graph", "phase", "capturing graphs"),
    sign(
        r"Graph capturing finished in (?P<graph_s>[\d.]+) secs, took (?P<graph_bytes>[\d.]+) GiB",
        "fact",
        "capturing graphs",
        graph_bytes=GIB,
    ),
    sign(
        RANK + r"Free memory on device .* Actual usage is (?P<used_bytes>[\d.]+) GiB for consumed memory.*?"
        r"(?P<activation_bytes>[\d.]+) GiB for peak activation, and (?P<graph_bytes>[\d.]+) GiB",
        "fact",
        used_bytes=GIB,
        activation_bytes=GIB,
        graph_bytes=GIB,
    ),
    sign(r"init engine \(profile, create kv cache, warmup model\) took (?P<init_s>[\d.]+) s", "fact"),
    sign(r"Initializing a V1 LLM engine", "phase", "starting"),
    sign(r"WorkerProc failed to start|WorkerProc hit an exception|EngineCore failed to start", "error"),
    sign(r"EngineCore encountered a fatal error|Worker proc \S+ died unexpectedly", "error"),
    sign(r"vllm: error: |Address already in use|torch\.OutOfMemoryError|out of resource: shared memory", "error"),
    sign(
        r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?"
        r"(?:Value|Runtime|Key|NotImplemented|Timeout|OS)Error: ",
        "error",
    ),
)


def event(line: str) -> Event | None:
    """What a line of the log tells."""
    return read(line, SIGNS)
