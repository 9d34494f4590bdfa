"""What KTransformers is: the traits of its SGLang fork, with experts in RAM that kt-kernel computes on the CPU.

Read in November 2026 from kvcache-ai/ktransformers, doc/en/kt-kernel.
"""

from dataclasses import replace

from moebox.engines.sglang.traits import TRAITS as SGLANG

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
    draft_methods=(),
    proposes_dcp=False,
    unsupported_generations=("cdna",),
    local_weights_only=True,  # kt-kernel, of the experts (Native-Precision-Tutorial.md)
    owned_by="",
    image="",  # none of the project's images holds kt-kernel and the fork together
    image_entry=("python3", "-m", "sglang.launch_server"),
    package="kt-kernel",
    program=(),
    moe_config_env="",
    install="pip install kt-kernel sglang-kt (the kvcache-ai fork, instead of sglang)",
)
