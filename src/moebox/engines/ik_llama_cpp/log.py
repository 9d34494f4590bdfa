"""ik_llama.cpp's log, line by line, as the sources of April and August 2026 print it."""

from moebox.engines.events import MIB, Event, read, sign

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
