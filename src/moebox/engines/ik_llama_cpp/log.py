"""ik_llama.cpp's log, line by line, as the sources of April and August 2026 print it."""

from moebox.engines.events import MIB, LogEvent, log_pattern, match_line

PATTERNS = (
    log_pattern(r"HTTP server listening", "ready", "ready"),
    log_pattern(r"llama_model_loader: loaded meta data", "phase", "loading weights"),
    log_pattern(
        r"llm_load_tensors:\s+(?P<device>\S+) buffer size =\s+(?P<weights_bytes>[\d.]+) MiB",
        "fact",
        "loading weights",
        weights_bytes=MIB,
    ),
    log_pattern(
        r"llama_kv_cache_init:\s+(?P<device>\S+) KV buffer size =\s+(?P<kv_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        kv_bytes=MIB,
    ),
    log_pattern(
        r"llama_(?:init_from_model|new_context_with_model): n_ctx\s+= (?P<kv_tokens>\d+)", "fact", "allocating cache"
    ),
    log_pattern(
        r"llama_(?:init_from_model|new_context_with_model):\s+(?P<device>\S+) compute buffer size =\s+"
        r"(?P<activation_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        activation_bytes=MIB,
    ),
    log_pattern(r"KV self size\s+=\s+(?P<kv_bytes>[\d.]+) MiB", "fact", "allocating cache", kv_bytes=MIB),
    log_pattern(r"main\] build info", "phase", "starting"),
    log_pattern(r"error: unknown argument: |error: invalid parameter for argument|invalid ggml type", "error"),
    log_pattern(r"couldn't bind|unable to load model|failed to load model|error loading model", "error"),
    log_pattern(r"CUDA error|out of memory|GGML_ASSERT", "error"),
)


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)
