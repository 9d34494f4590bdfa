"""Time gpt-oss's MXFP4 experts by triton_kernels alone, and SGLang's even routing, on the GPU at hand.

    python benchmarks/kernels/experts.py

Needs the package triton_kernels, which SGLang's kernels bring. Microseconds of one layer within a CUDA graph; experts
are of three layers, which no cache holds, and chosen by random logits, so that all are used alike.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from triton_kernels import matmul_ogs as products
from triton_kernels.matmul_ogs_details.opt_flags import update_opt_flags_constraints
from triton_kernels.numerics import InFlexData
from triton_kernels.swiglu import swiglu_fn
from triton_kernels.tensor import FP4, convert_layout, make_ragged_tensor_metadata, wrap_torch_tensor
from triton_kernels.tensor_details import layout
from triton_kernels.topk import topk

EXPERTS, USED, SIZE = 128, 4, 2880  # gpt-oss-120b, whose experts are as wide as its layers
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192)
WARPS, SPLITS = 8, 1  # SGLang's on Hopper
Product = tuple[object, products.PrecisionConfig, torch.Tensor]  # weights, their scales, bias
Routing = tuple[products.RoutingData, products.GatherIndx, products.ScatterIndx]


def main() -> None:
    update_opt_flags_constraints({"split_k": SPLITS})
    layers = [(random_product(2 * SIZE), random_product(SIZE)) for _ in range(3)]
    for tokens in TOKENS:
        graph = 24 if tokens <= 512 else 6  # layers
        logits = [torch.randn(tokens, EXPERTS, device="cuda", dtype=torch.bfloat16) for _ in range(12)]
        steps = [partial(run_experts, *layers[turn % 3], logits[turn % 12]) for turn in range(graph)]
        print(f"{tokens} tokens: experts {graph_us(steps):.1f}, of which routing", end=" ")
        print(f"{graph_us([partial(route, each) for each in logits]):.1f}", end="")
        print(f"; even routing {graph_us([partial(spread_evenly, tokens)] * 40):.1f}", flush=True)


def random_product(rows: int) -> Product:
    """Weights and scales as the checkpoint stores them, in the kernel's layout."""
    values = torch.randint(0, 255, (EXPERTS, rows, SIZE // 2), dtype=torch.uint8, device="cuda").transpose(-2, -1)
    scales = torch.randint(118, 122, (EXPERTS, rows, SIZE // 32), dtype=torch.uint8, device="cuda").transpose(-2, -1)
    form, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    weights = convert_layout(wrap_torch_tensor(values, dtype=FP4), form, **options)
    form, options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=WARPS)
    scale = convert_layout(wrap_torch_tensor(scales), form, **options)
    config = products.PrecisionConfig(weight_scale=scale, flex_ctx=products.FlexCtx(rhs_data=InFlexData()))
    return weights, config, torch.zeros(EXPERTS, rows, device="cuda")


def route(logits: torch.Tensor) -> Routing:
    """Choose experts and sort tokens by them."""
    chosen = topk(logits, USED, apply_softmax=True)
    rows, columns = chosen.mask_metadata.row_sorted_indx, chosen.mask_metadata.col_sorted_indx
    parts = make_ragged_tensor_metadata(chosen.mask_metadata.col_sum, rows.shape[0])
    routed = products.RoutingData(chosen.vals.flatten()[columns], parts.slice_sizes, EXPERTS, USED, parts)
    return routed, products.GatherIndx(columns, rows), products.ScatterIndx(rows, columns)


def run_experts(up: Product, down: Product, logits: torch.Tensor) -> torch.Tensor:
    """Route, multiply by both halves of the experts, and add up."""
    tokens, (routed, gather, scatter) = len(logits), route(logits)
    inputs = torch.empty(tokens, SIZE, device="cuda", dtype=torch.bfloat16)
    middle = torch.empty(1, tokens * USED, SIZE, device="cuda", dtype=torch.bfloat16)
    output = torch.empty(1, tokens, SIZE, device="cuda", dtype=torch.bfloat16)
    specs = products.FnSpecs("swiglu", swiglu_fn, ("alpha", "limit"), reduction_n=2)
    given = {"gather_indx": gather, "fused_activation": products.FusedActivation(specs, (1.702, 7.0)), "y": middle}
    products.matmul_ogs(inputs, up[0], up[2], routed, precision_config=up[1], **given)
    given = {"scatter_indx": scatter, "gammas": routed.gate_scal, "y": output}
    products.matmul_ogs(middle[0], down[0], down[2], routed, precision_config=down[1], **given)
    return output


def spread_evenly(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What SGLang computes behind a router if SGLANG_SIMULATE_UNIFORM_EXPERTS is set."""
    first = torch.randint(0, EXPERTS, (tokens, 1), device="cuda")
    places = torch.arange(USED, device="cuda").unsqueeze(0) * (EXPERTS // USED)
    return ((first + places) % EXPERTS).to(torch.int32), torch.ones(tokens, USED, device="cuda") / USED


def graph_us(steps: Sequence[Callable[[], object]]) -> float:
    """Return the microseconds of a step within a CUDA graph of all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # compiled before they are captured
        for step in steps[:3]:
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [step() for step in steps]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        graph.replay()
    start.record()
    for _ in range(20):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    del kept
    return float(1e3 * start.elapsed_time(end) / 20 / len(steps))


if __name__ == "__main__":
    main()
