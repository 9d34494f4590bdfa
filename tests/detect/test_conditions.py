"""Conditions of a measurement: what else the machine did, on this machine for real and with a stand-in for NVML."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moebox.core.conditions import Conditions, GpuConditions
from moebox.detect import conditions
from moebox.detect.conditions import ConditionsWatch, open_files
from tests.spin import busy_programs


def used_cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes so far."""
    total = 0.0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            total += sum(int(value) for value in file.read().rsplit(")", 1)[1].split()[11:13])
    return total / os.sysconf("SC_CLK_TCK")


def test_work_of_our_own_children_is_not_that_of_others() -> None:
    """What descends from moebox or from the engine's guard is measured, not blamed."""
    with ConditionsWatch(interval_s=0.2) as watch, busy_programs(1) as pids:
        while used_cpu_s(pids) < 0.5:
            time.sleep(0.05)
    seen = watch.result()
    assert seen.busy_cores is not None
    assert seen.other_cores is not None
    assert seen.busy_cores - seen.other_cores > 0.3 / seen.seconds


def test_work_of_others_is_seen_and_named() -> None:
    """A program outside our tree counts with its CPU time and its name."""
    code = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"  # its parent is init from now on
        "os.setsid(); print(os.getpid(), flush=True); sys.stdout.close(); os.close(1)\n"
        "until = time.process_time() + 60\n"
        "while time.process_time() < until: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(done.stdout)
    try:
        with ConditionsWatch(interval_s=0.2) as watch:
            before = used_cpu_s([pid])
            while used_cpu_s([pid]) - before < 1.0:
                time.sleep(0.05)
    finally:
        os.kill(pid, 9)
    seen = watch.result()
    assert seen.other_cores is not None
    assert seen.other_cores * seen.seconds > 0.8
    assert any("python" in name for name in seen.others)


class StandIn:
    """An NVML with one GPU at its power cap that another process uses, and an Xid."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8
    NVMLError = RuntimeError

    def __init__(self) -> None:
        self.events = [SimpleNamespace(device=SimpleNamespace(value=7), eventData=79)]

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return SimpleNamespace(value=7)

    def nvmlEventSetCreate(self) -> Any:
        return object()

    def nvmlDeviceRegisterEvents(self, handle: Any, kind: int, events: Any) -> None:
        pass

    def nvmlEventSetWait_v2(self, events: Any, timeout: int) -> Any:
        if not self.events:
            raise self.NVMLError("Timeout")
        return self.events.pop()

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=99)

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int:
        return 2430

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int:
        return 1500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return 0x4

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 300_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=1), SimpleNamespace(pid=os.getpid())]


def test_a_gpu_reports_what_limited_it() -> None:
    """Power cap, clocks, foreign processes and Xids are sentences; questions the driver refuses are left out."""
    with ConditionsWatch(nvml=StandIn(), interval_s=0.05) as watch:
        time.sleep(0.2)
    lines = " | ".join(watch.result().disturbances())
    assert "gpu0 was limited by its power cap in 100 % of the samples, 1500 of 2430 MHz" in lines
    assert "other processes used gpu0" in lines
    assert "Xid 79" in lines
    assert watch.result().gpus[0].temperature_c is None


def test_a_gpu_that_the_server_does_not_use_disturbs_nothing() -> None:
    """An engine on the CPU does not care who computes on the GPU."""

    class Elsewhere(StandIn):
        def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
            return [SimpleNamespace(pid=1)]

    with ConditionsWatch(nvml=Elsewhere(), interval_s=0.05) as watch:
        time.sleep(0.1)
    assert watch.result().gpus == ()


def test_a_gpu_in_a_container_is_recognised_by_its_open_device(tmp_path: Path) -> None:
    """The driver reports process numbers of the host, which mean nothing in a container."""

    class Contained(StandIn):
        def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
            return [SimpleNamespace(pid=4_000_000)]

        def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
            return 3

    code = "import sys\nwith open(sys.argv[1]): print(flush=True); sys.stdin.read()"
    with ConditionsWatch(nvml=Contained(), interval_s=0.05) as watch:
        time.sleep(0.1)
    assert watch.result().gpus == ()
    device = tmp_path / "nvidia3"
    device.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(device)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout
    holder.stdout.readline()
    try:
        assert str(device) in open_files(holder.pid)
        assert str(device) not in open_files(os.getpid()) | open_files(4_000_000)
    finally:
        holder.communicate("")


def test_a_quiet_machine_has_nothing_to_report() -> None:
    """Little work of others, or much of it with idle cores to spare, disturbs nothing."""
    quiet = Conditions(seconds=10, samples=11, cores=64, busy_cores=20.0, other_cores=5.0, steal=0.0, disk_read=10**6)
    assert quiet.disturbances() == ()
    full = Conditions(seconds=10, samples=11, cores=2, busy_cores=1.95, other_cores=0.4)
    assert full.disturbances() == ("other programs used 0.4 of 2 cores",)


def test_doubt_grows_with_what_was_lost() -> None:
    """Two percent of stolen CPU time move a figure less than a program that uses half of the cores."""
    common = {"seconds": 10.0, "samples": 11, "cores": 2}
    stolen = Conditions(**common, steal=0.02)
    shared = Conditions(**common, busy_cores=2.0, other_cores=1.0)
    throttled = Conditions(**common, gpus=(GpuConditions(index=0, throttled=(("power brake", 0.5),)),))
    capped = Conditions(**common, gpus=(GpuConditions(index=0, throttled=(("power cap", 0.5),)),))
    assert Conditions(**common).doubt() == capped.doubt() == 0
    assert 0 < stolen.doubt() < 0.05 < shared.doubt() <= throttled.doubt()
    assert capped.disturbances()


def test_every_condition_has_a_sentence() -> None:
    """Steal, memory pressure, disk reads and memory errors are named with their figures."""
    bad = Conditions(
        seconds=10,
        samples=11,
        cores=4,
        steal=0.11,
        memory_stall=0.3,
        disk_read=10**10,
        gpus=(GpuConditions(index=2, ecc_errors=3),),
    )
    text = " | ".join(bad.disturbances())
    assert "11 % of the CPU time" in text
    assert "30 % of the time" in text
    assert "read from disk" in text
    assert "gpu2 had 3 uncorrected memory errors" in text


def test_watch_reads_clocks_and_power_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest clock and the sum of the watts; nothing without a driver."""
    calls = {
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetTemperature": lambda gpu, _: 60 + gpu,
        "nvmlDeviceGetClockInfo": lambda gpu, _: 1980 - 600 * gpu,
        "nvmlDeviceGetPowerUsage": lambda gpu: 350_000,
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=90),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x20 * gpu,  # thermal slowdown
    }
    driver = SimpleNamespace(NVML_TEMPERATURE_GPU=0, NVML_CLOCK_SM=1, NVMLError=RuntimeError, **calls)
    monkeypatch.setattr(conditions, "load_nvml", lambda: driver)
    expected = {"gpu_throttled": 1.0, "gpu_temperature": 61.0, "gpu_watts": 700.0, "gpu_clock": 1380.0}
    assert conditions.sample_throttling() == expected
    monkeypatch.setattr(conditions, "load_nvml", lambda: None)
    assert conditions.sample_throttling() == {}
