"""Scans an engine: finds its files and a Python with Triton, runs the probe there, and judges each launch."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

import moebox
from moebox import codec, files
from moebox.core.kernel import Arch, KernelLaunch, KernelScan, LaunchVerdict, NotCovered
from moebox.core.model import Model
from moebox.environment import chosen_environment
from moebox.errors import BadInput, ExternalError, Unsupported, refuse_if
from moebox.flows.kernels import known_problems
from moebox.serve.preflight import package_folders
from moebox_kernels.probe.protocol import LaunchRecord, ProbeGpu, ProbeLine, ScanRequest
from moebox_kernels.probe.space import RankShape

TRITON_MIN, TRITON_MAX = (3, 5), (3, 9)  # the probe was tried on these, 2026-11
_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRequest:
    engine: str  # one with a module of its own in probe/
    arch: Arch
    model: Model
    tp: int = 8
    kv: str = "bf16"
    site_packages: Path | None = None
    python: Path | None = None
    only: str = ""

    @property
    def compiler(self) -> Path:
        """The Python that compiles: the given one, or this one."""
        return self.python or Path(sys.executable)


def kernel_cache() -> Path:
    """Return the folder that keeps compiled kernels and their costs between scans."""
    return files.moebox_cache() / "kernels"


def scan_engine(request: KernelRequest) -> KernelScan:
    """Compile and judge every launch of the engine for this model."""
    root = engine_root(request)
    lines = run_probe(request.compiler, probe_request(request, root))
    done = next((line.done for line in lines if line.done), None)
    if done is None:
        raise ExternalError("the kernel probe ended before it was done")
    launches = tuple(judge_launch(line.launch, request.arch) for line in lines if line.launch)
    version = engine_version(root, request.engine)
    reasons = {line.empty.case: "no Triton kernel was launched" for line in lines if line.empty}
    reasons |= {line.missed.case: line.missed.why for line in lines if line.missed}
    not_covered = [NotCovered(what=case, why=why) for case, why in reasons.items()]
    if not launches and not_covered:  # a scan without launches is not a good result
        first = not_covered[0]
        text = f"no kernel of {request.engine} could be judged: {first.what}: {first.why}"
        raise ExternalError(text, hint="its files may have been edited, or be of a release this moebox does not know")
    refuse_if(not launches, f"--only {request.only}: no case of {request.engine} has that in its name")
    if not version:
        why = f"the package under {root} does not state its version, so known problems of releases were not looked up"
        not_covered.append(NotCovered(what="kernels that are not Triton's", why=why))
    return KernelScan(
        engine=request.engine,
        version=version,
        arch=request.arch.name,
        model=request.model.name,
        tp=request.tp,
        kv=request.kv,
        triton=done.triton,
        launches=launches,
        not_covered=tuple(not_covered),
        judged=known_problems(engine=request.engine, version=version, arch=request.arch, model=request.model.name),
    )


def engine_root(request: KernelRequest) -> Path:
    """Return the folder that holds the engine's package."""
    if given := request.site_packages:
        refuse_if(not (given / request.engine).is_dir(), f"{given}: holds no {request.engine} package")
        return given
    for place in package_folders(request.python) if request.python else map(Path, filter(None, sys.path)):
        package = place / request.engine  # a folder of that name alone is not enough
        if (package / "version.py").exists() or (package / "__init__.py").exists():
            return place
    raise ExternalError(
        f"{request.engine} is not installed here",
        hint=f"`moebox engines install {request.engine}==VERSION` installs it; --python names a venv that has it, "
        "--site-packages a folder with its unpacked wheel",
    )


def engine_version(root: Path, engine: str) -> str:
    """Return the version of the package under `root`, or "" if it is unknown."""
    for found in sorted(root.glob(f"{engine}*.dist-info/METADATA")):
        match = re.search(r"^Version: (.+)$", found.read_text(errors="replace"), re.MULTILINE)
        if match and found.parent.name.split("-")[0].replace("_", "-") in (engine, f"{engine}-cpu"):
            return match.group(1).strip()
    return ""


def probe_request(request: KernelRequest, root: Path) -> ScanRequest:
    """Return the request for the probe, with the sizes on one rank."""
    arch = request.arch
    return ScanRequest(
        engine=request.engine,
        root=str(root),
        cache=str(kernel_cache()),
        only=request.only,
        target=ProbeGpu(
            capability=arch.capability, sms=arch.sms, device_name=arch.device, memory=arch.memory, smem=arch.smem
        ),
        shape=rank_shape(request.model, request.tp),
        kv=request.kv,
    )


def rank_shape(model: Model, tp: int) -> RankShape:
    mla, moe = model.mla, model.moe
    if mla is None or moe is None:
        raise Unsupported(f"{model.name}: only MLA mixture-of-experts models can be scanned")
    uneven = tp < 1 or mla.heads % tp or moe.intermediate % tp
    refuse_if(uneven, f"--tp {tp} does not divide {mla.heads} heads and experts of {moe.intermediate}")
    return RankShape(
        heads=mla.heads // tp,
        kv_lora=mla.kv_lora,
        rope=mla.rope,
        nope=mla.nope,
        v=mla.v,
        hidden=model.hidden,
        experts=moe.experts,
        used=moe.used,
        intermediate=moe.intermediate // tp,
    )


def run_probe(python: Path, request: ScanRequest) -> list[ProbeLine]:
    check_triton(python)
    package = str(Path(moebox.__file__).parent.parent)
    env = chosen_environment({"PYTHONPATH": package, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"})
    command = [str(python), "-m", "moebox_kernels.probe"]
    text = codec.to_json(request, indent=None)
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, env=env, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ExternalError(f"the kernel probe did not finish in {_SECONDS:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ExternalError(f"the kernel probe failed: {last[:300]}", hint="`--debug` shows more")
    return [msgspec.json.decode(line, type=ProbeLine) for line in done.stdout.splitlines() if line.startswith("{")]


def check_triton(python: Path) -> None:
    """Refuse a Python without Triton and PyTorch, or with an untested Triton."""
    code = "import importlib.metadata as m; print(m.version('triton'), m.version('torch'))"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError as problem:
        raise BadInput(f"{python}: cannot be run: {problem.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ExternalError(f"{python} did not answer in 60 s") from None
    if done.returncode or len(done.stdout.split()) != 2:
        raise ExternalError(
            f"{python} has no Triton and PyTorch",
            hint="`pip install moebox[kernels] torch`, or name the engine's own Python with --python",
        )
    triton, _ = done.stdout.split()
    if not TRITON_MIN <= tuple(map(int, re.findall(r"\d+", triton)[:2])) <= TRITON_MAX:
        known = f"{TRITON_MIN[0]}.{TRITON_MIN[1]} to {TRITON_MAX[0]}.{TRITON_MAX[1]}"
        raise Unsupported(f"Triton {triton} is not one the kernel doctor knows ({known})")


def judge_launch(launch: LaunchRecord, arch: Arch) -> KernelLaunch:
    """Return the recorded launch with a verdict for the architecture."""
    verdict: LaunchVerdict = "spills" if launch.spilled_bytes else "launches"
    if launch.error:
        verdict = "does not compile"
    elif launch.shared_bytes > arch.smem:
        verdict = "does not fit"
    blocks = arch.blocks_per_sm(launch.shared_bytes, launch.registers, launch.num_warps)
    judged = {"limit_bytes": arch.smem, "spill_bytes": launch.spilled_bytes, "blocks_per_sm": blocks}
    return KernelLaunch(**codec.shared_fields(launch, KernelLaunch) | judged, verdict=verdict)
