"""The arithmetic of a decode step as lines a person can check with a calculator."""

from moebox.core.box import Gpu
from moebox.core.plan import ArithmeticLine
from moebox.planner.speed.constants import unified_memory
from moebox.planner.speed.host import HybridStep
from moebox.planner.speed.measured import MeasuredSpeed
from moebox.planner.speed.step import GpuStep


def explain_step(
    gpu_step: GpuStep | None,
    shared: HybridStep | None,
    batch: int,
    context: int,
    gain: float,
    band: tuple[float, float],
    basis: str,
) -> tuple[ArithmeticLine, ...]:
    """Every part of a step with its formula and where its constants come from, then the sum and the rate."""
    if gpu_step is not None:
        parts, wording = gpu_step.step_parts(batch, context), _on_gpus(gpu_step, batch, context)
    else:
        assert shared is not None
        parts, wording = shared.decode_parts(batch, context), _in_ram(shared, batch, context)
    lines = []
    for name, seconds in parts.items():
        formula, source = wording.get(name, ("", ""))
        lines.append(ArithmeticLine(what=name, formula=formula, value=seconds * 1e3, unit="ms", source=source))
    step = sum(parts.values())
    lines.append(ArithmeticLine(what="step", formula="sum of the above", value=step * 1e3, unit="ms"))
    rate = batch * gain / step
    lines.append(ArithmeticLine(what="decode", formula=f"{batch} × {gain:.2f} tokens / step", value=rate, unit="tok/s"))
    lines.append(
        ArithmeticLine(
            what="band",
            formula=f"× {band[0]:.2f} … × {band[1]:.2f}; {basis}",
            value=rate * band[0],
            unit="tok/s",
            source=f"to {rate * band[1]:,.1f} tok/s",
        )
    )
    return tuple(lines)


def explain_measured(
    measured: MeasuredSpeed, batch: int, context: int, band: tuple[float, float]
) -> tuple[ArithmeticLine, ...]:
    """A step that was timed on the box: the depths it comes from, then the rate."""
    seconds = measured.step_s(batch, context)
    rate = batch / seconds
    return (
        ArithmeticLine(
            what="step", formula=measured.text, value=seconds * 1e3, unit="ms", source=measured.calibration.id
        ),
        ArithmeticLine(what="decode", formula=f"{batch} tokens / step", value=rate, unit="tok/s"),
        ArithmeticLine(what="band", formula=f"× {band[0]:.2f} … × {band[1]:.2f}", value=rate * band[0], unit="tok/s"),
    )


def _on_gpus(step: GpuStep, batch: int, context: int) -> dict[str, tuple[str, str]]:
    """Each part as a formula in milliseconds (MB / (GB/s) and GFLOP / (TFLOP/s) are such), then what it stands for."""
    rank, c, gpu, model = step.rank, step.constants, step.gpu, step.rank.model
    here = max(batch / (rank.pp * rank.dp), 1.0)  # stages and data-parallel groups work at the same time
    tokens = here * (1 + step.draft_tokens)
    memory, compute = f"{gpu.bandwidth / 1e9:.0f} GB/s", f"{gpu.bf16 / 1e12:.1f} TFLOP/s"
    work = step.dense_seconds(tokens) * 1e3
    size = tokens * model.hidden * 2
    one = step.fabric.all_reduce(rank.tp, size) * 1e3
    rest = step.all_reduce_seconds(tokens) * 1e3 - 2 * model.layers * one
    attention = " + ".join(
        f"{layers.count} × {step.layer_attention(layers, here, context) * 1e3:.6f} ms" for layers in rank.layers
    )
    texts = {
        "host": _host(step, here),
        "small kernels": (
            f"√(({step.kernel_layers:.1f} × {c.layer_us / 1e3:.6f} ms)² + ({work:.6f} ms)²) - {work:.6f} ms; "
            "reading weights hides a part of it",
            c.source,
        ),
        "dense weights": (
            f"√(({rank.dense_bytes / 1e6:.3f} MB / ({memory} × {c.dense_bw:.4f}))² + "
            f"({tokens:g} × {rank.dense_flops / 1e9:.5f} GFLOP / ({compute} × {c.gemm:.4f}))²); of one rank"
            f"{_of_paper(gpu)}",
            _with_memory(gpu, c.source),
        ),
        "attention": (
            f"{attention or '0'}; {tokens:g} queries at {context} tokens / DCP {rank.dcp}, heads padded to "
            f"{c.head_tile}",
            c.source,
        ),
        "all-reduce": (
            f"2 × {model.layers} × {one:.6f} ms + {rest:.6f} ms; {size:,.0f} B over {rank.tp} ranks, "
            f"{step.fabric.rate * step.fabric.wire.bus / 1e9:.1f} GB/s bus",
            step.fabric.wire.source,
        ),
        "context parallel": (
            f"{model.layers} × {step.context_parallel_seconds(tokens) * 1e3 / model.layers:.6f} ms; "
            f"queries and outputs of {rank.dcp} ranks gathered",
            step.fabric.wire.source,
        ),
        "waiting for stages": (f"{step.stage_loss(batch):.0%} of the above, {rank.pp} stages", "assumed"),
        "waiting for launches": _launches(step, batch, context),
    }
    if model.moe:
        texts["experts"] = _experts(step, tokens * rank.dp, memory, compute)
    if step.draft:
        each = step.draft_seconds(here, 0.0) * 1e3 / max(step.draft_tokens, 1)
        texts["draft"] = (f"{step.draft_tokens} × {each:.6f} ms; one pass for each draft token", step.draft.source)
    return texts


def _of_paper(gpu: Gpu) -> str:
    """Of shared memory the step has what a kernel reads, not the datasheet's rate."""
    return f"; its memory at {unified_memory().rate} of the datasheet's rate" if gpu.unified else ""


def _with_memory(gpu: Gpu, source: str) -> str:
    return f"{source}; shared memory: {unified_memory().source}" if gpu.unified else source


def _launches(step: GpuStep, batch: float, context: int) -> tuple[str, str]:
    rest = sum(value for name, value in step.step_parts(batch, context).items() if name != "waiting for launches") * 1e3
    each = f"{step.kernel_layers:.2f} × {step.constants.eager_us / 1e3:.5f} ms × {step.host_factor:.4f}"
    text = f"(({each})⁴ + ({rest:.6f} ms)⁴)^¼ - {rest:.6f} ms; the host launches kernels one by one, no graphs"
    return text, step.constants.source


def _host(step: GpuStep, batch: float) -> tuple[str, str]:
    base, more = f"{step.constants.step_us / 1e3:.4f} ms", step.overhead
    if more is None:
        return f"{base} × {step.host_factor:.4f}; scheduling and sampling, for this CPU", step.constants.source
    added = f"{more.step_us / 1e3:.4f} ms + {batch:g} × {more.sequence_us / 1e3:.4f} ms"
    text = f"({base} + {added}) × {step.host_factor:.4f}; scheduling and sampling, for this CPU, before {more.before}"
    return text, more.source


def _experts(step: GpuStep, tokens: float, memory: str, compute: str) -> tuple[str, str]:
    rank, kernel, moe = step.rank, step.kernel, step.rank.model.moe
    assert moe is not None
    share = min(kernel.bandwidth * step.constants.experts, 1)
    return (
        f"{rank.model.moe_layers} × {kernel.fixed_us / 1e3:.5f} ms + "
        f"√(({rank.expert_bytes_read(tokens) / 1e6:.3f} MB / ({memory} × {share:.4f}))² + "
        f"({rank.expert_step_flops(tokens) / 1e9:.4f} GFLOP / ({compute} × {kernel.flops:.4f}))²); "
        f"{moe.experts}(1-(1-{moe.used}/{moe.experts})^{tokens:g}) = "
        f"{rank.distinct_experts(tokens):.1f} experts a layer",
        _with_memory(step.gpu, kernel.source),
    )


def _in_ram(shared: HybridStep, batch: int, context: int) -> dict[str, tuple[str, str]]:
    c, each = shared.constants, shared.rank.expert_bytes / 1e6
    woken = shared.distinct_experts(batch)
    device = shared.gpu.bandwidth * c.gpu_bw * shared.ranks if shared.gpu else shared.ram_rate
    source = _with_memory(shared.gpu, c.source) if shared.gpu else c.source
    dense = f"{shared.rank.dense_bytes / 1e9:.2f} GB / {device / 1e9:.0f} GB/s"
    if not shared.gpu and batch > 1 and not c.shares_unpacking:
        dense = f"{batch} × {dense}; each token unpacks them"
    return {
        "experts in RAM": (_expert_layers(shared, batch), source),
        "experts on GPUs": (
            f"{shared.layers_on_gpus} layers × {woken:.1f} × {each:.2f} MB / {device / 1e9:.0f} GB/s",
            source,
        ),
        "dense weights": (dense, source),
        "fixed": (f"{shared.model.layers} layers × {c.gpu_layer_us:.0f} us", source),
        "attention": (_cache(shared, batch, context), source),
        "network": (shared.hops.formula(batch, context) if shared.hops else "", "llama.cpp's ggml-rpc.cpp, counted"),
    }


def _expert_layers(shared: HybridStep, batch: int) -> str:
    c, each = shared.constants, shared.rank.expert_bytes / 1e6
    moe, layers = shared.model.moe, f"{shared.layers_in_ram:g} layers"
    if batch > 1 and moe and not c.shares_unpacking:
        rate = f"{shared.unpack_rate / 1e9:.0f} GB/s"
        return f"{layers} × ({batch} × {moe.used} experts × {each:.2f} MB unpacked at {rate} + {c.layer_us:.0f} us)"
    woken = shared.distinct_experts(batch)
    return f"{layers} × ({woken:.1f} experts × {each:.2f} MB / {shared.ram_rate / 1e9:.0f} GB/s + {c.layer_us:.0f} us)"


def _cache(shared: HybridStep, batch: int, context: int) -> str:
    read = f"{batch} × {shared.rank.cache_bytes_read(context) / 1e6:.1f} MB of cache at {context} tokens"
    if shared.gpu:
        return read
    rate = shared.constants.core_attention or shared.core_flops
    return f"{read}, or their operations at {shared.threads} × {rate / 1e9:.0f} GFLOP/s"
