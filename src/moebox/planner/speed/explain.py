"""The arithmetic of a decode step as lines a person can check with a calculator."""

from moebox.core.plan import Line
from moebox.planner.speed.host import Shared
from moebox.planner.speed.measured import Measured
from moebox.planner.speed.step import STAGE_LOSS, GpuStep


def explain(
    gpu_step: GpuStep | None, shared: Shared | None, batch: int, context: int, gain: float, band: tuple[float, float]
) -> tuple[Line, ...]:
    """Every part of a step with its formula and where its constants come from, then the sum and the rate."""
    if gpu_step is not None:
        parts, wording = gpu_step.parts(batch, context), _on_gpus(gpu_step, batch, context)
    else:
        assert shared is not None
        parts, wording = shared.decode_parts(batch, context), _in_ram(shared, batch, context)
    lines = []
    for name, seconds in parts.items():
        formula, source = wording.get(name, ("", ""))
        lines.append(Line(what=name, formula=formula, value=seconds * 1e3, unit="ms", source=source))
    step = sum(parts.values())
    lines.append(Line(what="step", formula="sum of the above", value=step * 1e3, unit="ms"))
    rate = batch * gain / step
    lines.append(Line(what="decode", formula=f"{batch} × {gain:.2f} tokens / step", value=rate, unit="tok/s"))
    lines.append(
        Line(
            what="band",
            formula=f"× {band[0]:.2f} … × {band[1]:.2f}",
            value=rate * band[0],
            unit="tok/s",
            source=f"to {rate * band[1]:,.1f} tok/s",
        )
    )
    return tuple(lines)


def explain_measured(measured: Measured, batch: int, context: int, band: tuple[float, float]) -> tuple[Line, ...]:
    """A step that was timed on the box: the depths it comes from, then the rate."""
    seconds = measured.step_s(batch, context)
    rate = batch / seconds
    return (
        Line(what="step", formula=measured.text, value=seconds * 1e3, unit="ms", source=measured.calibration.id),
        Line(what="decode", formula=f"{batch} tokens / step", value=rate, unit="tok/s"),
        Line(what="band", formula=f"× {band[0]:.2f} … × {band[1]:.2f}", value=rate * band[0], unit="tok/s"),
    )


def _on_gpus(step: GpuStep, batch: int, context: int) -> dict[str, tuple[str, str]]:
    rank, c, kernel, gpu = step.rank, step.constants, step.kernel, step.gpu
    tokens = batch * (1 + step.guesses)
    bandwidth = gpu.bandwidth / 1e9
    model = rank.model
    texts = {
        "host": (f"{c.step_us:.0f} us to schedule and sample × {step.host:.2f} for this CPU", c.source),
        "small kernels": (
            f"root of ({step.kernels:.1f} × {c.layer_us:.0f} us)² + (dense weights + experts)², less the latter",
            c.source,
        ),
        "dense weights": (
            f"{rank.dense_bytes / 1e9:.2f} GB on a rank / ({bandwidth:.0f} GB/s × {c.dense_bw:.2f})",
            c.source,
        ),
        "attention": (
            f"{tokens} queries × {context} tokens / dcp {rank.dcp} × {model.layers} layers at "
            f"{c.attention_flops:.3f} of {gpu.bf16 / 1e12:.0f} TFLOP/s, heads padded to {c.head_tile}",
            c.source,
        ),
        "all-reduce": (
            f"2 × {model.layers} all-reduces of {tokens} × {model.hidden} × 2 B over {rank.tp} ranks, "
            f"{step.fabric.rate * step.fabric.wire.bus / 1e9:.1f} GB/s bus",
            step.fabric.wire.source,
        ),
        "context parallel": (
            f"queries and outputs of {rank.dcp} ranks gathered in each layer",
            step.fabric.wire.source,
        ),
        "waiting for stages": (f"{STAGE_LOSS:.0%} for each of {rank.pp - 1} further stages", "assumed"),
        "waiting for launches": (f"{step.kernels:.1f} × {c.eager_us:.0f} us on the host, no graphs", c.source),
    }
    if model.moe:
        texts["experts"] = (
            f"{model.moe_layers} layers × {model.moe.experts}(1-(1-{model.moe.used}/{model.moe.experts})^{tokens}) = "
            f"{rank.distinct(tokens):.1f} experts × {rank.expert_bytes / 1e6:.2f} MB / {rank.expert_ranks} ranks / "
            f"({bandwidth:.0f} GB/s × {min(kernel.bandwidth * c.experts, 1):.2f}) + {kernel.fixed_us:.0f} us",
            kernel.source,
        )
    if step.draft:
        texts["draft"] = (
            f"{step.guesses} passes × ({step.draft.bytes / 1e9:.1f} GB / {rank.tp} ranks + "
            f"{step.draft.pass_us:.0f} us)",
            step.draft.source,
        )
    return texts


def _in_ram(shared: Shared, batch: int, context: int) -> dict[str, tuple[str, str]]:
    c = shared.constants
    woken = shared.distinct(batch)
    device = shared.gpu.bandwidth * c.gpu_bw if shared.gpu else shared.ram
    return {
        "experts in RAM": (
            f"{shared.in_ram} layers × ({woken:.1f} experts × {shared.rank.expert_bytes / 1e6:.2f} MB / "
            f"{shared.ram / 1e9:.0f} GB/s + {c.layer_us:.0f} us)",
            c.source,
        ),
        "experts on GPUs": (
            f"{shared.on_gpus} layers × {woken:.1f} × {shared.rank.expert_bytes / 1e6:.2f} MB "
            f"/ {device / 1e9:.0f} GB/s",
            c.source,
        ),
        "dense weights": (f"{shared.rank.dense_bytes / 1e9:.2f} GB / {device / 1e9:.0f} GB/s", c.source),
        "fixed": (f"{shared.model.layers} layers × {c.gpu_layer_us:.0f} us", c.source),
        "attention": (
            f"{batch} × {shared.rank.cache_read(context) / 1e6:.1f} MB of cache at {context} tokens",
            c.source,
        ),
    }
