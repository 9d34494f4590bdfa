"""This machine as a Box."""

import os
from collections import Counter
from dataclasses import replace

from moebox.core import catalogue
from moebox.core.box import Box
from moebox.core.recipe import VISIBLE_DEVICES
from moebox.detect import host as hosts
from moebox.detect import nvml
from moebox.detect.limits import memory_share


def detect_machine(*, measure: bool = False) -> Box:
    """Detect this machine; with `measure` also read memory for a second or two to measure its bandwidth."""
    module = nvml.load_nvml()
    driver = nvml.read_driver(module, only=os.environ.get(VISIBLE_DEVICES)) if module else nvml.DriverReport()
    memory = memory_share()
    cpu, bandwidth, measured = hosts.detect_cpu(), 0, None
    rows = (row for row in catalogue.load_table("cpus")["cpu"] if row["match"].lower() in cpu.model.lower())
    if row := next(rows, None):  # the theoretical bandwidth of its memory channels
        cpu, bandwidth = replace(cpu, channels=row["channels"] * cpu.sockets), row["bandwidth"] * cpu.sockets
    if measure:
        from moebox.detect.health import measure_bandwidth

        measured = measure_bandwidth()[0] or None
    unified = any(gpu.unified for gpu in driver.gpus)  # all memory is counted as the GPU's
    return Box(
        name=machine_name(driver),
        gpus=driver.gpus,
        gpu_numbers=driver.numbers,
        links=driver.links,
        cpu=cpu,
        ram=0 if unified else memory.total,
        ram_free=None if unified else memory.available,
        ram_bandwidth=bandwidth,
        ram_bandwidth_measured=measured,
        host=hosts.detect_host(driver=driver.version, cuda=driver.cuda),
        source="detected",
    )


def machine_name(driver: nvml.DriverReport) -> str:
    """The machine in the syntax of `--box`."""
    kinds = Counter(gpu.name for gpu in driver.gpus)
    return "+".join(f"{number}x-{name}" for name, number in kinds.items()) or "no-gpu"
