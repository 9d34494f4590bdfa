"""What ik_llama.cpp is: the fork of llama.cpp with absorbed MLA and quantisations of its own.

Its server has no RPC workers and no drafts.
"""

from moebox.core.traits import Traits

TRAITS = Traits(
    name="ik_llama.cpp",
    title="ik_llama.cpp",
    rank=30,
    formats=("gguf",),
    hybrid_fields=frozenset(
        {"experts", "gpu_layers", "threads", "threads_batch", "batch", "ubatch", "ranges", "mla", "attention_buffer"}
    ),
    mla_modes=True,
    kv=("auto", "f16", "bf16", "q8_0", "q4_0"),
    kv_auto="f16",
    kv_tiers="slots",
    runs_without_gpu=True,
    unsupported_generations=("cdna",),  # CPU and CUDA backends alone are kept up (README of the project)
    has_slots=True,
    key_env="LLAMA_API_KEY",
    cache_variable="LLAMA_CACHE",
    image="ghcr.io/ikawrakow/ik-llama-cpp:cu13-server",
    image_entry=("/app/llama-server",),
    image_has_entrypoint=True,
    uses_all_gpus=True,
    needs_gguf_filename=True,  # common.cpp: "--hf-repo requires either --hf-file or --model"
    own_call_ids=False,
    install="build its llama-server and put it on PATH, or name it in runtime.entry",
    step_tokens=512,
    tools_under_none="shown",
)
