"""Tunes on the GPU at hand: what is asked of the timing process, and what its answer means.

The timing is done by `probe/tune.py` in a process of its own; `moefiles` writes what engines read.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import moebox
from moebox.core.kernel import Arch, arch
from moebox.errors import BadInput, Outside
from moebox.files import scratch
from moebox.kernels.probe.space import KIMI, Shape
from moebox.kernels.scan import Request, ask, cache_dir, check_triton, engine_root

SECONDS = 1500.0  # for all of an engine's cases
NOISE = 0.02  # a gain below this is none: the same configuration timed twice differed by up to 2% on an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was timed, and with which Triton."""

    engine: str
    triton: str
    rows: list[dict[str, Any]]
    shape: Shape = KIMI


def tune(request: Request, here: Arch, *, limit: Arch) -> Tuned:
    """Time every candidate of the engine's kernels on the GPU `here` that fits the limits of `limit`."""
    python = request.python or Path(sys.executable)
    root = engine_root(request)
    check_triton(python)
    asked = question(request, root, here, limit=limit)
    with scratch("tuning") as folder:
        given, answer = folder / "request.json", folder / "answer.json"
        given.write_text(json.dumps(asked))
        command = [str(python), "-m", "moebox.kernels.probe.tune", str(given), str(answer)]
        env = {**os.environ, "PYTHONPATH": str(Path(moebox.__file__).parent.parent)}
        try:
            done = subprocess.run(command, env=env, stdout=sys.stderr, check=False, timeout=SECONDS * 1.5)
        except subprocess.TimeoutExpired:
            raise Outside(f"the tuner did not finish in {SECONDS * 1.5:.0f} s") from None
        if done.returncode:
            raise Outside("the tuner failed; its words are above", hint="`--debug` shows more")
        if not answer.exists():
            raise BadInput(f"--only {request.only}: no case that can be tuned has that in its name")
        found = json.loads(answer.read_text())
    rows = [settled(row) for row in found["rows"]]
    return Tuned(engine=request.engine, triton=found["triton"], rows=rows, shape=Shape(**asked["shape"]))


def question(request: Request, root: Path, here: Arch, *, limit: Arch) -> dict[str, Any]:
    """The request in the timing process's words."""
    sizes = ask(request, root)["shape"]
    return {
        "shape": {one.name: sizes[one.name] for one in fields(Shape)},
        "engine": request.engine,
        "root": str(root),
        "capability": here.capability,
        "device": here.device,
        "sms": here.sms,
        "limit": limit.smem,
        "limit_capability": limit.capability,
        "cache": str(cache_dir()),
        "seconds": SECONDS,
        "only": request.only,
    }


def gpu_here() -> Arch:
    """The first GPU of this machine; Outside without one."""
    from dataclasses import replace

    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = pynvml.nvmlDeviceGetName(handle)
    except pynvml.NVMLError:
        raise Outside("tuning times kernels on a GPU, and this machine has none") from None
    return replace(arch(f"{major}.{minor}"), device=name if isinstance(name, str) else name.decode())


def settled(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the best choice that gains more than the noise; a baseline that fits wins otherwise."""
    for name, one in row["baselines"].items():
        if row["best"] and one["fits"] and one["ms"] <= row["ms"] * (1 + NOISE):
            kept = {"best": one["config"], "ms": one["ms"], "shared_bytes": one["shared_bytes"], "kept": name}
            return {**row, **kept}
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """What was found, as Markdown: the best, beside each baseline, and how much faster."""
    lines = ["| case | best found | ms | error | beside |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        best = row["best"]
        if best is None:
            lines.append(f"| {row['case']} | none that fits is right | | | |")
            continue
        blocks = " ".join(f"{name.removeprefix('BLOCK_').lower()}={value}" for name, value in best.items())
        if "tokens" in best or row.get("kept", "").endswith("default"):
            blocks = "the engine's own default"
        beside = "; ".join(
            f"{name} {one['ms']:.3f} ms ({one['ms'] / row['ms']:.2f}x{'' if one['fits'] else ', does not fit'})"
            for name, one in row["baselines"].items()
        )
        lines.append(f"| {row['case']} | {blocks} | {row['ms']:.3f} | {row['error']:.4f} | {beside} |")
    return "\n".join(lines) + "\n"
