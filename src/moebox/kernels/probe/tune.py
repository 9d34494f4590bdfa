"""Times candidates on the GPU at hand, under another architecture's shared-memory limit; checks each against float32.

    python -m moebox.kernels.probe.tune REQUEST.json OUT.json

First every candidate is compiled, in as many processes as there are cores and without the GPU: for the limit's
architecture, to learn whether it fits there, and for the GPU at hand, to fill Triton's cache. Then one process times
them: all of them shortly, the better third longer, the best few and the baselines longest (successive halving).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROUNDS = ((10, 0.34), (40, 0.34), (120, 0.0))  # milliseconds a candidate, and the share that goes on
HOPELESS = 2.5  # times slower than the best so far at first sight: not timed again
CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # a program's own doing
LARGEST_ERROR = 1e-2  # relative, of a bf16 answer against float32


def cases_of(request: dict[str, Any]) -> list[Any]:
    """The cases asked for, with the engines' files opened."""
    from . import importing, tune_cases, tune_experts
    from .space import Shape

    shape = Shape(**request["shape"])
    limits = {"smem": request["limit"], "sms": request["sms"]}
    root = Path(request["root"]).resolve()
    if request["engine"] == "sglang":
        importing.open_sglang(root, request["capability"])
        found = tune_cases.extend_cases(root, shape) + tune_experts.sglang_cases(root, shape, **limits)
    else:
        importing.open_vllm(root, request["capability"], request["device"], request["sms"])
        found = tune_cases.decode_cases(shape) + tune_experts.vllm_cases(shape, **limits)
    return [case for case in found if request["only"] in case.name]


def compile_share(request: dict[str, Any], capability: int, share: range) -> Iterator[tuple[str, int | None]]:
    """Compile a share of the candidates for an architecture that need not be there: the shared memory each asks for."""
    from . import driver

    notes = Path(request["cache"]) / f"tune-{capability}-{share.start}.json"
    arch = driver.Arch(capability, request["sms"], request["device"], 96 << 30, 1 << 30)
    driver.install(driver.Recorder(arch=arch, root=Path("/"), notes=notes))
    if capability != request["capability"]:
        driver.sizes_only()  # nothing of this architecture is run here
    jobs: dict[str, Any] = {}
    for case in cases_of({**request, "capability": capability}):
        for choice in [*case.candidates, *case.baselines.values()]:
            jobs.setdefault(key(case, choice), (case, choice))
    only = Path(request["cache"]) / "fits.json"
    if capability != request["limit_capability"]:
        fitting = set(json.loads(only.read_text()))
        jobs = {name: job for name, job in jobs.items() if name in fitting}
    for name, (case, choice) in list(jobs.items())[share.start :: share.step]:
        try:
            yield name, case.build("meta").run(choice).metadata.shared
        except Exception as problem:
            tell(name, problem)
            yield name, None


def tell(name: str, problem: Exception) -> None:
    """A candidate that does not compile or run is no candidate, but it is named."""
    print(f"{name}: {type(problem).__name__} {str(problem)[:100]}", file=sys.stderr)


def key(case: Any, choice: dict[str, int]) -> str:
    """Candidates of one kind with one choice are one compiled kernel."""
    return f"{case.kind} {json.dumps(choice, sort_keys=True)}"


def compile_all(request: dict[str, Any], path: str) -> dict[int, dict[str, int]]:
    """Both architectures, in parallel processes that never see the GPU."""
    workers = os.cpu_count() or 1
    sizes: dict[int, dict[str, int]] = {}
    for capability in dict.fromkeys((request["limit_capability"], request["capability"])):
        sizes[capability] = {}
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(lambda n, c=capability: run_share(path, c, n, workers), range(workers)):
                sizes[capability] |= found
        fitting = [name for name, size in sizes[capability].items() if size <= request["limit"]]
        if capability == request["limit_capability"]:
            Path(request["cache"], "fits.json").write_text(json.dumps(fitting))
    return sizes


def run_share(path: str, capability: int, first: int, step: int) -> dict[str, int]:
    """A share in a process of its own; where the compiler takes that down, another goes on behind the kernel."""
    command = [sys.executable, "-m", "moebox.kernels.probe.tune", path, "--share", str(capability)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found: dict[str, int] = {}
    while True:
        done = subprocess.run(
            [*command, str(first), str(step)], env=env, stdout=subprocess.PIPE, text=True, check=False
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found |= {name: size for name, size in lines if size is not None}
        if -done.returncode not in CRASHES:
            done.check_returncode()  # the engine's files cannot be opened, or somebody interrupts
            return found
        print(f"the compiler died ({signal.Signals(-done.returncode).name}); going on", file=sys.stderr)
        first += step * (len(lines) + 1)


def measure(case: Any, sizes: dict[int, dict[str, int]], request: dict[str, Any]) -> dict[str, Any]:
    """The best candidate of a case beside the baselines."""
    limit, there = request["limit"], sizes[request["limit_capability"]]
    bench = case.build("cuda")
    watch = Watch(bench)

    def fits(choice: dict[str, int]) -> bool:
        return bool(there.get(key(case, choice), 1 << 30) <= limit)

    field = watch.hopeful([choice for choice in [*case.candidates, *case.baselines.values()] if fits(choice)])
    times: dict[str, float] = {}
    for milliseconds, share in ROUNDS:
        times = {json.dumps(choice): watch.timed(choice, milliseconds) for choice in field}
        field = sorted(field, key=lambda choice: times[json.dumps(choice)])
        if share:
            field = halved(field, share, case.group)
    good = [choice for choice in field if watch.error(choice) < LARGEST_ERROR]
    best = good[0] if good else None
    baselines = {
        name: {
            "choice": choice,
            "config": bench.config(choice),
            "ms": watch.timed(choice, ROUNDS[-1][0]),
            "shared_bytes": there.get(key(case, choice)),
            "fits": fits(choice),
        }
        for name, choice in case.baselines.items()
    }
    groups: dict[str, Any] = {}
    for choice in good if case.group else []:
        config = bench.config(choice)
        groups.setdefault(str(config[case.group]), {"config": config, "ms": times[json.dumps(choice)]})
    return {
        "case": case.name,
        "tried": len([choice for choice in case.candidates if fits(choice)]),
        "of": len(case.candidates),
        "best": bench.config(best) if best else None,
        "ms": watch.timed(best, ROUNDS[-1][0]) if best else None,
        "shared_bytes": there.get(key(case, best)) if best else None,
        "error": watch.error(best) if best else None,
        "wrong": len(field) - len(good),
        "field": [{"config": bench.config(choice), "ms": times[json.dumps(choice)]} for choice in good],
        "baselines": baselines,
        **({"groups": groups} if case.group else {}),
    }


def halved(field: list[dict[str, int]], share: float, group: str) -> list[dict[str, int]]:
    """The share of a field, fastest first, that goes on; and the fastest of each group."""
    kept = field[: max(4, round(len(field) * share))]
    firsts: dict[int, dict[str, int]] = {}
    for choice in field:
        if group in choice:
            firsts.setdefault(choice[group], choice)
    return kept + [choice for choice in firsts.values() if choice not in kept]


class Watch:
    """Times and checks the choices of one case on the GPU at hand."""

    def __init__(self, bench: Any) -> None:
        self.bench, self.wanted = bench, bench.references()
        self.graphs: dict[str, Any] = {}

    def timed(self, choice: dict[str, int], milliseconds: int) -> float:
        """The median in ms, L2 flushed between launches; infinite for what does not run."""
        import torch
        from triton.testing import do_bench

        try:
            replay = self.captured(choice).replay
            return float(do_bench(replay, warmup=5, rep=milliseconds, return_mode="median"))
        except Exception as problem:
            tell(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def captured(self, choice: dict[str, int]) -> Any:
        """The launch as a CUDA graph, as engines decode: an engine's Python takes longer than a small kernel."""
        import torch

        name = json.dumps(choice)
        if name not in self.graphs:
            self.bench.run(choice)  # compiled, loaded and sorted before anything is captured
            torch.cuda.synchronize()
            self.graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[name]):
                self.bench.run(choice)
        return self.graphs[name]

    def hopeful(self, field: list[dict[str, int]]) -> list[dict[str, int]]:
        """Without those that one launch shows to be far slower than the best."""
        seen = [(self.once(choice), choice) for choice in field]
        best = min((ms for ms, _ in seen), default=0.0)
        return [choice for ms, choice in seen if ms <= best * HOPELESS and ms != float("inf")]

    def once(self, choice: dict[str, int]) -> float:
        """One launch after one to warm up, in ms."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        try:
            self.bench.run(choice)
            torch.cuda.synchronize()
            start.record()
            self.bench.run(choice)
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end))
        except Exception as problem:
            tell(json.dumps(choice), problem)
            torch.cuda.synchronize()
            return float("inf")

    def error(self, choice: dict[str, int]) -> float:
        """The largest relative error of what the choice computes."""
        self.bench.run(choice)
        pairs = zip(self.bench.outputs(), self.wanted, strict=True)
        return max(float((got - wanted).norm() / wanted.norm()) for got, wanted in pairs)


def main() -> int:
    """Compile a share for the parent, or do the whole job."""
    path = sys.argv[1]
    request = json.loads(Path(path).read_text())
    os.environ["TRITON_CACHE_DIR"] = request["cache"]
    Path(request["cache"]).mkdir(parents=True, exist_ok=True)
    if "--share" in sys.argv:
        capability, first, step = (int(word) for word in sys.argv[-3:])
        if capability != request["capability"]:  # half-compiled kernels have a cache of their own
            os.environ["TRITON_CACHE_DIR"] = str(Path(request["cache"]) / "sizes")
        for found in compile_share(request, capability, range(first, sys.maxsize, step)):
            print(json.dumps(found), flush=True)
        return 0
    import triton

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
        beside = "  ".join(_said(name, one) for name, one in row["baselines"].items())
        shown = "none fits" if row["best"] is None else f"{row['ms']:.3f} ms {row['best']} error {row['error']:.4f}"
        print(f"{row['case']}: {shown} | {beside}", flush=True)
        answer = {"request": request, "triton": triton.__version__, "rows": rows}
        Path(sys.argv[2]).write_text(json.dumps(answer, indent=1))
    return 0


def _said(name: str, one: dict[str, Any]) -> str:
    return f"{name} {one['ms']:.3f}{'' if one['fits'] else ' (does not fit)'}"


if __name__ == "__main__":
    sys.exit(main())
