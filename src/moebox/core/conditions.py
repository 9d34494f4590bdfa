"""The conditions of a measurement: what else used the machine, and what held it back.

Facts and their judgement only; `detect/conditions.py` takes the samples.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from moebox.units import format_gb, format_seconds

# A program that uses a tenth of a core takes nothing from a server while cores are idle. With no core idle it does.
OTHERS_CORES = 0.1
IDLE_SHARE = 0.15
# A quarter of all cores shares caches and memory bandwidth enough to be seen, however many cores are idle.
OTHERS_SHARE = 0.25
MIN_WINDOW_S = 1.0  # the kernel counts CPU time in hundredths of a second: shorter windows are not judged
STEAL_SHARE = 0.02  # of the CPU time, given to other virtual machines
STALL_SHARE = 0.02  # of the time in which some process waited for memory (/proc/pressure/memory)
# Doubt about a speed for each share of the CPU that was lost: the embedded engine on two cores made 64 tok/s beside a
# program that used one of them, 138 without it (ln 2.2 = 0.77 for a half).
LOST_CPU_DOUBT = 1.5
MOST_DOUBT = 0.6
READ_RATE = 50e6  # bytes/s from disks: weights that do not stay in RAM
# NVML's reasons for lower clocks that change results; idle, application settings and display clocks do not.
THROTTLE_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "temperature (software)"}
THROTTLE_REASONS |= {0x40: "temperature (hardware)", 0x80: "power brake"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConditions:
    index: int
    clock_mhz: float | None = None  # mean of the SM clock while the GPU was busy
    max_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None  # highest
    throttled: tuple[tuple[str, float], ...] = ()  # reason, share of the samples
    other_processes: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()
    ecc_errors: int = 0  # uncorrected ones that were added


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What was seen on the machine of the client, and of the engine if it is the same one."""

    seconds: float
    samples: int
    cores: int
    busy_cores: float | None = None  # mean, of everything
    other_cores: float | None = None  # mean, of processes that belong neither to moebox nor to the engine
    other_cores_peak: float | None = None
    steal: float | None = None  # share of all CPU time
    memory_stall: float | None = None  # share of the time in which some process waited for memory
    disk_read: int | None = None  # bytes
    longest_gap_s: float = 0.0  # between two samples: the machine slept, or moebox was stopped
    others: tuple[str, ...] = ()  # the busiest other programs, by name
    gpus: tuple[GpuConditions, ...] = ()

    def disturbances(self) -> tuple[str, ...]:
        """Sentences about what may have changed the figures; none if the machine was quiet."""
        return tuple(line for line, _ in self._cpu()) + tuple(line for gpu in self.gpus for line in _gpu_lines(gpu))

    def doubt(self) -> float:
        """How far the disturbances may have moved a speed: the standard deviation of its logarithm.

        A GPU's power cap holds for every load, so it moves none.
        """
        known = [each for _, each in self._cpu()]
        known += [MOST_DOUBT for gpu in self.gpus for line in _gpu_lines(gpu) if "power cap" not in line]
        return min(math.hypot(*known), MOST_DOUBT)

    def _cpu(self) -> Iterable[tuple[str, float]]:
        """Sentences about the host, each with the doubt that it leaves."""
        if self.seconds < MIN_WINDOW_S:
            return
        if self.other_cores is not None and self.busy_cores is not None:
            is_full = self.busy_cores >= self.cores * (1 - IDLE_SHARE)
            if (self.other_cores >= OTHERS_CORES and is_full) or self.other_cores >= OTHERS_SHARE * self.cores:
                names = f" ({', '.join(self.others)})" if self.others else ""
                text = f"other programs{names} used {self.other_cores:.1f} of {self.cores} cores"
                yield text, LOST_CPU_DOUBT * self.other_cores / self.cores
        if self.steal is not None and self.steal >= STEAL_SHARE:
            text = f"the host gave {self.steal * 100:.0f} % of the CPU time to other virtual machines"
            yield text, LOST_CPU_DOUBT * self.steal
        if self.memory_stall is not None and self.memory_stall >= STALL_SHARE:
            yield f"processes waited for memory during {self.memory_stall * 100:.0f} % of the time", MOST_DOUBT
        if self.disk_read is not None and self.seconds and self.disk_read / self.seconds >= READ_RATE:
            yield f"{format_gb(self.disk_read)} were read from disk in {format_seconds(self.seconds)}", MOST_DOUBT


def _gpu_lines(gpu: GpuConditions) -> Iterable[str]:
    for reason, share in gpu.throttled:
        clock = f", {gpu.clock_mhz:.0f} of {gpu.max_clock_mhz:.0f} MHz" if gpu.clock_mhz and gpu.max_clock_mhz else ""
        yield f"gpu{gpu.index} was limited by its {reason} in {share * 100:.0f} % of the samples{clock}"
    if gpu.other_processes:
        yield f"other processes used gpu{gpu.index}: {', '.join(gpu.other_processes)}"
    if gpu.xids:
        yield f"gpu{gpu.index} reported Xid {', '.join(map(str, gpu.xids))}"
    if gpu.ecc_errors:
        yield f"gpu{gpu.index} had {gpu.ecc_errors} uncorrected memory errors"
