"""A program for Triton's interpreter: an engine's fused MoE kernels on the CPU, small, against float32.

python interpreted.py sglang|vllm FOLDER: prints [kind, product, relative error] a line. The interpreter multiplies
bf16 as integers, so float16 stands in for it.
"""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl

from moebox_kernels.probe import sglang, tune_experts, vllm
from moebox_kernels.probe.protocol import ProbeGpu
from moebox_kernels.probe.space import RankShape

CHOICE = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2,
}  # fmt: skip
BF16 = torch.bfloat16
TARGET = ProbeGpu(capability=80, sms=100, device_name="A GPU", memory=0, smem=0)


def values(device: str, *sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random values, half precision instead of bf16."""
    return (torch.randn(*sizes, device=device) * 0.5).to(torch.float16 if dtype == BF16 else dtype)


def main(engine: str, root: Path) -> None:
    """Every kind of weights, each product by itself."""
    torch.manual_seed(1)
    experts: Any
    if engine == "sglang":
        sglang.open_files(root, TARGET)
        experts, choice = tune_experts.SglangExperts(root), CHOICE
    else:
        vllm.open_files(root, TARGET)
        experts, choice = tune_experts.VllmExperts(), {**CHOICE, "SPLIT_K": 1}
    tune_experts.random_tensor = values
    tune_experts.tl = types.SimpleNamespace(bfloat16=tl.float16)
    shape = RankShape(hidden=256, experts=16, intermediate=128)
    for kind in ("bf16", "fp8_w8a8 block", "int4_w4a16"):
        for product in (0, 1):
            bench = tune_experts.build_case(experts, shape, kind, 3, (product,), "cpu")
            (wanted,) = bench.references()
            bench.run(choice)
            (found,) = bench.outputs()
            print(json.dumps([kind, product, float((found - wanted).norm() / wanted.norm())]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
