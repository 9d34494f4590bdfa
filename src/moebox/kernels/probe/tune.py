"""Times candidates on the GPU at hand, under another architecture's shared-memory limit; checks each against float32.

    python -m moebox.kernels.probe.tune REQUEST.json OUT.json

First every candidate is compiled, in as many processes as there are cores and without the GPU: for the limit's
architecture, to learn whether it fits there, and for the GPU at hand, to fill Triton's cache. Then one process times
them: all of them shortly, the better third longer, the best few and the baselines longest (successive halving).
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .protocol import Baseline, Target, Timed, TuneAnswer, TunedRow, TuneRequest
from .space import Choice

if TYPE_CHECKING:
    import torch

    from .tune_cases import Bench, Case

ROUNDS = ((10, 0.34), (40, 0.34), (120, 0.0))  # milliseconds a candidate, and the share that goes on
HOPELESS = 2.5  # times slower than the best so far at first sight: not timed again
CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # a program's own doing
LARGEST_ERROR = 1e-2  # relative, of a bf16 answer against float32


def cases_of(request: TuneRequest) -> list["Case"]:
    """The cases asked for, with the engine's files opened."""
    root = Path(request.root).resolve()
    engine = importlib.import_module(f"{__package__}.{request.engine}")
    engine.open_files(root, target_of(request, request.capability))
    cases = engine.tuned_cases(root, request.shape, smem=request.limit, sms=request.sms)
    return [case for case in cases if request.only in case.name]


def target_of(request: TuneRequest, capability: int) -> Target:
    """The GPU that compilers are told of."""
    return Target(capability, request.sms, request.device, memory=96 << 30, smem=1 << 30)


def compile_share(request: TuneRequest, capability: int, share: range) -> Iterator[tuple[str, int | None]]:
    """Compile a share of the candidates for an architecture that need not be there: the shared memory each asks for."""
    from . import driver

    notes = Path(request.cache) / f"tune-{capability}-{share.start}.json"
    driver.install(driver.Recorder(target=target_of(request, capability), root=Path("/"), notes=notes))
    if capability != request.capability:
        driver.sizes_only()  # nothing of this architecture is run here
    jobs = jobs_of(replace(request, capability=capability))
    if capability != request.limit_capability:
        fitting = set(json.loads((Path(request.cache) / "fits.json").read_text()))
        jobs = {name: job for name, job in jobs.items() if name in fitting}
    for name, (case, choice) in list(jobs.items())[share.start :: share.step]:
        try:
            yield name, case.build("meta").run(choice).metadata.shared
        except Exception as problem:
            tell(name, problem)
            yield name, None


def jobs_of(request: TuneRequest) -> dict[str, tuple["Case", Choice]]:
    """Every kernel that is to be compiled, once."""
    jobs: dict[str, tuple[Case, Choice]] = {}
    for case in cases_of(request):
        for choice in [*case.candidates, *case.baselines.values()]:
            jobs.setdefault(key(case, choice), (case, choice))
    return jobs


def tell(name: str, problem: Exception) -> None:
    """A candidate that does not compile or run is no candidate, but it is named."""
    print(f"{name}: {type(problem).__name__} {str(problem)[:100]}", file=sys.stderr)


def key(case: "Case", choice: Choice) -> str:
    """Candidates of one kind with one choice are one compiled kernel."""
    return f"{case.kind} {json.dumps(choice, sort_keys=True)}"


def compile_all(request: TuneRequest, path: str) -> dict[int, dict[str, int]]:
    """Both architectures, in parallel processes that never see the GPU."""
    workers = len(os.sched_getaffinity(0))
    sizes: dict[int, dict[str, int]] = {}
    for capability in dict.fromkeys((request.limit_capability, request.capability)):
        sizes[capability] = {}
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(lambda n, c=capability: run_share(path, c, n, workers), range(workers)):
                sizes[capability] |= found
        fitting = [name for name, size in sizes[capability].items() if size <= request.limit]
        if capability == request.limit_capability:
            Path(request.cache, "fits.json").write_text(json.dumps(fitting))
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


@dataclass(frozen=True)
class Limit:
    """What fits: the shared memory of every compiled kernel, under another architecture's limit."""

    sizes: dict[str, int]
    most: int

    def size(self, case: "Case", choice: Choice) -> int | None:
        """Bytes of a choice; None where it does not compile."""
        return self.sizes.get(key(case, choice))

    def fits(self, case: "Case", choice: Choice) -> bool:
        """Whether it can be launched there."""
        size = self.size(case, choice)
        return size is not None and size <= self.most


def measure(case: "Case", limit: Limit) -> TunedRow:
    """The best candidate of a case beside the baselines."""
    bench = case.build("cuda")
    watch = Watch(bench)
    fitting = [choice for choice in case.candidates if limit.fits(case, choice)]
    beside = [choice for choice in case.baselines.values() if limit.fits(case, choice)]
    finalists, times = rounds(watch, watch.hopeful(fitting + beside), case.group)
    good = [choice for choice in finalists if watch.error(choice) < LARGEST_ERROR]
    timed = [Timed(config=bench.config(choice), ms=times[json.dumps(choice)]) for choice in good]
    row = TunedRow(
        case=case.name,
        tried=len(fitting),
        of=len(case.candidates),
        best=None,
        ms=None,
        wrong=len(finalists) - len(good),
        field=timed,
        baselines=baselines(case, bench, watch, limit),
        groups=first_of_each(timed, case.group) if case.group else {},
    )
    return with_best(row, case, watch, limit, good[0]) if good else row


def first_of_each(timed: list[Timed], group: str) -> dict[str, Timed]:
    """The fastest for each value of the setting called `group`."""
    groups: dict[str, Timed] = {}
    for candidate in timed:
        groups.setdefault(str(candidate.config[group]), candidate)
    return groups


def rounds(watch: "Watch", field: list[Choice], group: str) -> tuple[list[Choice], dict[str, float]]:
    """Successive halving: the choices that were timed longest, fastest first, and their times."""
    times: dict[str, float] = {}
    for milliseconds, share in ROUNDS:
        times = {json.dumps(choice): watch.timed(choice, milliseconds) for choice in field}
        field = sorted(field, key=lambda choice: times[json.dumps(choice)])
        field = halved(field, share, group) if share else field
    return field, times


def baselines(case: "Case", bench: "Bench", watch: "Watch", limit: Limit) -> dict[str, Baseline]:
    """What upstream chooses, timed whether it fits or not."""
    return {
        name: Baseline(
            choice=choice,
            config=bench.config(choice),
            ms=watch.timed(choice, ROUNDS[-1][0]),
            shared_bytes=limit.size(case, choice),
            fits=limit.fits(case, choice),
        )
        for name, choice in case.baselines.items()
    }


def with_best(row: TunedRow, case: "Case", watch: "Watch", limit: Limit, best: Choice) -> TunedRow:
    """The row with the winner, timed once more."""
    return replace(
        row,
        best=watch.bench.config(best),
        ms=watch.timed(best, ROUNDS[-1][0]),
        shared_bytes=limit.size(case, best),
        error=watch.error(best),
    )


def halved(field: list[Choice], share: float, group: str) -> list[Choice]:
    """The share of a field, fastest first, that goes on; and the fastest of each group."""
    kept = field[: max(4, round(len(field) * share))]
    firsts: dict[int, Choice] = {}
    for choice in field:
        if group in choice:
            firsts.setdefault(choice[group], choice)
    return kept + [choice for choice in firsts.values() if choice not in kept]


class Watch:
    """Times and checks the choices of one case on the GPU at hand."""

    def __init__(self, bench: "Bench") -> None:
        self.bench, self.wanted = bench, bench.references()
        self.graphs: dict[str, torch.cuda.CUDAGraph] = {}

    def timed(self, choice: Choice, milliseconds: int) -> float:
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

    def captured(self, choice: Choice) -> Any:
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

    def hopeful(self, field: list[Choice]) -> list[Choice]:
        """Without those that one launch shows to be far slower than the best."""
        seen = [(self.once(choice), choice) for choice in field]
        best = min((ms for ms, _ in seen), default=0.0)
        return [choice for ms, choice in seen if ms <= best * HOPELESS and ms != float("inf")]

    def once(self, choice: Choice) -> float:
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

    def error(self, choice: Choice) -> float:
        """The largest relative error of what the choice computes."""
        self.bench.run(choice)
        pairs = zip(self.bench.outputs(), self.wanted, strict=True)
        return max(float((got - wanted).norm() / wanted.norm()) for got, wanted in pairs)


def main() -> int:
    """Compile a share for the parent, or do the whole job."""
    path = sys.argv[1]
    request = TuneRequest.of(json.loads(Path(path).read_text()))
    os.environ["TRITON_CACHE_DIR"] = request.cache
    Path(request.cache).mkdir(parents=True, exist_ok=True)
    if "--share" not in sys.argv:
        return tune(request, path, Path(sys.argv[2]))
    capability, first, step = (int(word) for word in sys.argv[-3:])
    if capability != request.capability:  # half-compiled kernels have a cache of their own
        os.environ["TRITON_CACHE_DIR"] = str(Path(request.cache) / "sizes")
    for found in compile_share(request, capability, range(first, sys.maxsize, step)):
        print(json.dumps(found), flush=True)
    return 0


def tune(request: TuneRequest, path: str, out: Path) -> int:
    """Compile everything, time one case after the other, and write down what is known after each."""
    import triton

    began = time.monotonic()
    sizes = compile_all(request, path)
    print(f"compiled {sum(map(len, sizes.values()))} kernels in {time.monotonic() - began:.0f} s", flush=True)
    limit = Limit(sizes=sizes[request.limit_capability], most=request.limit)
    rows: list[TunedRow] = []
    for case in cases_of(request):
        if time.monotonic() - began > request.seconds:
            print(f"out of time before {case.name}", flush=True)
            break
        rows.append(measure(case, limit))
        print(described(rows[-1]), flush=True)
        answer = TuneAnswer(triton=triton.__version__, rows=rows)
        out.write_text(json.dumps({"request": asdict(request), **asdict(answer)}, indent=1))
    return 0


def described(row: TunedRow) -> str:
    """One case in a line."""
    best = "none fits" if row.best is None else f"{row.ms:.3f} ms {row.best} error {row.error:.4f}"
    beside = (f"{name} {base.ms:.3f}{'' if base.fits else ' (does not fit)'}" for name, base in row.baselines.items())
    return f"{row.case}: {best} | {'  '.join(beside)}"


if __name__ == "__main__":
    sys.exit(main())
