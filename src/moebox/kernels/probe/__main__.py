"""Reads one request on stdin, makes the engine launch its kernels, and writes what was recorded."""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .protocol import MissedCase, ProbeLine, ScanDone, ScanRequest

if TYPE_CHECKING:
    from .driver import LaunchRecorder

LaunchCase = tuple[str, Callable[[], Any]]


def main() -> int:
    """Scan and report; problems with single cases are reported, not raised."""
    request = ScanRequest.from_json(json.load(sys.stdin))
    cache = Path(request.cache)
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a machine that has a GPU keeps it out of this process
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # whatever the engine prints goes to stderr; the answers have this pipe to themselves
        for answer in scan_cases(request, cache):
            fields = {name: value for name, value in dataclasses.asdict(answer).items() if value is not None}
            out.write(json.dumps(fields, default=str) + "\n")
            out.flush()
    return 0


def scan_cases(request: ScanRequest, cache: Path) -> Iterator[ProbeLine]:
    """Every launch, what could not be judged, and the variants asked for."""
    import torch
    import triton

    from . import driver
    from .shapes import ScanShape

    root = Path(request.root).resolve()
    recorder = driver.LaunchRecorder(target=request.target, root=root, notes=cache / f"costs-{triton.__version__}.json")
    recorder.load_costs()
    driver.install_driver(recorder)
    engine = importlib.import_module(f"{__package__}.{request.engine}")
    engine.open_files(root, request.target)
    for case in engine.launch_cases(root, ScanShape(**dataclasses.asdict(request.shape), kv=request.kv)):
        if request.only in case[0]:
            yield from run_case(case, recorder)
    yield from compile_searches(request, recorder)
    recorder.save_costs()
    yield ProbeLine(done=ScanDone(triton=triton.__version__, torch=torch.__version__, python=sys.version.split()[0]))


def run_case(case: LaunchCase, recorder: "LaunchRecorder") -> Iterator[ProbeLine]:
    """The launches of one case; compilers and engines raise anything, and what they raise is the case's result."""
    import torch

    name, run = case
    before = recorder.begin_case(name)
    try:
        with torch.no_grad():
            run()
    except Exception as problem:
        if recorder.broken and recorder.broken[1] is problem:
            yield ProbeLine(launch=recorder.broken[0])
            return
        yield ProbeLine(missed=MissedCase(case=name, why=f"{type(problem).__name__}: {str(problem).strip()[:300]}"))
    for launch in recorder.launches[before:]:
        yield ProbeLine(launch=launch)
    if len(recorder.launches) == before:
        yield ProbeLine(empty=MissedCase(case=name))


def compile_searches(request: ScanRequest, recorder: "LaunchRecorder") -> Iterator[ProbeLine]:
    """The candidates of each search, compiled."""
    from .search import compile_variant

    places = {launch.hash: place for place, launch in reversed(list(enumerate(recorder.launches)))}
    for search in request.searches:
        for choice in search.candidates:
            yield ProbeLine(variant=compile_variant(recorder, places[search.hash], choice))


if __name__ == "__main__":
    sys.exit(main())
