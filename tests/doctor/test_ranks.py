"""Tests of a box: processes with a deadline, and what is made of their results. Stand-in ranks need no torch."""

import dataclasses
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from moebox.core.box import Box, Link
from moebox.core.catalogue import find_gpu
from moebox.core.conditions import Conditions, GpuConditions
from moebox.detect.health import measure_disk, read_kernel_log
from moebox.doctor import measured
from moebox.doctor.ranks import RankRun, find_torch_python, run_ranks
from moebox.flows.box_test import reduce_checks

GPU = find_gpu("rtx-pro-6000-server")
TWO = Box(name="two", gpus=(GPU, GPU), links=(Link(a=0, b=1, kind="pix", p2p=True),))


def rank(code: str) -> list[str]:
    """A stand-in rank: a Python program that prints steps."""
    return [sys.executable, "-c", "import json, os, sys, time\n" + code]


def reduced(**fields: object) -> str:
    """Code that reports one all-reduce of each size."""
    step = {"step": "reduced", "wrong": 0, "us": 20.0, **fields}
    rows = [{**step, "bytes": 8192}, {**step, "bytes": 64 * 2**20, "us": fields.get("large_us", 2000.0)}]
    return "print(json.dumps({'step': 'ready'}))\n" + "\n".join(
        f"print({str(row)!r}.replace(chr(39), chr(34)))" for row in rows
    )


def test_a_rank_that_hangs_is_ended_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    """The run returns, the outcome names how far each rank came, and neither it nor its child lives on."""
    note = tmp_path / "child"
    child = f"import subprocess as s; p = s.Popen(['sleep', '600']); open({str(note)!r}, 'w').write(str(p.pid))"
    hangs = f"print(json.dumps({{'step': 'joined'}}), flush=True)\n{child}\ntime.sleep(600)"
    run = run_ranks([rank(hangs), rank(reduced())], deadline_s=1.0, start_s=20.0)
    assert run.outcome == "hung"
    assert "rank 0 joined" in run.progress
    pid = int(note.read_text())
    end = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < end:
        time.sleep(0.02)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
    check = measured.reduce_check(run, backend="nccl", ranks=2, expected_s={})
    assert check.verdict == "fail"
    for word in ("ACS", "IOMMU", "NCCL_P2P_DISABLE=1"):
        assert word in check.fix


def test_a_rank_that_never_starts_is_a_hang() -> None:
    """Without a first step the time to start is the limit."""
    run = run_ranks([rank("time.sleep(600)")], deadline_s=60.0, start_s=0.3)
    assert (run.outcome, run.progress) == ("hung", "rank 0 not started")


def test_one_dead_rank_ends_the_others_and_its_message_is_explained() -> None:
    """A rank that fails leaves the others waiting for ever; they are killed at once."""
    dies = "print('{}', flush=True)\nsys.stderr.write('NCCL WARN Cuda failure 999\\nlast words')\nsys.exit(3)"
    began = time.monotonic()
    run = run_ranks([rank("print('{}', flush=True)\ntime.sleep(600)"), rank(dies)], deadline_s=60.0)
    assert run.outcome == "died"
    assert time.monotonic() - began < 60
    assert "last words" in measured.reduce_check(run, backend="nccl", ranks=2, expected_s={}).found


@pytest.mark.parametrize(
    ("steps", "verdict", "words"),
    [
        ({}, "pass", "every value right"),
        ({"wrong": 3}, "fail", "wrong values"),
        ({"large_us": 1e5}, "fail", "100,000 µs"),
        ({"large_us": 6e3}, "warn", "6,000 µs"),
    ],
)
def test_values_and_times_of_an_all_reduce_are_judged(steps: dict[str, object], verdict: str, words: str) -> None:
    """Wrong sums and a collapse fail, a slow link warns, and the expected time is named with its reason."""
    run = run_ranks([rank(reduced(**steps))] * 2, deadline_s=20.0)
    check = measured.reduce_check(run, backend="nccl", ranks=2, expected_s={8192: 6e-6, 64 * 2**20: 1.6e-3})
    assert check.verdict == verdict, check
    assert words in check.found
    assert check.expected
    assert bool(check.fix) == (verdict != "pass")


def test_a_hang_is_tried_again_without_peer_access(tmp_path: Path) -> None:
    """If it works with NCCL_P2P_DISABLE=1, peer access is the cause, and the remedy begins with that."""
    python = tmp_path / "python"
    steps = f"import json\n{reduced()}"
    (tmp_path / "good.py").write_text(steps)
    python.write_text(
        f'#!/bin/sh\n[ -n "$NCCL_P2P_DISABLE" ] && exec {sys.executable} {tmp_path / "good.py"}\n'
        'echo "{\\"step\\": \\"joined\\"}"; exec sleep 600\n'
    )
    python.chmod(0o755)
    checks = list(reduce_checks(TWO, str(python), on_step=print, deadline_s=0.5))
    assert [check.verdict for check in checks] == ["fail"]
    assert checks[0].fix.startswith("With NCCL_P2P_DISABLE=1 it works")


def test_copies_are_compared_with_slot_and_memory() -> None:
    """A narrow slot warns with the expected rate, corrupted peer copies fail, staged copies expect less."""
    steps = (
        {"step": "host", "gpu": 0, "to_gpu": 55e9, "from_gpu": 54e9, "us": 7.0},
        {"step": "host", "gpu": 1, "to_gpu": 27e9, "from_gpu": 28e9, "us": 7.0},
        {"step": "memory", "gpu": 0, "rate": 1.4e12},
        {"step": "pair", "a": 0, "b": 1, "p2p": True, "rate": 54e9, "us": 6.0, "wrong": 0},
        {"step": "pair", "a": 1, "b": 0, "p2p": False, "rate": 30e9, "us": 20.0, "wrong": 0},
        {"step": "pair", "a": 1, "b": 0, "p2p": True, "rate": 54e9, "us": 6.0, "wrong": 12},
    )
    checks = list(measured.copy_checks(TWO, RankRun(outcome="good", steps=(steps,))))
    assert [check.verdict for check in checks] == ["pass", "warn", "pass", "pass", "pass", "fail"]
    assert "at least 44 GB/s" in checks[1].expected
    assert all(check.expected for check in checks)


def test_throttling_by_heat_warns_and_the_power_cap_does_not() -> None:
    """Dense load reaches the power limit; temperature, brake and new errors are what an owner can fix."""
    run = RankRun(outcome="good", steps=(({"step": "loaded", "flops": 4e14},),))
    gpus = tuple(
        GpuConditions(index=index, clock_mhz=2300.0, max_clock_mhz=2430.0, power_w=590.0, throttled=((reason, 0.9),))
        for index, reason in enumerate(("power cap", "temperature (hardware)"))
    )
    conditions = Conditions(seconds=10.0, samples=10, cores=16, gpus=gpus)
    checks = list(measured.load_checks(TWO, run, conditions, 10.0))
    assert [check.verdict for check in checks] == ["pass", "pass", "warn"]


def test_xids_since_boot_are_counted_and_explained() -> None:
    """One line for each number; an unreadable log is unknown, not good."""
    line = "NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."
    checks = list(measured.kernel_log_checks([line, line]))
    assert [(check.name, check.verdict) for check in checks] == [("xid 79", "fail")]
    assert "2 times" in checks[0].found
    assert next(measured.kernel_log_checks(None)).verdict == "unknown"
    assert next(measured.kernel_log_checks([])).verdict == "pass"


def test_a_kernel_log_that_a_user_may_not_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """journalctl answers "No entries" and dmesg refuses: that is not a log without Xids. The second may have one."""
    for name, text in (("journalctl", "echo '-- No entries --'"), ("dmesg", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert read_kernel_log() is None
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:41:00): 79, x'; echo other\n")
    assert read_kernel_log() == ["NVRM: Xid (PCI:0000:41:00): 79, x"]


def test_the_disk_of_a_folder_is_timed_or_the_reason_named(tmp_path: Path) -> None:
    """A large file is read; a folder that does not exist counts as the nearest one that does."""
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(512 * 2**20)
    rate, where = measure_disk(tmp_path)
    assert rate > 0
    assert where.endswith("weights")


@pytest.mark.slow
@pytest.mark.skipif(not find_torch_python(), reason="no Python with torch")
def test_gloo_sums_over_processes_on_a_cpu() -> None:
    """Real collectives: the engine's torch, processes on this machine, values checked."""
    box = dataclasses.replace(Box(name="cpu"), cpu=dataclasses.replace(Box(name="cpu").cpu, cores=os.cpu_count() or 2))
    assert all(check.verdict == "pass" for check in reduce_checks(box, find_torch_python(), on_step=print))
