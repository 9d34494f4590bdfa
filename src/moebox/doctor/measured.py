"""Judge what the tests of a box measured against what the box should do (data/host_tests.toml)."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moebox import codec
from moebox.core.box import Box, Gpu
from moebox.core.catalogue import load_table
from moebox.core.conditions import Conditions
from moebox.core.symptom import xid_of_line
from moebox.doctor.box import HostCheck, HostVerdict
from moebox.doctor.logs import search_pieces
from moebox.doctor.ranks import RankRun
from moebox.units import format_rate, format_seconds, plural

HARMLESS = "power cap"  # a dense load reaches the power limit of most GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One table of data/host_tests.toml."""

    share: float = 0.0
    rate: float = 0.0
    factor: float = 0.0
    bad: float = 0.0
    fixed_us: float = 0.0
    deadline_s: float = 0.0
    reason: str = ""
    fix: str
    source: str


@functools.cache
def expectation(name: str) -> Expectation:
    return codec.decode(Expectation, load_table("host_tests")[name], where=f"host_tests.toml [{name}]")


def rate_check(
    name: str, rate: float, reference: float, kind: str, *, note: str = "", show: Callable[[float], str] = format_rate
) -> HostCheck:
    """Compare a rate with the share of a reference that counts as good; without a reference nothing is expected."""
    row, found = expectation(kind), f"{show(rate)}{note}"
    if not reference:
        return HostCheck(name, "unknown", found, expected="no figure for this part in the tables")
    least = row.rate or row.share * reference
    verdict: HostVerdict = "pass" if rate >= least else "fail" if rate < row.bad * reference else "warn"
    expected = f"at least {show(least)}: {row.reason}"
    return HostCheck(name, verdict, found, expected=expected, fix="" if rate >= least else row.fix)


def reduce_check(run: RankRun, *, backend: str, ranks: int, expected_s: dict[int, float]) -> HostCheck:
    """Judge one all-reduce: did it end, are the values right, is it as fast as the links allow."""
    name = f"all-reduce {ranks}"
    if run.outcome != "good":
        return failed_run(name, run)
    steps = run.all_steps("reduced")
    if wrong := sum(step["wrong"] for step in steps):
        found = f"{wrong:,} wrong values ({backend}, {plural(ranks, 'rank')})"
        fix = f"answers of every engine will be wrong on these GPUs. {expectation('hang').fix}"
        return HostCheck(name, "fail", found, expected="every sum exact", fix=fix)
    times = {size: max(step["us"] for step in steps if step["bytes"] == size) for size in {s["bytes"] for s in steps}}
    texts = [f"{us:,.0f} µs for {size // 1024:,} KiB" for size, us in sorted(times.items())]
    found = f"every value right ({backend}), {', '.join(texts)}"
    if not expected_s:
        expected = "exact sums; no speed is expected of processes on a CPU"
        return HostCheck(name, "pass", found, expected=expected)
    row = expectation("reduce")
    ratio = max((us - row.fixed_us) / (expected_s[size] * 1e6) for size, us in times.items())
    verdict: HostVerdict = "pass" if ratio <= row.factor else "fail" if ratio > row.bad else "warn"
    wanted = ", ".join(f"{expected_s[size] * 1e6:,.0f} µs" for size in sorted(times))
    expected = f"about {wanted}, good up to {row.factor:g} times that: {row.reason}"
    fix = "" if verdict == "pass" else row.fix
    return HostCheck(name, verdict, found, expected=expected, fix=fix)


def failed_run(name: str, run: RankRun) -> HostCheck:
    """The check of a test that hung or died: how far each rank came and what is known of its last words."""
    hang = expectation("hang")
    if run.unkillable:
        pids = ", ".join(map(str, run.unkillable))
        found = f"hangs in the driver: {run.progress}; process {pids} cannot be killed"
        return HostCheck(name, "fail", found, fix="only a reboot ends it; then look at dmesg for Xids")
    if run.outcome == "hung":
        found = f"no result in {format_seconds(run.seconds)}: {run.progress}; its processes were killed"
        return HostCheck(name, "fail", found, expected="an answer within the deadline", fix=hang.fix)
    cause = search_pieces([f"{run.message}\n".encode()]).cause
    last = (run.message.splitlines() or ["no message"])[-1][:300]
    found, fix = f"ended with an error: {last}", "run it with NCCL_DEBUG=INFO and look at the lines before"
    return HostCheck(name, "fail", found, fix=f"{cause.cause} {cause.remedy}" if cause else fix)


def copy_checks(box: Box, run: RankRun) -> Iterator[HostCheck]:
    """Judge copies between host and GPUs, inside them, and between each two of them."""
    if run.outcome != "good":
        yield failed_run("copies", run)
    for step in run.all_steps("host"):
        slot = slot_rate(box.gpus[step["gpu"]]) if step["gpu"] < len(box.gpus) else 0.0
        slower = min(step["to_gpu"], step["from_gpu"])
        note = f" the slower way, {step['us']:.1f} µs a small copy"
        yield rate_check(f"gpu{step['gpu']} host", slower, slot, "host_copy", note=note)
    for step in run.all_steps("memory"):
        gpu = box.gpus[step["gpu"]] if step["gpu"] < len(box.gpus) else None
        yield rate_check(f"gpu{step['gpu']} memory", step["rate"], gpu.bandwidth if gpu else 0, "gpu_memory")
    for step in run.all_steps("pair"):
        yield _pair_check(box, step)


def slot_rate(gpu: Gpu) -> float:
    """Bytes per second one way over a GPU's slot with its current lanes; idle slots lower their generation."""
    if gpu.pcie is None:
        return 0.0
    return float(dataclasses.replace(gpu.pcie, generation=gpu.pcie.max_generation).bytes_per_second)


def _pair_check(box: Box, step: dict[str, Any]) -> HostCheck:
    a, b = step["a"], step["b"]
    name, link = f"gpu{a} to gpu{b}", box.links_by_pair.get((a, b))
    if step["wrong"]:
        found = f"{step['wrong']:,} of the copied bytes are wrong"
        fix = f"peer copies corrupt data. {expectation('hang').fix}"
        return HostCheck(name, "fail", found, expected="every byte equal", fix=fix)
    gpus = [box.gpus[number] for number in (a, b) if number < len(box.gpus)]
    reference, kind = min(map(slot_rate, gpus), default=0.0), "peer_copy"
    if link and link.kind == "nvlink":
        reference, kind = min(gpu.nvlink for gpu in gpus) / 2, "nvlink_copy"
    elif not step["p2p"]:
        kind = "peer_copy_staged"
    elif link and link.kind == "sys":
        kind = "peer_copy_sockets"
    note = f", {step['us']:.1f} µs a small copy{'' if step['p2p'] else ', no peer access'}"
    return rate_check(name, step["rate"], reference, kind, note=note)


def load_checks(box: Box, run: RankRun, conditions: Conditions, seconds: float) -> Iterator[HostCheck]:
    """Judge clocks, throttling and the matrix rate under load, and errors that the load brought."""
    if run.outcome != "good":
        yield failed_run("load", run)
        return

    def show(flops: float) -> str:
        return f"{flops / 1e12:,.0f} TFLOP/s"

    reference, note = (
        min((gpu.bf16 for gpu in box.gpus), default=0.0),
        f" in bf16 on each GPU for {format_seconds(seconds)}",
    )
    yield rate_check("load", run.all_steps("loaded")[0]["flops"], reference, "matrix", note=note, show=show)
    for gpu in conditions.gpus:
        hard = [f"{reason} ({share:.0%} of the time)" for reason, share in gpu.throttled if reason != HARMLESS]
        problems = [*hard, *(f"Xid {number}" for number in gpu.xids)]
        problems += [f"{gpu.ecc_errors} uncorrected memory errors"] if gpu.ecc_errors else []
        if gpu.clock_mhz is None:
            continue
        caps = [f", power cap {share:.0%} of the time" for reason, share in gpu.throttled if reason == HARMLESS]
        most = f" of {gpu.max_clock_mhz:,.0f}" if gpu.max_clock_mhz else ""
        state = f"{gpu.clock_mhz:,.0f}{most} MHz, {gpu.power_w or 0:.0f} W, {gpu.temperature_c or 0:.0f} °C"
        yield HostCheck(
            f"gpu{gpu.index} clocks",
            "warn" if problems else "pass",
            "".join([state, *caps, ": " if problems else "", ", ".join(problems)]),
            expected="no throttling but by the power cap, no new errors",
            fix="check airflow, fans, power cables and the supply; nvidia-smi -q -d PERFORMANCE" if problems else "",
        )


def kernel_log_checks(lines: Sequence[str] | None) -> Iterator[HostCheck]:
    """Judge the Xids since boot; None if the kernel log cannot be read."""
    if lines is None:
        fix = "sudo dmesg | moebox doctor logs -"
        yield HostCheck("xids", "unknown", "the kernel log cannot be read by this user", fix=fix)
        return
    counts = Counter(xid for line in lines if (xid := xid_of_line(line)))
    for xid, count in counts.items():
        verdict: HostVerdict = "fail" if xid.severity == "fatal" and xid.owner != "application" else "warn"
        found = f"{plural(count, 'time')} since boot: {xid.cause}"
        yield HostCheck(f"xid {xid.number}", verdict, found, expected="none", fix=xid.action)
    if not counts:
        yield HostCheck("xids", "pass", "none since boot", expected="none")
