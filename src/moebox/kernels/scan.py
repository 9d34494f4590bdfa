"""Scans an engine: finds its files and a Python with Triton, runs the probe there, and judges what it launched."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import moebox
from moebox import files
from moebox.core.kernel import Arch, KernelLaunch, KernelScan, NotCovered, Verdict
from moebox.core.model import Model
from moebox.errors import BadInput, MoeboxError, Outside, Unsupported
from moebox.kernels.judged import judged

TRITON_LEAST, TRITON_MOST = (3, 5), (3, 9)  # the probe was tried on these, 2026-11
_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to scan."""

    engine: str  # one with a module of its own in probe/
    arch: Arch
    model: Model
    tp: int = 8
    kv: str = "bf16"
    site_packages: Path | None = None
    python: Path | None = None
    only: str = ""


def cache_dir() -> Path:
    """Where compiled kernels and their costs are kept between scans."""
    home = os.environ.get("MOEBOX_CACHE")
    return (Path(home).expanduser() if home else files.cache_home() / "moebox") / "kernels"


def scan(request: Request) -> KernelScan:
    """Every launch of the engine for this model, judged."""
    root = engine_root(request)
    python = request.python or Path(sys.executable)
    answers = run(python, ask(request, root))
    done = next((answer["done"] for answer in answers if "done" in answer), None)
    if done is None:
        raise Outside("the kernel probe ended before it was done")
    launches = tuple(judge(answer["launch"], request.arch) for answer in answers if "launch" in answer)
    missed = [NotCovered(what=a["missed"]["case"], why=a["missed"]["why"]) for a in answers if "missed" in a]
    named = {one.what for one in missed}
    missed += [
        NotCovered(what=a["empty"]["case"], why="no Triton kernel was launched")
        for a in answers
        if "empty" in a and a["empty"]["case"] not in named
    ]
    version = engine_version(root, request.engine)
    if not launches:
        raise _nothing(request, missed)
    if not version:
        why = f"the package under {root} does not say its version, so what is known of releases was not looked up"
        missed.append(NotCovered(what="kernels that are not Triton's", why=why))
    return KernelScan(
        engine=request.engine,
        version=version,
        arch=request.arch.name,
        model=request.model.name,
        tp=request.tp,
        kv=request.kv,
        triton=done["triton"],
        launches=launches,
        not_covered=tuple(missed),
        judged=judged(engine=request.engine, version=version, arch=request.arch, model=request.model.name)
        if version
        else (),
    )


def _nothing(request: Request, missed: list[NotCovered]) -> MoeboxError:
    """No launch at all is no clean bill: it means that the files are not what they should be, or a word misspelt."""
    if missed:
        return Outside(
            f"no kernel of {request.engine} could be judged: {missed[0].what}: {missed[0].why}",
            hint="its files may have been edited, or be of a release this moebox does not know",
        )
    return BadInput(f"--only {request.only}: no case of {request.engine} has that in its name")


def engine_root(request: Request) -> Path:
    """The folder that holds the engine's package."""
    if request.site_packages:
        if not (request.site_packages / request.engine).is_dir():
            raise BadInput(f"{request.site_packages}: holds no {request.engine} package")
        return request.site_packages
    places = packages(request.python) if request.python else [Path(entry) for entry in sys.path if entry]
    for place in places:
        if (place / request.engine / "version.py").exists() or (place / request.engine / "__init__.py").exists():
            return place
    raise Outside(
        f"{request.engine} is not installed here",
        hint="name its venv with --python, or a folder with its unpacked wheel with --site-packages",
    )


def packages(python: Path) -> list[Path]:
    """Folders where a Python keeps packages: a venv's, and those of Debian's own."""
    home = python.parent.parent
    kinds = ("lib/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3*/dist-packages")
    return [place for kind in kinds for place in sorted(home.glob(kind))]


def engine_version(root: Path, engine: str) -> str:
    """The version of the package under `root`, "" when it does not say."""
    for found in sorted(root.glob(f"{engine}*.dist-info/METADATA")):
        match = re.search(r"^Version: (.+)$", found.read_text(errors="replace"), re.MULTILINE)
        if match and found.parent.name.split("-")[0].replace("_", "-") in (engine, f"{engine}-cpu"):
            return match.group(1).strip()
    return ""


def ask(request: Request, root: Path) -> dict[str, Any]:
    """The request in the probe's words: sizes on one rank."""
    model, moe = request.model, request.model.moe
    if model.mla is None or moe is None:
        raise Unsupported(f"{model.name}: only MLA mixture-of-experts models can be scanned")
    if request.tp < 1 or model.mla.heads % request.tp or moe.intermediate % request.tp:
        raise BadInput(f"--tp {request.tp} does not divide {model.mla.heads} heads and experts of {moe.intermediate}")
    arch = request.arch
    return {
        "engine": request.engine,
        "root": str(root),
        "cache": str(cache_dir()),
        "only": request.only,
        "arch": {
            "capability": arch.capability,
            "sms": arch.sms,
            "device_name": arch.device,
            "memory": arch.memory,
            "smem": arch.smem,
        },
        "shape": {
            "heads": model.mla.heads // request.tp,
            "kv_lora": model.mla.kv_lora,
            "rope": model.mla.rope,
            "nope": model.mla.nope,
            "v": model.mla.v,
            "hidden": model.hidden,
            "experts": moe.experts,
            "used": moe.used,
            "intermediate": moe.intermediate // request.tp,
            "kv": request.kv,
        },
    }


def run(python: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the probe under `python` and collect its answers."""
    check_triton(python)
    package = str(Path(moebox.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": package, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    command = [str(python), "-m", "moebox.kernels.probe"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, env=env, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Outside(f"the kernel probe did not finish in {_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Outside(f"the kernel probe failed: {last[:300]}", hint="`--debug` shows more")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check_triton(python: Path) -> None:
    """Refuse a Python without Triton and PyTorch, or with a Triton nobody has tried."""
    code = "import importlib.metadata as m; print(m.version('triton'), m.version('torch'))"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError as problem:
        raise BadInput(f"{python}: cannot be run: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Outside(f"{python} did not answer in 60 s") from None
    if done.returncode or len(done.stdout.split()) != 2:
        raise Outside(
            f"{python} has no Triton and PyTorch",
            hint="`pip install moebox[kernels] torch`, or name the engine's own Python with --python",
        )
    words = done.stdout.split()
    version = tuple(int(part) for part in re.findall(r"\d+", words[0])[:2])
    if not TRITON_LEAST <= version <= TRITON_MOST:
        known = f"{TRITON_LEAST[0]}.{TRITON_LEAST[1]} to {TRITON_MOST[0]}.{TRITON_MOST[1]}"
        raise Unsupported(f"Triton {words[0]} is not one the kernel doctor knows ({known})")


def judge(launch: dict[str, Any], arch: Arch) -> KernelLaunch:
    """What the probe recorded, with a verdict for the architecture."""
    shared, registers, warps = launch["shared_bytes"], launch.get("registers", 0), launch["num_warps"]
    spill = launch.get("spill_bytes", launch.get("stack_bytes", 0))
    error = launch.get("error", "")
    verdict: Verdict = "does not fit" if shared > arch.smem else "spills" if spill else "launches"
    verdict = "does not compile" if error else verdict
    return KernelLaunch(
        case=launch["case"],
        kernel=launch["kernel"],
        file=launch["file"],
        line=launch["line"],
        launched_from=launch["launched_from"],
        blocks=launch["blocks"],
        num_warps=warps,
        num_stages=launch["num_stages"],
        shared_bytes=shared,
        limit_bytes=arch.smem,
        registers=registers,
        stack_bytes=launch.get("stack_bytes", 0),
        spill_bytes=spill,
        blocks_per_sm=arch.blocks_per_sm(shared, registers, warps),
        error=error,
        verdict=verdict,
    )
