"""Tunes on the GPU at hand, and writes what engines read: fused-MoE files and the attention block table.

The timing is done by `probe/tune.py` in a process of its own; here is what is asked of it and what is made of it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import moebox
from moebox.core.kernel import Arch, arch
from moebox.doctor.kernels.scan import Request, cache_dir, check_triton, engine_root
from moebox.errors import Outside

KINDS = {"sglang": ["extend"], "vllm": ["decode", "moe"]}
SECONDS = 1500.0  # for all of an engine's cases; an H200 took 340 s for SGLang's and vLLM's together (2026-11-15)
NOISE = 0.02  # a gain below this is none: the same configuration timed twice differed by up to 2% on an H200
_DTYPE = {"bf16": "", "int4_w4a16": ",dtype=int4_w4a16"}


def tune(request: Request, here: Arch, *, limit: Arch) -> list[dict[str, Any]]:
    """Time every candidate of the engine's kernels on the GPU `here` that fits the limits of `limit`."""
    python = request.python or Path(sys.executable)
    check_triton(python)
    root = engine_root(request)
    asked = {
        "sglang": str(root) if request.engine == "sglang" else "",
        "vllm": str(root) if request.engine == "vllm" else "",
        "capability": here.capability,
        "device": here.device,
        "sms": here.sms,
        "limit": limit.smem,
        "limit_capability": limit.capability,
        "cache": str(cache_dir()),
        "seconds": SECONDS,
        "kinds": KINDS[request.engine],
    }
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(asked))
        command = [str(python), "-m", "moebox.doctor.kernels.probe.tune", str(question), str(answer)]
        env = {**os.environ, "PYTHONPATH": str(Path(moebox.__file__).parent.parent)}
        done = subprocess.run(command, env=env, stdout=sys.stderr, check=False, timeout=SECONDS * 1.5)
        if done.returncode or not answer.exists():
            raise Outside("the tuner failed; its words are above", hint="`--debug` shows more")
        return [settled(row) for row in json.loads(answer.read_text())["rows"]]


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


def moe_file(kind: str, device: str, *, experts: int = 384, width: int = 256) -> str:
    """The name under which vLLM and SGLang look for a tuned file."""
    return f"E={experts},N={width},device_name={device.replace(' ', '_')}{_DTYPE[kind]}.json"


def settled(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the best choice that gains more than the noise; a baseline that fits wins otherwise."""
    for one in row["baselines"].values():
        if row["best"] and one["fits"] and one["ms"] <= row["ms"] * (1 + NOISE):
            return {**row, "best": one["choice"], "ms": one["ms"], "shared_bytes": one["shared_bytes"]}
    return row


def moe_configs(rows: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, int]]]:
    """Tuned configurations by kind and batch size; sizes at which the engine's own default won are left to it."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        words = row["case"].replace(",", "").split()
        if words[:2] != ["fused", "MoE"] or not row["best"] or "tokens" in row["best"]:
            continue
        found.setdefault(words[2], {})[words[3]] = row["best"]
    return found


def write(rows: list[dict[str, Any]], folder: Path, device: str) -> list[Path]:
    """The files that engines read, and the whole table beside them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = [folder / "tuned.json"]
        made[0].write_text(json.dumps(rows, indent=1) + "\n")
        for kind, configs in moe_configs(rows).items():
            made.append(folder / moe_file(kind, device))
            made[-1].write_text(json.dumps(configs, indent=4) + "\n")
    except OSError as problem:
        raise Outside(f"{folder}: cannot be written: {problem.strerror}") from None
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """What was found, as Markdown: the best, beside each baseline, and how much faster."""
    lines = ["| case | best found | ms | error | beside |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        best = row["best"] or {}
        blocks = " ".join(f"{name.removeprefix('BLOCK_').lower()}={value}" for name, value in best.items())
        if "tokens" in best:
            blocks = "the engine's own default"
        beside = "; ".join(
            f"{name} {one['ms']:.3f} ms ({one['ms'] / row['ms']:.2f}x{'' if one['fits'] else ', does not fit'})"
            for name, one in row["baselines"].items()
        )
        lines.append(f"| {row['case']} | {blocks} | {row['ms']:.3f} | {row['error']:.4f} | {beside} |")
    return "\n".join(lines) + "\n"
