"""The arithmetic of a decode step as lines that users can check with a calculator."""

from moebox.core.plan import ArithmeticLine
from moebox.planner.speed.constants import unified_memory
from moebox.planner.speed.host import HybridStep
from moebox.planner.speed.measured import MeasuredSpeed
from moebox.planner.speed.step import GpuStep
from moebox.units import plural

Formulas = dict[str, tuple[str, str]]  # part to its formula and the source of its constants


def explain_step(
    step: GpuStep | HybridStep, batch: int, context: int, gain: float, factors: tuple[float, float], basis: str
) -> tuple[ArithmeticLine, ...]:
    """Return every part of a step with its formula and source, then the sum and the rate with its range."""
    parts = step.step_parts(batch, context)
    formulas = (
        _gpu_formulas(step, batch, context) if isinstance(step, GpuStep) else _hybrid_formulas(step, batch, context)
    )
    total = sum(parts.values())
    rate, (low, high) = batch * gain / total, factors
    rows = [(name, *formulas.get(name, ("", "")), seconds * 1e3, "ms") for name, seconds in parts.items()]
    rows += [
        ("step", "sum of the above", "", total * 1e3, "ms"),
        ("decode", f"{plural(batch, 'stream')} at {context:,} × {gain:.2f} tokens / step", "", rate, "tok/s"),
        ("range", f"× {low:.2f} … × {high:.2f}; {basis}", f"to {rate * high:,.1f} tok/s", rate * low, "tok/s"),
    ]
    return _make_lines(*rows)


def explain_measured_step(
    measured: MeasuredSpeed, batch: int, context: int, factors: tuple[float, float]
) -> tuple[ArithmeticLine, ...]:
    """Return the lines of a step that was timed on the box: the depths it comes from, then the rate."""
    seconds, (low, high) = measured.step_s(batch, context), factors
    rate = batch / seconds
    return _make_lines(
        ("step", measured.text, measured.calibration.id, seconds * 1e3, "ms"),
        ("decode", f"{batch} tokens / step", "", rate, "tok/s"),
        ("range", f"× {low:.2f} … × {high:.2f}", "", rate * low, "tok/s"),
    )


def _make_lines(*rows: tuple[str, str, str, float, str]) -> tuple[ArithmeticLine, ...]:
    return tuple(
        ArithmeticLine(what=what, formula=formula, value=value, unit=unit, source=source)
        for what, formula, source, value, unit in rows
    )


def _gpu_formulas(step: GpuStep, batch: int, context: int) -> Formulas:
    """Each part as a formula in milliseconds (MB / (GB/s) and GFLOP / (TFLOP/s) are such), then its meaning."""
    rank, c, gpu, model, kernel = step.rank, step.constants, step.gpu, step.rank.model, step.kernel
    here = max(batch / (rank.pp * rank.dp), 1.0)  # stages and data-parallel groups work at the same time
    tokens = here * (1 + step.draft_tokens)
    memory, compute = f"{gpu.bandwidth / 1e9:.0f} GB/s", f"{gpu.bf16 / 1e12:.1f} TFLOP/s"
    dense = step.dense_seconds(tokens, tokens) * 1e3
    size = tokens * model.hidden * 2
    reduce = step.fabric.all_reduce(rank.tp, size) * 1e3
    rest = step.all_reduce_seconds(tokens) * 1e3 - 2 * model.layers * reduce
    attention = " + ".join(
        f"{layers.count} × {step.layer_attention(layers, here, context) * 1e3:.6f} ms" for layers in rank.layers
    )
    backends = {
        backend.name: backend for layers in rank.layers if (backend := step.attention_backend(layers.kind)).name
    }
    kernels = f"; backend {', '.join(backends)}" if backends else ""
    attention_source = "; ".join(f"{name}: {backend.source}" for name, backend in backends.items()) or c.source
    shared = f"; its memory at {unified_memory().engine_rate:.2f} of the datasheet's rate" if gpu.unified else ""
    shared_source = f"; shared memory: {unified_memory().source}" if gpu.unified else ""
    added, before, host_source = "", "", c.source
    if step.overhead and step.overhead.sequence_us:
        added, before = f" + {here:g} × {step.overhead.sequence_us / 1e3:.4f} ms", f", before {step.overhead.before}"
        host_source = step.overhead.source
    host = f"({c.step_us / 1e3:.4f} ms{added}) × {step.host_factor:.4f}; scheduling and sampling, for this CPU{before}"
    others = step.step_parts(batch, context)
    device = sum(value for name, value in others.items() if name != "waiting for launches") * 1e3
    launches = f"{step.kernel_layers:.2f} × {c.eager_us / 1e3:.5f} ms × {step.host_factor:.4f}"
    formulas = {
        "host": (host, host_source),
        "small kernels": (
            f"√(({step.kernel_layers:.1f} × {c.layer_us / 1e3:.6f} ms)² + ({dense:.6f} ms)²) - {dense:.6f} ms; "
            "reading weights hides a part of it",
            c.source,
        ),
        "dense weights": (
            f"√(({rank.dense_bytes / 1e6:.3f} MB / ({memory} × {c.dense_bw:.4f}))² + "
            f"({tokens:g} × {rank.dense_flops / 1e9:.5f} GFLOP / ({compute} × {c.gemm:.4f}))²); of one rank{shared}",
            f"{c.source}{shared_source}",
        ),
        "attention": (
            f"{attention or '0'}; {tokens:g} queries at {context} tokens / DCP {rank.dcp}, heads padded to "
            f"{c.head_tile}{kernels}",
            attention_source,
        ),
        "all-reduce": (
            f"2 × {model.layers} × {reduce:.6f} ms + {max(rest, 0):.6f} ms; {size:,.0f} B over {rank.tp} ranks, "
            f"{step.fabric.rate * step.fabric.wire.bus / 1e9:.1f} GB/s bus"
            + (f"; {step.fabric.state}" if step.fabric.state and rank.tp > 1 else ""),
            step.fabric.wire.source,
        ),
        "context parallel": (
            f"{model.layers} × {step.context_parallel_seconds(tokens) * 1e3 / model.layers:.6f} ms; queries and "
            f"outputs of {rank.dcp} ranks gathered",
            step.fabric.wire.source,
        ),
        "waiting for stages": (f"{step.stage_loss(batch):.0%} of the above, {rank.pp} stages", "assumed"),
        "waiting for launches": (f"{launches} - {device:.6f} ms; the host launches each kernel, no graphs", c.source),
    }
    if model.moe:
        routed, share = tokens * rank.dp, min(kernel.bandwidth * c.experts, 1)
        operations = rank.expert_step_flops(routed) * kernel.padded_share(rank, routed) / 1e9
        distinct = f"{model.moe.experts}(1-(1-{model.moe.used}/{model.moe.experts})^{routed:g})"
        formulas["experts"] = (
            f"{model.moe_layers} × ({kernel.least_us(rank, routed) / 1e3:.5f} ms + "
            f"{kernel.bytes_moved(rank, routed) / 1e6:.5f} MB / {memory}) + "
            f"√(({rank.expert_bytes_read(routed) / 1e6:.3f} MB / ({memory} × {share:.4f}))² + "
            f"({operations:.4f} GFLOP / ({compute} × {kernel.flops:.4f}))²); "
            f"{distinct} = {rank.distinct_experts(routed):.1f} experts a layer",
            f"{kernel.source}{shared_source}",
        )
    if step.draft:
        each = step.draft_seconds(here) * 1e3 / max(step.draft_tokens, 1)
        formulas["draft"] = (f"{step.draft_tokens} × {each:.6f} ms; one pass for each draft token", step.draft.source)
    return formulas


def _hybrid_formulas(step: HybridStep, batch: int, context: int) -> Formulas:
    """Each part of a CPU+GPU step as a formula."""
    c, moe, expert = step.constants, step.model.moe, f"{step.rank.expert_bytes / 1e6:.2f} MB"
    activated, gpu_rate = step.rank.distinct_experts(batch), f"{step.gpu_rate / 1e9:.0f} GB/s"
    source = c.source
    if step.gpu and step.gpu.unified:
        source = f"{source}; shared memory: {unified_memory().source}"
    if batch > 1 and moe and not c.shares_unpacking:
        rate = f"{step.unpack_rate / 1e9:.0f} GB/s"
        layer = f"{batch} × {moe.used} experts × {expert} unpacked at {rate} + {c.layer_us:.0f} us"
    else:
        layer = f"{activated:.1f} experts × {expert} / {step.ram_rate / 1e9:.0f} GB/s + {c.layer_us:.0f} us"
    dense = f"{step.rank.dense_bytes / 1e9:.2f} GB / {gpu_rate}"
    if not step.gpu and batch > 1 and not c.shares_unpacking:
        dense = f"{batch} × {dense}; each token unpacks them"
    attention = f"{batch} × {step.rank.cache_bytes_read(context) / 1e6:.1f} MB of cache at {context} tokens"
    if not step.gpu:
        flops = f"{step.threads} × {step.attention_core_flops / 1e9:.0f} GFLOP/s"
        attention += f", or their operations at {flops}"
    return {
        "experts in RAM": (f"{step.layers_in_ram:g} layers × ({layer})", source),
        "experts on GPUs": (f"{step.layers_on_gpus} layers × {activated:.1f} × {expert} / {gpu_rate}", source),
        "dense weights": (dense, source),
        "fixed": (f"{step.model.layers} layers × {c.gpu_layer_us:.0f} us", source),
        "attention": (attention, source),
        "network": (step.hops.formula(batch, context) if step.hops else "", "llama.cpp's ggml-rpc.cpp, counted"),
    }
