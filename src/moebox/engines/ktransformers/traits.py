"""What KTransformers is: the traits of its SGLang fork, with experts in RAM that kt-kernel computes on the CPU."""

from dataclasses import replace

from moebox.engines.sglang.traits import TRAITS as SGLANG

# Parsers that SGLang 0.5.23 has and the fork (sglang-kt 0.7.2, read in November 2026) lacks: launches leave them out.
NO_TOOL_PARSER = dict.fromkeys(("deepseek_v41", "hy_v3", "kimi_k3", "poolside_v1"), "")
NO_REASONING_PARSER = dict.fromkeys(("deepseek_v41", "hy_v3", "mimo", "poolside_v1"), "")

TRAITS = replace(
    SGLANG,
    name="ktransformers",
    title="KTransformers",
    rank=50,
    is_proven=False,  # few published rows, and they disagree by a factor of two
    shards=frozenset({"tp"}),
    hybrid_fields=frozenset({"threads", "pools", "gpu_experts"}),
    splits_layers=True,
    kv=("auto", "fp8", "bf16"),
    kv_tiers="blocks",
    tool_parsers={**SGLANG.tool_parsers, **NO_TOOL_PARSER},
    reasoning_parsers={**SGLANG.reasoning_parsers, **NO_REASONING_PARSER, "nemotron_v3": "nano_v3"},
    draft_methods=(),
    proposes_dcp=False,
    unsupported_generations=("cdna",),
    no_sparse_mla_generations=("ampere", "ampere-rtx"),  # V4 has a Triton path on Ada (ktransformers#1970)
    local_weights_only=True,  # kt-kernel, of the experts (Native-Precision-Tutorial.md)
    owned_by="",
    image="",  # none of the project's images holds kt-kernel and the fork together
    image_entry=("python3", "-m", "sglang.launch_server"),
    package="kt-kernel",
    program=(),
    moe_config_env="",
    install="pip install kt-kernel sglang-kt (the kvcache-ai fork, instead of sglang)",
)
