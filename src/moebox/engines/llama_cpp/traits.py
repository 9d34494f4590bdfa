"""What mainline llama.cpp is."""

from moebox.core.traits import Traits

TRAITS = Traits(
    name="llama.cpp",
    title="llama.cpp",
    rank=40,
    formats=("gguf",),
    shards=frozenset({"nodes"}),
    hybrid_fields=frozenset(
        {"experts", "gpu_layers", "threads", "threads_batch", "batch", "ubatch", "ranges", "split"}
    ),
    kv=("auto", "f16", "bf16", "q8_0", "q4_0"),
    kv_auto="f16",
    kv_tiers="slots",
    draft_methods=("eagle3", "mtp", "ngram"),
    runs_without_gpu=True,
    has_slots=True,
    owned_by="llamacpp",
    key_env="LLAMA_API_KEY",
    cache_variable="LLAMA_CACHE",
    image="ghcr.io/ggml-org/llama.cpp:server-cuda-{version}",
    image_entry=("/app/llama-server",),
    image_has_entrypoint=True,
    uses_all_gpus=True,
    joins_neighbours=True,
    embedded=True,
    own_call_ids=False,
    worker_programs=("ggml-rpc-server", "rpc-server"),  # the second is its name until 2026
    worker_port=1,
    packages=("xllamacpp",),
    program=("llama-server",),
    install="build llama-server, or `--set runtime.kind=embedded`",
    step_tokens=512,
    tools_under_none="shown",  # its server gives the template the tools in any case
)
