"""Times candidates on the GPU at hand, under another architecture's shared-memory limit; checks each against float32.

    python -m moebox.doctor.kernels.probe.tune REQUEST.json OUT.json

First every candidate is compiled, in as many processes as there are cores and without the GPU: for the limit's
architecture, to learn whether it fits there, and for the GPU at hand, to fill Triton's cache. Then one process times
them: all of them shortly, the better third longer, the best few and the baselines longest (successive halving).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS = ((10, 0.34), (40, 0.34), (120, 0.0))  # milliseconds a candidate, and the share that goes on
LARGEST_ERROR = 1e-2  # relative, of a bf16 answer against float32


def cases_of(request: dict[str, Any]) -> list[Any]:
    """The cases asked for, with the engines' files opened."""
    from . import importing, tune_cases

    wanted = request["kinds"]
    found = []
    if request.get("sglang"):
        root = Path(request["sglang"]).resolve()
        importing.open_sglang(root, request["capability"])
        found += tune_cases.extend_cases(root)
    if request.get("vllm"):
        root = Path(request["vllm"]).resolve()
        importing.open_vllm(root, request["capability"], request["device"], request["sms"])
        found += tune_cases.decode_cases(root) + tune_cases.moe_cases(root)
    return [case for case in found if any(case.kind.startswith(kind) for kind in wanted)]


def compile_share(request: dict[str, Any], capability: int, number: int, of: int) -> dict[str, int]:
    """Compile every `of`-th candidate for an architecture that need not be there: shared memory by kind and choice."""
    from . import driver

    notes = Path(request["cache"]) / f"tune-{capability}-{number}.json"
    arch = driver.Arch(capability, request["sms"], request["device"], 96 << 30, 1 << 30)
    driver.install(driver.Recorder(arch=arch, root=Path("/"), notes=notes))
    jobs: dict[str, Any] = {}
    for case in cases_of({**request, "capability": capability}):
        for choice in [*case.candidates, *case.baselines.values()]:
            jobs.setdefault(key(case, choice), (case, choice))
    only = Path(request["cache"]) / "fits.json"
    if capability != request["limit_capability"]:
        fitting = set(json.loads(only.read_text()))
        jobs = {name: job for name, job in jobs.items() if name in fitting}
    sizes: dict[str, int] = {}
    for name, (case, choice) in list(jobs.items())[number::of]:
        try:
            sizes[name] = case.build("meta").run(choice).metadata.shared
        except Exception as problem:
            print(f"{name}: {type(problem).__name__} {str(problem)[:100]}", file=sys.stderr)
    return sizes


def key(case: Any, choice: dict[str, int]) -> str:
    """Candidates of one kind with one choice are one compiled kernel."""
    return f"{case.kind} {json.dumps(choice, sort_keys=True)}"


def compile_all(request: dict[str, Any], path: str) -> dict[int, dict[str, int]]:
    """Both architectures, in parallel processes that never see the GPU."""
    workers = os.cpu_count() or 1
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    sizes: dict[int, dict[str, int]] = {}
    for capability in dict.fromkeys((request["limit_capability"], request["capability"])):
        command = [sys.executable, "-m", "moebox.doctor.kernels.probe.tune", path, "--share"]
        running = [
            subprocess.Popen(
                [*command, str(capability), str(n), str(workers)], env=env, stdout=subprocess.PIPE, text=True
            )
            for n in range(workers)
        ]
        sizes[capability] = {}
        for one in running:
            text, _ = one.communicate()
            sizes[capability] |= json.loads(text.strip().splitlines()[-1]) if text.strip() else {}
        fitting = [name for name, size in sizes[capability].items() if size <= request["limit"]]
        if capability == request["limit_capability"]:
            Path(request["cache"], "fits.json").write_text(json.dumps(fitting))
    return sizes


def measure(case: Any, sizes: dict[int, dict[str, int]], request: dict[str, Any]) -> dict[str, Any]:
    """The best candidate of a case beside the baselines."""
    import torch
    from triton.testing import do_bench

    limit, there = request["limit"], sizes[request["limit_capability"]]
    bench = case.build("cuda")
    wanted = bench.reference() if bench.reference else None

    def fits(choice: dict[str, int]) -> bool:
        return bool(there.get(key(case, choice), 1 << 30) <= limit)

    def timed(choice: dict[str, int], milliseconds: int) -> float:
        try:
            return float(do_bench(lambda: bench.run(choice), warmup=5, rep=milliseconds, return_mode="median"))
        except Exception:
            torch.cuda.synchronize()
            return float("inf")

    def error(choice: dict[str, int]) -> float:
        if wanted is None or bench.output is None:
            return 0.0
        bench.run(choice)
        return float((bench.output() - wanted).norm() / wanted.norm())

    field = [choice for choice in [*case.candidates, *case.baselines.values()] if fits(choice)]
    times: dict[str, float] = {}
    for milliseconds, share in ROUNDS:
        times = {json.dumps(choice): timed(choice, milliseconds) for choice in field}
        keep = max(4, round(len(field) * share)) if share else len(field)
        field = sorted(field, key=lambda choice: times[json.dumps(choice)])[:keep]
    good = [choice for choice in field if error(choice) < LARGEST_ERROR]
    best = good[0] if good else None
    baselines = {
        name: {
            "choice": choice,
            "ms": timed(choice, ROUNDS[-1][0]),
            "shared_bytes": there.get(key(case, choice)),
            "fits": fits(choice),
        }
        for name, choice in case.baselines.items()
    }
    return {
        "case": case.name,
        "tried": len([choice for choice in case.candidates if fits(choice)]),
        "of": len(case.candidates),
        "best": best,
        "ms": timed(best, ROUNDS[-1][0]) if best else None,
        "shared_bytes": there.get(key(case, best)) if best else None,
        "error": error(best) if best else None,
        "wrong": len(field) - len(good),
        "baselines": baselines,
    }


def main() -> int:
    """Compile a share for the parent, or do the whole job."""
    path = sys.argv[1]
    request = json.loads(Path(path).read_text())
    os.environ["TRITON_CACHE_DIR"] = request["cache"]
    Path(request["cache"]).mkdir(parents=True, exist_ok=True)
    if "--share" in sys.argv:
        capability, number, of = (int(word) for word in sys.argv[-3:])
        print(json.dumps(compile_share(request, capability, number, of)))
        return 0
    began = time.monotonic()
    sizes = compile_all(request, path)
    print(f"compiled {sum(map(len, sizes.values()))} kernels in {time.monotonic() - began:.0f} s", flush=True)
    rows = []
    for case in cases_of(request):
        if time.monotonic() - began > request["seconds"]:
            print(f"out of time before {case.name}", flush=True)
            break
        rows.append(measure(case, sizes, request))
        row = rows[-1]
        beside = "  ".join(
            f"{name} {one['ms']:.3f}{'' if one['fits'] else ' (does not fit)'}"
            for name, one in row["baselines"].items()
        )
        shown = "none fits" if row["best"] is None else f"{row['ms']:.3f} ms {row['best']} error {row['error']:.4f}"
        print(f"{row['case']}: {shown} | {beside}", flush=True)
        Path(sys.argv[2]).write_text(json.dumps({"request": request, "rows": rows}, indent=1))
    return 0


def _said(name: str, one: dict[str, Any]) -> str:
    return f"{name} {one['ms']:.3f}{'' if one['fits'] else ' (does not fit)'}"


if __name__ == "__main__":
    sys.exit(main())
