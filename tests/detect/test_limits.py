"""A process that may use a part of the machine plans and judges with that part."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from moebox.detect.conditions import ConditionsWatch
from moebox.detect.limits import allowed_cpus, count_cores, cpu_quota, memory_share

GB = 10**9
TWO_CPUS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


def make_group(folder: Path, **values: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in values.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_limits_of_a_container_are_read(tmp_path: Path):
    """Control groups of version 2: the tightest limit on the way to the root holds; files in memory count as free."""
    own = tmp_path / "own"
    own.write_text("0::/job/step\n")
    make_group(
        tmp_path / "job", memory__max=str(4 * GB), memory__current=str(3 * GB), memory__stat=f"inactive_file {GB}"
    )
    make_group(tmp_path / "job" / "step", memory__max="max", cpu__max="250000 100000")
    share = memory_share(tmp_path, own)
    assert share.total == 4 * GB
    assert share.available == min(2 * GB, psutil.virtual_memory().available)
    assert cpu_quota(tmp_path, own) == 3


def test_limits_of_an_old_container_are_read(tmp_path: Path):
    """Control groups of version 1 have one tree for each controller."""
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/job\n4:memory:/job\n")
    make_group(tmp_path / "memory" / "job", memory__limit_in_bytes=str(3 * GB), memory__usage_in_bytes=str(GB))
    make_group(tmp_path / "memory" / "job", memory__stat="total_inactive_file 0")
    make_group(tmp_path / "cpu" / "job", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    assert memory_share(tmp_path, own).total == 3 * GB
    assert cpu_quota(tmp_path, own) == 4


def test_without_limits_the_whole_machine_counts(tmp_path: Path):
    own = tmp_path / "own"
    own.write_text("0::/\nrubbish\n")
    assert memory_share(tmp_path, own).total == psutil.virtual_memory().total
    assert cpu_quota(tmp_path, own) is None
    assert cpu_quota(tmp_path, tmp_path / "missing") is None


def test_hyperthreads_of_one_core_count_once(tmp_path: Path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        make_group(tmp_path / f"cpu{cpu}" / "topology", thread_siblings_list=siblings)
    assert count_cores(frozenset({0, 1, 2}), tmp_path) == 2
    assert count_cores(frozenset({0, 2}), tmp_path) == 1


@TWO_CPUS
def test_programs_on_other_cpus_disturb_nothing():
    """A measurement pinned to one CPU does not blame a busy program that is pinned to another one."""
    code = """
import time
from moebox.detect import conditions
conditions.NAMES_SHOWN = 1000  # on a busy machine others may use more
with conditions.ConditionsWatch(interval_s=0.1) as watch:
    time.sleep(1.0)
seen = watch.result()
print(seen.cores, "spinning-hog" in seen.others)
"""
    first, second = sorted(allowed_cpus())[:2]
    spin = ["-c", "import ctypes; ctypes.CDLL(None).prctl(15, b'spinning-hog', 0, 0, 0)\nwhile True: pass"]
    hog = subprocess.Popen([sys.executable, *spin], preexec_fn=lambda: os.sched_setaffinity(0, {second}))
    try:
        for cpus, expected in (({first}, "1 False"), ({first, second}, "2 True")):
            seen = subprocess.run(
                [sys.executable, "-c", code],
                preexec_fn=lambda cpus=cpus: os.sched_setaffinity(0, cpus),
                capture_output=True,
                text=True,
                check=True,
            )
            assert seen.stdout.strip() == expected
    finally:
        hog.kill()
        hog.wait()


def test_the_server_widens_the_cpus_that_count():
    """The engine may use more CPUs than the client."""
    assert allowed_cpus([os.getpid(), 2**30]) == frozenset(os.sched_getaffinity(0))
    with ConditionsWatch(interval_s=0.05) as watch:
        pass
    assert watch.result().cores == len(os.sched_getaffinity(0))
