"""Tunes on the GPU at hand: the request to the timing process, and what its answer means.

The timing is done by `probe/tune.py` in a process of its own; `tuned_files` writes what engines read.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

import moebox
from moebox import codec
from moebox.core.kernel import Arch, find_arch
from moebox.environment import chosen_environment
from moebox.errors import ExternalError, refuse_if
from moebox.files import scratch_folder
from moebox.kernels.probe.protocol import TuneAnswer, TunedRow, TuneRequest
from moebox.kernels.probe.space import KIMI, RankShape
from moebox.kernels.scan import KernelRequest, check_triton, engine_root, kernel_cache, rank_shape

TUNING_SECONDS = 1500.0  # for all of an engine's cases
MIN_GAIN = 0.02  # the same configuration timed twice differed by up to 2% on an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    engine: str
    triton: str
    rows: list[TunedRow]
    shape: RankShape = KIMI


def tune_kernels(request: KernelRequest, here: Arch, *, limit: Arch) -> TuningResult:
    """Time every candidate of the engine's kernels on the GPU `here` that fits the limits of `limit`."""
    root = engine_root(request)
    check_triton(request.compiler)
    timing_request = TuneRequest(
        shape=rank_shape(request.model, request.tp),
        engine=request.engine,
        root=str(root),
        capability=here.capability,
        device=here.device,
        sms=here.sms,
        limit=limit.smem,
        limit_capability=limit.capability,
        cache=str(kernel_cache()),
        seconds=TUNING_SECONDS,
        only=request.only,
    )
    with scratch_folder("tuning") as folder:
        question, answer = folder / "request.json", folder / "answer.json"
        question.write_text(codec.to_json(timing_request))
        command = [str(request.compiler), "-m", "moebox.kernels.probe.tune", str(question), str(answer)]
        env = chosen_environment({"PYTHONPATH": str(Path(moebox.__file__).parent.parent)})
        try:
            done = subprocess.run(command, env=env, stdout=sys.stderr, check=False, timeout=TUNING_SECONDS * 1.5)
        except subprocess.TimeoutExpired:
            raise ExternalError(f"the tuner did not finish in {TUNING_SECONDS * 1.5:.0f} s") from None
        if done.returncode:
            raise ExternalError("the tuner failed; its output is above", hint="`--debug` shows more")
        refuse_if(not answer.exists(), f"--only {request.only}: no case that can be tuned has that in its name")
        timed = msgspec.convert(json.loads(answer.read_text()), TuneAnswer)  # msgspec's own reader knows no Infinity
    rows = [*map(prefer_baseline, timed.rows)]
    return TuningResult(engine=request.engine, triton=timed.triton, rows=rows, shape=timing_request.shape)


def local_gpu() -> Arch:
    """Return the first GPU of this machine. Raise ExternalError without one."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        raise ExternalError("tuning times kernels on a GPU, and this machine has none") from None
    return replace(find_arch(f"{major}.{minor}"), device=name if isinstance(name, str) else name.decode())


def prefer_baseline(row: TunedRow) -> TunedRow:
    """Return the row with a baseline as its best choice, if one fits and the winner gains no more than the noise."""
    if row.ms is None:
        return row
    for name, base in row.baselines.items():
        if base.fits and base.ms <= row.ms * (1 + MIN_GAIN):
            return replace(row, best=base.config, ms=base.ms, shared_bytes=base.shared_bytes, kept=name)
    return row


def markdown_table(rows: Sequence[TunedRow]) -> str:
    """Return the best choices as Markdown, beside each baseline and how much faster they are."""
    lines = ["| case | best found | ms | error | beside |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if row.best is None or row.ms is None:
            lines.append(f"| {row.case} | none that fits is right | | | |")
            continue
        blocks = " ".join(f"{name.removeprefix('BLOCK_').lower()}={value}" for name, value in row.best.items())
        if "tokens" in row.best or row.kept.endswith("default"):
            blocks = "the engine's own default"
        beside = "; ".join(
            f"{name} {base.ms:.3f} ms ({base.ms / row.ms:.2f}x{'' if base.fits else ', does not fit'})"
            for name, base in row.baselines.items()
        )
        lines.append(f"| {row.case} | {blocks} | {row.ms:.3f} | {row.error or 0.0:.4f} | {beside} |")
    return "\n".join(lines) + "\n"
