"""What SGLang is."""

from moebox.core.traits import Traits

TRAITS = Traits(
    name="sglang",
    title="SGLang",
    rank=20,
    formats=("safetensors",),
    shards=frozenset({"tp", "pp", "dp", "ep", "dcp", "nodes"}),
    kv=("auto", "fp8", "bf16", "nvfp4"),
    kv_auto="bf16",
    kv_tiers="blocks",
    # http_server.py of 0.5.23; without the backup in RAM the weights would have to be loaded again by another call.
    sleep_flags={"enable-memory-saver": True, "enable-weights-cpu-backup": True},
    sleep_levels={"1": ("/release_memory_occupation",)},
    resume_calls={"1": ("/resume_memory_occupation",)},
    draft_methods=("eagle3", "mtp", "ngram", "dflash", "dspark"),
    # Otherwise the draft gets the target's backend, and trtllm_mla takes no plain heads (start rules of 0.5.10-0.5.23).
    draft_flags={
        "hopper": {"speculative-draft-attention-backend": "fa3"},
        "blackwell": {"speculative-draft-attention-backend": "trtllm_mha"},
        "blackwell-rtx": {"speculative-draft-attention-backend": "triton"},
    },
    no_sparse_mla_generations=("ampere", "ampere-rtx", "ada"),  # its sparse decode kernels begin at Hopper
    ports=(10_000,),  # gRPC beside HTTP since 0.5.15 (server_args.py: grpc_port = port + 10000)
    rendezvous_port=20000,  # as in SGLang's own multi-node examples
    owned_by="sglang",
    key_env="SGLANG_API_KEY",
    image="lmsysorg/sglang:v{version}",
    image_entry=("python3", "-m", "sglang.launch_server"),
    image_has_entrypoint=False,  # the image has no server as its entry point: the whole command follows it
    shares_memory=True,
    package="sglang",
    program=("sglang",),
    moe_config_env="SGLANG_MOE_CONFIG_DIR",
    moe_config_pairs=True,
    install='pip install sglang, or runtime.kind = "docker" in the recipe',
    step_tokens=8192,
    needs_parser_flags=True,
    # Names of 0.5.23's --tool-call-parser and --reasoning-parser choices, where vLLM's are others.
    tool_parsers={
        "deepseek_v3": "deepseekv3",
        "deepseek_v31": "deepseekv31",
        "deepseek_v32": "deepseekv32",
        "deepseek_v4": "deepseekv4",
        "deepseek_v41": "deepseekv41",
        "hy_v3": "hunyuan",
        "minimax_m2": "minimax-m2",
        "minimax_m3": "minimax-m3",
        "openai": "gpt-oss",
        "qwen3_xml": "qwen3_coder",
    },
    reasoning_parsers={
        "deepseek_r1": "deepseek-r1",
        "deepseek_v3": "deepseek-v3",
        "deepseek_v4": "deepseek-v4",
        "deepseek_v41": "deepseek-v41",
        "hy_v3": "hunyuan",
        "minimax_m2": "minimax",
        "minimax_m3": "minimax-m3",
        "nemotron_v3": "nemotron_3",
        "openai_gptoss": "gpt-oss",
    },
    tools_under_none="hidden",
)
