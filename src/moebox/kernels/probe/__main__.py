"""Reads one request on stdin, makes the engine launch its kernels, and writes what was recorded."""

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Scan and report; problems with single cases are reported, not raised."""
    request = json.load(sys.stdin)
    cache = Path(request["cache"])
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a machine that has a GPU keeps it out of this process
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to stderr; the answers have this pipe to themselves

    def tell(**record: Any) -> None:
        out.write(json.dumps(record, default=str) + "\n")
        out.flush()

    import torch
    import triton

    from . import driver, importing
    from .shapes import Shape

    arch = driver.Arch(**request["arch"])
    root = Path(request["root"]).resolve()
    recorder = driver.Recorder(arch=arch, root=root, notes=cache / f"costs-{triton.__version__}.json")
    recorder.load()
    driver.install(recorder)
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in request["shape"].items()}
    shape = Shape(**given)
    if request["engine"] == "sglang":
        importing.open_sglang(root, arch.capability)
        from .sglang import cases
    else:
        importing.open_vllm(root, arch.capability, arch.device_name, arch.sms)
        from .vllm import cases
    wanted = request.get("only") or ""
    for name, run in cases(root, shape):
        if wanted and wanted not in name:
            continue
        recorder.case, recorder.broken, before = name, None, len(recorder.launches)
        try:
            with torch.no_grad():
                run()
        except Exception as problem:
            if recorder.broken and recorder.broken[1] is problem:
                tell(launch=recorder.broken[0])
                continue
            tell(missed={"case": name, "why": f"{type(problem).__name__}: {str(problem).strip()[:300]}"})
        for launch in recorder.launches[before:]:
            tell(launch=launch)
        if len(recorder.launches) == before:
            tell(empty={"case": name})
    for wanted_search in request.get("searches", []):
        from .search import variants

        index = next(i for i, one in enumerate(recorder.launches) if one["hash"] == wanted_search["hash"])
        for axes in wanted_search["candidates"]:
            for record in variants(recorder, index, {name: [value] for name, value in axes.items()}):
                tell(variant={"hash": wanted_search["hash"], **record})
    recorder.save()
    tell(done={"triton": triton.__version__, "torch": torch.__version__, "python": sys.version.split()[0]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
