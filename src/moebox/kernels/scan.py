"""Scans an engine: finds its files and a Python with Triton, runs the probe there, and judges what it launched."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import moebox
from moebox import codec, files
from moebox.core.kernel import Arch, KernelLaunch, KernelScan, LaunchVerdict, NotCovered
from moebox.core.model import Model
from moebox.errors import BadInput, ExternalError, MoeboxError, Unsupported, refuse_if
from moebox.kernels.judged import known_problems
from moebox.kernels.probe.protocol import LaunchRecord, ProbeGpu, ProbeLine, ScanRequest
from moebox.kernels.probe.space import RankShape

TRITON_MIN, TRITON_MAX = (3, 5), (3, 9)  # the probe was tried on these, 2026-11
_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRequest:
    """What to scan."""

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
        """The Python that compiles: the one that is named, or this one."""
        return self.python or Path(sys.executable)


def kernel_cache() -> Path:
    """Where compiled kernels and their costs are kept between scans."""
    return files.moebox_cache() / "kernels"


def scan_engine(request: KernelRequest) -> KernelScan:
    """Every launch of the engine for this model, judged."""
    root = engine_root(request)
    answers = run_probe(request.compiler, probe_request(request, root))
    done = next((answer.done for answer in answers if answer.done), None)
    if done is None:
        raise ExternalError("the kernel probe ended before it was done")
    launches = tuple(judge_launch(answer.launch, request.arch) for answer in answers if answer.launch)
    version = engine_version(root, request.engine)
    missed = uncovered_cases(answers)
    if not launches:
        raise _nothing(request, missed)
    return KernelScan(
        engine=request.engine,
        version=version,
        arch=request.arch.name,
        model=request.model.name,
        tp=request.tp,
        kv=request.kv,
        triton=done.triton,
        launches=launches,
        not_covered=(*missed, *_unversioned(root, version)),
        judged=known_problems(engine=request.engine, version=version, arch=request.arch, model=request.model.name),
    )


def _unversioned(root: Path, version: str) -> list[NotCovered]:
    if version:
        return []
    why = f"the package under {root} does not say its version, so what is known of releases was not looked up"
    return [NotCovered(what="kernels that are not Triton's", why=why)]


def uncovered_cases(answers: Sequence[ProbeLine]) -> list[NotCovered]:
    """Cases that could not be judged, each once."""
    reasons = {answer.missed.case: answer.missed.why for answer in answers if answer.missed}
    empty = [answer.empty.case for answer in answers if answer.empty]
    reasons = {**dict.fromkeys(empty, "no Triton kernel was launched"), **reasons}
    return [NotCovered(what=case, why=why) for case, why in reasons.items()]


def _nothing(request: KernelRequest, missed: list[NotCovered]) -> MoeboxError:
    """No launch at all is no clean bill: it means that the files are not what they should be, or a word misspelt."""
    if missed:
        return ExternalError(
            f"no kernel of {request.engine} could be judged: {missed[0].what}: {missed[0].why}",
            hint="its files may have been edited, or be of a release this moebox does not know",
        )
    return BadInput(f"--only {request.only}: no case of {request.engine} has that in its name")


def engine_root(request: KernelRequest) -> Path:
    """The folder that holds the engine's package."""
    if given := request.site_packages:
        refuse_if(not (given / request.engine).is_dir(), f"{given}: holds no {request.engine} package")
        return given
    places = package_folders(request.python) if request.python else [Path(entry) for entry in sys.path if entry]
    for place in places:
        if is_package(place / request.engine):
            return place
    raise ExternalError(
        f"{request.engine} is not installed here",
        hint="name its venv with --python, or a folder with its unpacked wheel with --site-packages",
    )


def is_package(folder: Path) -> bool:
    """Whether the package of an engine lies here, not only a folder of its name."""
    return (folder / "version.py").exists() or (folder / "__init__.py").exists()


def package_folders(python: Path) -> list[Path]:
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


def probe_request(request: KernelRequest, root: Path) -> ScanRequest:
    """The request in the probe's words: sizes on one rank."""
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
    """One rank's share of the model."""
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
    """Run the probe under `python` and collect its answers."""
    check_triton(python)
    package = str(Path(moebox.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": package, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    command = [str(python), "-m", "moebox.kernels.probe"]
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
    """Refuse a Python without Triton and PyTorch, or with a Triton nobody has tried."""
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
    words = done.stdout.split()
    version = tuple(map(int, re.findall(r"\d+", words[0])[:2]))
    if not TRITON_MIN <= version <= TRITON_MAX:
        known = f"{TRITON_MIN[0]}.{TRITON_MIN[1]} to {TRITON_MAX[0]}.{TRITON_MAX[1]}"
        raise Unsupported(f"Triton {words[0]} is not one the kernel doctor knows ({known})")


def judge_launch(launch: LaunchRecord, arch: Arch) -> KernelLaunch:
    """What the probe recorded, with a verdict for the architecture."""
    return KernelLaunch(
        case=launch.case,
        kernel=launch.kernel,
        file=launch.file,
        line=launch.line,
        launched_from=launch.launched_from,
        blocks=launch.blocks,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        shared_bytes=launch.shared_bytes,
        limit_bytes=arch.smem,
        registers=launch.registers,
        stack_bytes=launch.stack_bytes,
        spill_bytes=launch.spilled_bytes,
        blocks_per_sm=arch.blocks_per_sm(launch.shared_bytes, launch.registers, launch.num_warps),
        error=launch.error,
        verdict=launch_verdict(launch, arch),
    )


def launch_verdict(launch: LaunchRecord, arch: Arch) -> LaunchVerdict:
    """Whether the architecture can launch it."""
    if launch.error:
        return "does not compile"
    if launch.shared_bytes > arch.smem:
        return "does not fit"
    return "spills" if launch.spilled_bytes else "launches"
