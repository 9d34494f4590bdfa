"""Reads one request on stdin, makes the engine launch its kernels, and writes what was recorded."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .protocol import LaunchVariant, MissedCase, ProbeLine, ScanDone, ScanRequest
from .space import Choice

if TYPE_CHECKING:
    from .driver import LaunchRecorder

_KEPT_OPTIONS = ("num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid")


def main() -> int:
    """Scan and report; problems with single cases are reported, not raised."""
    request = ScanRequest.from_json(json.load(sys.stdin))
    cache = Path(request.cache)
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # hide a real GPU from this process
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what the engine prints goes to stderr; this pipe is for the answers alone
        for line in scan_cases(request, cache):
            fields = {name: value for name, value in dataclasses.asdict(line).items() if value is not None}
            out.write(json.dumps(fields, default=str) + "\n")
            out.flush()
    return 0


def scan_cases(request: ScanRequest, cache: Path) -> Iterator[ProbeLine]:
    """Yield every launch, the cases that could not be judged, and the requested variants."""
    import torch
    import triton

    from . import driver
    from .launches import ScanShape

    root = Path(request.root).resolve()
    notes = cache / f"costs-{triton.__version__}.json"
    recorder = driver.LaunchRecorder(target=request.target, root=root, notes=notes)
    recorder.load_costs()
    driver.install_driver(recorder)
    engine = importlib.import_module(f"{__package__}.{request.engine}")
    engine.open_files(root, request.target)
    for name, run in engine.launch_cases(root, ScanShape(**dataclasses.asdict(request.shape), kv=request.kv)):
        if request.only in name:
            yield from run_case(name, run, recorder)
    places = {launch.hash: place for place, launch in reversed(list(enumerate(recorder.launches)))}
    for search in request.searches:
        for choice in search.candidates:
            yield ProbeLine(variant=compile_variant(recorder, places[search.hash], choice))
    recorder.save_costs()
    yield ProbeLine(done=ScanDone(triton=triton.__version__, torch=torch.__version__, python=sys.version.split()[0]))


def run_case(name: str, run: Callable[[], Any], recorder: "LaunchRecorder") -> Iterator[ProbeLine]:
    """Yield the launches of one case; whatever a compiler or an engine raises is the case's result."""
    import torch

    recorder.case, recorder.broken, before = name, None, len(recorder.launches)
    try:
        with torch.no_grad():
            run()
    except Exception as problem:  # the engine's own code runs here and raises anything; other cases go on
        if recorder.broken and recorder.broken[1] is problem:
            yield ProbeLine(launch=recorder.broken[0])
            return
        yield ProbeLine(missed=MissedCase(case=name, why=f"{type(problem).__name__}: {str(problem).strip()[:300]}"))
    for launch in recorder.launches[before:]:
        yield ProbeLine(launch=launch)
    if len(recorder.launches) == before:
        yield ProbeLine(empty=MissedCase(case=name))


def compile_variant(recorder: "LaunchRecorder", index: int, choice: Choice) -> LaunchVariant:
    """Compile a recorded launch with the constants, warps and stages of `choice`, the rest as the engine had it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from .driver import kernel_resources

    source, metadata = recorder.sources[index]
    launch, names = recorder.launches[index].hash, source.fn.arg_names
    constants = {**source.constants, **{(names.index(name),): choice[name] for name in choice if name in names}}
    options = {name: getattr(metadata, name) for name in _KEPT_OPTIONS if getattr(metadata, name, None) is not None}
    options |= {"num_warps": choice["num_warps"], "num_stages": choice["num_stages"]}
    changed = ASTSource(fn=source.fn, signature=dict(source.signature), constexprs=constants, attrs=dict(source.attrs))
    try:
        target = GPUTarget("cuda", recorder.target.capability, 32)
        kernel = triton.compile(changed, target=target, options=options)
    except Exception as problem:  # a compiler's refusal has no common type: Triton's, LLVM's and ptxas' differ
        return LaunchVariant(hash=launch, choice=choice, error=f"{type(problem).__name__}: {str(problem)[:200]}")
    cost = recorder.costs.setdefault(kernel.metadata.hash, {})
    if "registers" not in cost:
        cost.update(kernel_resources(kernel.asm["cubin"]))
    return LaunchVariant(
        hash=launch,
        choice=choice,
        shared_bytes=kernel.metadata.shared,
        registers=cost.get("registers", 0),
        stack_bytes=cost.get("stack_bytes", 0),
        spill_bytes=cost.get("spill_bytes"),
    )


if __name__ == "__main__":
    sys.exit(main())
