"""vLLM's log, line by line, as 0.32.0 prints it (its file names are in the comments)."""

from moebox.engines.events import GIB, LogEvent, log_pattern, match_line

RANK = r"(?:\(Worker_?(?P<device>\w*) .*)?"  # "(Worker_TP3 pid=…) INFO …": which rank speaks
PATTERNS = (
    log_pattern(r"Application startup complete", "ready", "ready"),  # uvicorn
    log_pattern(
        r"Loading \w+ checkpoint shards:\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+)",
        "progress",
        "loading weights",
    ),
    log_pattern(r"Starting to load model ", "phase", "loading weights"),  # gpu_model_runner.py
    log_pattern(r"Loading weights took (?P<load_s>[\d.]+) seconds", "fact", "loading weights"),  # default_loader.py
    log_pattern(
        RANK + r"Model loading took (?P<weights_bytes>[\d.]+) GiB memory and (?P<load_s>[\d.]+) seconds",
        "fact",
        "compiling",
        weights_bytes=GIB,
    ),
    log_pattern(r"Dynamo bytecode transform time|Compiling a graph for compile range", "phase", "compiling"),
    log_pattern(r"torch.compile took (?P<compile_s>[\d.]+) s in total", "fact", "allocating cache"),
    log_pattern(
        RANK + r"Available KV cache memory: (?P<kv_bytes>[\d.]+) GiB", "fact", "allocating cache", kv_bytes=GIB
    ),  # gpu_worker.py
    log_pattern(
        r"KV cache size: (?P<kv_tokens>[\d,]+) tokens"  # kv_cache_utils.py; one line in 0.32, two before
        r"(?:, Maximum concurrency for (?P<context>[\d,]+) tokens per request: (?P<max_concurrency>[\d.]+)x)?",
        "fact",
        "allocating cache",
    ),
    log_pattern(r"Maximum concurrency for [\d,]+ tokens per request: (?P<max_concurrency>[\d.]+)x", "fact"),
    log_pattern(r"Capturing CUDA graphs.*?\s(?P<done>\d+)/(?P<total>\d+)", "progress", "capturing graphs"),
    log_pattern(r"Profiling CUDA graph memory|Capturing CUDA graph", "phase", "capturing graphs"),
    log_pattern(
        r"Graph capturing finished in (?P<graph_s>[\d.]+) secs, took (?P<graph_bytes>[\d.]+) GiB",
        "fact",
        "capturing graphs",
        graph_bytes=GIB,
    ),
    log_pattern(
        RANK + r"Free memory on device .* Actual usage is (?P<used_bytes>[\d.]+) GiB for consumed memory.*?"
        r"(?P<activation_bytes>[\d.]+) GiB for peak activation, and (?P<graph_bytes>[\d.]+) GiB",
        "fact",
        used_bytes=GIB,
        activation_bytes=GIB,
        graph_bytes=GIB,
    ),
    log_pattern(
        RANK + r"Free memory on device .* Actual usage is (?P<weights_bytes>[\d.]+) GiB for weight, "
        r"(?P<activation_bytes>[\d.]+) GiB for peak activation, (?P<non_torch_bytes>[\d.]+) GiB for non-torch memory, "
        r"and (?P<graph_bytes>[\d.]+) GiB for CUDAGraph",
        "fact",
        weights_bytes=GIB,
        activation_bytes=GIB,
        non_torch_bytes=GIB,
        graph_bytes=GIB,
    ),
    log_pattern(r"init engine \(profile, create kv cache, warmup model\) took (?P<init_s>[\d.]+) s", "fact"),
    log_pattern(r"Initializing a V1 LLM engine", "phase", "starting"),
    log_pattern(r"WorkerProc failed to start|WorkerProc hit an exception|EngineCore failed to start", "error"),
    log_pattern(r"EngineCore encountered a fatal error|Worker proc \S+ died unexpectedly", "error"),
    log_pattern(
        r"vllm: error: |Address already in use|torch\.OutOfMemoryError|out of resource: shared memory", "error"
    ),
    log_pattern(
        r"^(?:\([^)]*\) )?(?:ERROR [^\]]*\] )?"
        r"(?:Value|Runtime|Key|NotImplemented|Timeout|OS)Error: ",
        "error",
    ),
)


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)
