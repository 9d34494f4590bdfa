"""SGLang's log, line by line, as 0.5.23 prints it. Its GB are 2**30 bytes (common.py get_available_gpu_memory)."""

from moebox.engines.events import GIB, LogEvent, log_pattern, match_line

PATTERNS = (
    log_pattern(r"The server is fired up and ready to roll", "ready", "ready"),  # http_server.py
    log_pattern(
        r"Loading safetensors[\w ]*:\s+\d+% Completed \| (?P<done>\d+)/(?P<total>\d+)", "progress", "loading weights"
    ),
    log_pattern(r"Load weight begin\. avail mem=(?P<free_bytes>[\d.]+) GB", "fact", "loading weights", free_bytes=GIB),
    log_pattern(
        r"(?:TP(?P<device>\d+).*)?Load weight end\. (?:elapsed=(?P<load_s>[\d.]+) s, )?.*"
        r"mem usage=(?P<weights_bytes>[\d.]+) GB",
        "fact",
        "allocating cache",
        weights_bytes=GIB,
    ),
    log_pattern(r"KV Cache is allocated.*#tokens: (?P<kv_tokens>\d+)", "fact", "allocating cache"),
    log_pattern(r"Memory pool end\. avail mem=(?P<free_bytes>[\d.]+) GB", "fact", "capturing graphs", free_bytes=GIB),
    log_pattern(r"Capturing batches.*?(?P<done>\d+)/(?P<total>\d+)", "progress", "capturing graphs"),
    log_pattern(r"Capture [\w ]*cuda graph begin|Capture [\w ]*CUDA graph begin", "phase", "capturing graphs"),
    log_pattern(r"Capture [\w ]*(?:cuda|CUDA) graph end.*elapsed=(?P<graph_s>[\d.]+) s", "fact", "capturing graphs"),
    log_pattern(
        r"max_total_num_tokens=(?P<kv_tokens>\d+), .*max_running_requests=(?P<max_concurrency>\d+), "
        r"context_len=(?P<context>\d+)",
        "fact",
    ),  # scheduler.py
    log_pattern(r"server_args=", "phase", "starting"),
    log_pattern(r"Scheduler hit an exception|Capture cuda graph failed|Received sigquit from a child process", "error"),
    log_pattern(r"sglang serve: error: |launch_server.py: error: |[Aa]ddress already in use", "error"),
    log_pattern(r"torch\.OutOfMemoryError|out of resource: shared memory|RuntimeError: Not enough memory", "error"),
)


def parse_log_line(line: str) -> LogEvent | None:
    """What a line of the log tells."""
    return match_line(line, PATTERNS)
