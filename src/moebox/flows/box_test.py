"""Test a box instead of reading its settings: collectives, copies, load, errors, memory, disk (`doctor box --test`)."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from moebox.core import registry
from moebox.core.box import Box
from moebox.core.recipe import Parallel
from moebox.detect import health, nvml
from moebox.detect.conditions import ConditionsWatch
from moebox.doctor import measured
from moebox.doctor.box import HostCheck
from moebox.doctor.rank_program import REDUCE_BYTES
from moebox.doctor.ranks import PROGRAM, find_torch_python, run_ranks
from moebox.hub.client import hub_cache
from moebox.planner.speed.constants import find_efficiency
from moebox.planner.speed.links import make_fabric
from moebox.serve.watch import Notify
from moebox.units import format_gb, format_seconds

LOAD_S = 10.0
COPY_DEADLINE_S = 120.0
CHECKPOINT = 595 * 10**9  # bytes of a native Kimi K2 checkpoint, as in doctor/box.py


def run_box_tests(box: Box, *, on_step: Notify) -> Iterator[HostCheck]:
    """Run every test that this machine allows; each ends at its deadline, and no process is left behind."""
    on_step("errors since boot")
    if box.gpus:
        yield from measured.kernel_log_checks(health.read_kernel_log())
    for index, count, state in health.memory_errors(module) if (module := nvml.load_nvml()) else ():
        name, expected = f"gpu{index} ecc", "no uncorrected error since boot"
        if count < 0:
            yield HostCheck(name, "unknown", "this GPU counts no memory errors, or ECC is off")
        elif count or state:
            found = ", ".join(filter(None, (f"{count} uncorrected errors", state)))
            fix = "reset the GPU (nvidia-smi -r) or reboot so that rows are replaced; replace the GPU if errors return"
            yield HostCheck(name, "fail", found, expected=expected, fix=fix)
        else:
            yield HostCheck(name, "pass", "none", expected=expected)
    on_step("a Python with torch")
    if python := find_torch_python():
        if box.gpus:
            on_step("copies between host and GPUs")
            copies = run_ranks([[python, str(PROGRAM), "copies"]], deadline_s=COPY_DEADLINE_S)
            yield from measured.copy_checks(box, copies)
            on_step(f"{LOAD_S:.0f} s of load")
            with ConditionsWatch() as watch:
                load = run_ranks([[python, str(PROGRAM), "load", str(LOAD_S)]], deadline_s=LOAD_S + COPY_DEADLINE_S)
            yield from measured.load_checks(box, load, watch.result(), LOAD_S)
        yield from reduce_checks(box, python, on_step=on_step)
    else:
        fix = "activate the engine's environment (or put vllm or sglang on PATH) and run it again"
        yield HostCheck("all-reduce", "unknown", "no Python with torch: not tested", fix=fix)
    on_step("memory bandwidth")
    ram_rate, threads = health.measure_bandwidth()
    yield measured.rate_check("ram", ram_rate, box.ram_bandwidth, "ram", note=f" read by {threads} threads")
    on_step("disk")
    rate, where = health.measure_disk(hub_cache())
    if rate:
        note = f" ({where}): {format_gb(CHECKPOINT)} in {format_seconds(CHECKPOINT / rate)}"
        yield measured.rate_check("disk speed", rate, measured.expectation("disk").rate, "disk", note=note)
    else:
        yield HostCheck("disk speed", "unknown", where)


def reduce_checks(box: Box, python: str, *, on_step: Notify, deadline_s: float = 0.0) -> Iterator[HostCheck]:
    """All-reduce over 2, 4, … and all GPUs, or over processes on the CPU; a failure is tried again without P2P."""
    backend, most = ("nccl", len(box.gpus)) if box.gpus else ("gloo", min(max(box.cpu.cores, 2), 4))
    deadline_s = deadline_s or measured.expectation("hang").deadline_s
    if most < 2:
        yield HostCheck("all-reduce", "pass", "one GPU: nothing to exchange")
    for ranks in sorted({min(2**power, most) for power in range(1, most.bit_length() + 1)} if most > 1 else ()):
        on_step(f"all-reduce over {ranks} ranks")
        check = run_reduce(python, ranks, backend, expected_reduce_s(box, ranks), deadline_s=deadline_s)
        if check.verdict == "fail" and backend == "nccl":
            on_step(f"all-reduce over {ranks} ranks without P2P")
            second = run_reduce(python, ranks, backend, {}, deadline_s=deadline_s, p2p=False)
            cure = "it works" if second.verdict == "pass" else "it fails as well"
            check = replace(check, fix=f"With NCCL_P2P_DISABLE=1 {cure}. {check.fix}")
        yield check
        if check.verdict == "fail":
            return  # larger groups contain this one


def run_reduce(
    python: str, ranks: int, backend: str, expected_s: dict[int, float], *, deadline_s: float, p2p: bool = True
) -> HostCheck:
    """Run one all-reduce over `ranks` processes, which meet in a file: no port is opened for it."""
    with tempfile.TemporaryDirectory(prefix="moebox-reduce-") as folder:
        meeting = str(Path(folder, "meeting"))
        words = [[python, str(PROGRAM), "reduce", str(rank), str(ranks), backend, meeting] for rank in range(ranks)]
        env = {"NCCL_DEBUG": "WARN"} | ({} if p2p else {"NCCL_P2P_DISABLE": "1"})
        run = run_ranks(words, deadline_s=deadline_s, env=env)
    return measured.reduce_check(run, backend=backend, ranks=ranks, expected_s=expected_s)


def expected_reduce_s(box: Box, ranks: int) -> dict[int, float]:
    """The planner's seconds for each size that the test sums, with slots at the generation of a busy GPU."""
    gpu = box.smallest_gpu
    if gpu is None:
        return {}
    if gpu.pcie:
        gpu = replace(gpu, pcie=replace(gpu.pcie, generation=gpu.pcie.max_generation))
    constants, _ = find_efficiency(registry.engine_names()[0], "", gpu.generation)
    fabric = make_fabric(box, gpu, constants, Parallel(tp=ranks))
    return {size: fabric.all_reduce(ranks, size) for size, _ in REDUCE_BYTES}
