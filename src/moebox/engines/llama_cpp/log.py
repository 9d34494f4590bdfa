"""llama-server's log, line by line, as b11669 prints it with `-lv 4`."""

from moebox.engines.events import MIB, LogEvent, log_pattern, match_line

PATTERNS = (
    log_pattern(r"srv\s+llama_server: model loaded|listening on http://", "ready", "ready"),
    log_pattern(r"load_model: loading model", "phase", "loading weights"),
    log_pattern(
        r"load_tensors:\s+(?P<device>\S+) model buffer size =\s+(?P<weights_bytes>[\d.]+) MiB",
        "fact",
        "loading weights",
        weights_bytes=MIB,
    ),
    log_pattern(
        r"llama_kv_cache:\s+(?P<device>\S+) KV buffer size =\s+(?P<kv_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        kv_bytes=MIB,
    ),
    log_pattern(r"llama_context: n_ctx\s+= (?P<kv_tokens>\d+)", "fact", "allocating cache"),
    log_pattern(
        r"sched_reserve:\s+(?P<device>\S+) compute buffer size =\s+(?P<activation_bytes>[\d.]+) MiB",
        "fact",
        "allocating cache",
        activation_bytes=MIB,
    ),
    log_pattern(r"warming up the model", "phase", "compiling"),
    log_pattern(r"srv\s+llama_server: initializing", "phase", "starting"),
    log_pattern(r"error: invalid argument: |error while handling argument|invalid ggml type", "error"),
    log_pattern(
        r"couldn't bind|failed to load model|error loading model|CUDA error|out of memory|GGML_ASSERT", "error"
    ),
)


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)
