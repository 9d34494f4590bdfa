"""Compare a box with an earlier capture of it: what changed since, and which of it costs speed."""

from collections.abc import Iterator
from typing import TypeVar

from moebox.core.box import Box, Gpu, Host
from moebox.doctor.box import HostCheck
from moebox.units import format_gib, format_rate

T = TypeVar("T")
MEMORY_NOISE = 0.02  # of RAM or GPU memory that firmware and drivers reserve differently


def compare_boxes(box: Box, old: Box) -> list[HostCheck]:
    """Name every change; warn of those that usually cost speed or stability."""
    changes = [*_compare_hosts(box, old), *_compare_memory(box, old)]
    if len(box.gpus) != len(old.gpus):
        found = f"{len(old.gpus)} before, {len(box.gpus)} now"
        fix = "`nvidia-smi` must list them all; look for Xid 79 (fallen off the bus) in dmesg" * (
            len(box.gpus) < len(old.gpus)
        )
        changes.append(HostCheck(name="gpus", verdict="warn", found=found, fix=fix))
    for number, (now, before) in enumerate(zip(box.gpus, old.gpus, strict=False)):
        changes += _compare_gpus(number, now, before)
    pairs = {(link.a, link.b): link for link in old.links}
    for link in box.links:
        before_link = pairs.get((link.a, link.b))
        if before_link and (before_link.kind, before_link.p2p, before_link.lanes) != (link.kind, link.p2p, link.lanes):
            name, lost = f"gpu{link.a}-gpu{link.b}", bool(before_link.p2p and link.p2p is False)
            texts = [f"{one.kind}, {one.lanes or 'no'} NVLinks, peer access {one.p2p}" for one in (before_link, link)]
            fix = "peer access is gone: BIOS (ACS, IOMMU) or driver" if lost else ""
            changes.append(HostCheck(name=name, verdict="warn", found=f"{texts[0]} before, {texts[1]} now", fix=fix))
    return changes or [HostCheck(name="changes", verdict="pass", found=f"none since the capture of {old.name}")]


def _change(name: str, before: T, now: T, *, fix: str = "") -> Iterator[HostCheck]:
    """A change between two values that are both known."""
    if before and now and before != now:
        yield HostCheck(name=name, verdict="warn" if fix else "pass", found=f"{before} before, {now} now", fix=fix)


def _compare_hosts(box: Box, old: Box) -> Iterator[HostCheck]:
    now, before = box.host or Host(), old.host or Host()
    yield from _change("driver", before.driver, now.driver, fix="rehearse and verify again: kernels and P2P hang on it")
    yield from _change("cuda", before.cuda, now.cuda)
    yield from _change("kernel", before.system, now.system, fix="IOMMU and P2P defaults may differ: --test shows it")
    fix = "check ACS, IOMMU, Above 4G, bifurcation and memory speed: updates reset them"
    yield from _change("bios", before.bios, now.bios, fix=fix)
    worse = before.iommu in ("off", "passthrough") and now.iommu == "on"
    fix = "boot with iommu=pt or iommu=off" if worse else ""
    yield from _change("iommu", before.iommu, now.iommu, fix=fix)
    fix = "switch ACS off in the BIOS" if now.acs.startswith("on") else ""
    yield from _change("acs", before.acs, now.acs, fix=fix)
    for name in sorted(before.engines.keys() | now.engines.keys()):
        yield from _change(name, before.engines.get(name, "not installed"), now.engines.get(name, "not installed"))


def _compare_memory(box: Box, old: Box) -> Iterator[HostCheck]:
    if old.ram and abs(box.ram - old.ram) > MEMORY_NOISE * old.ram:
        fix = "a module or channel is gone: dmidecode -t memory" if box.ram < old.ram else ""
        yield from _change("ram", format_gib(old.ram), format_gib(box.ram), fix=fix)
    before, now = old.ram_bandwidth_measured or 0, box.ram_bandwidth_measured or 0
    if before and now and abs(now - before) > 0.1 * before:
        fix = "memory speed or channels changed, or the machine is busy" if now < before else ""
        yield from _change("ram bandwidth", format_rate(before), format_rate(now), fix=fix)
    yield from _change("cpu", old.cpu.model, box.cpu.model)


def _compare_gpus(number: int, now: Gpu, before: Gpu) -> Iterator[HostCheck]:
    yield from _change(f"gpu{number}", before.title, now.title, fix="another GPU, or another order of them")
    if now.title != before.title:
        return
    if now.pcie and before.pcie:
        lanes = [f"x{slot.width}, at most {slot.max_generation}.0" for slot in (before.pcie, now.pcie)]
        fewer = (now.pcie.width, now.pcie.max_generation) < (before.pcie.width, before.pcie.max_generation)
        fix = "reseat the GPU or riser, check the slot's bifurcation in the BIOS" if fewer else ""
        yield from _change(f"gpu{number} lanes", *lanes, fix=fix)
    fix = "nvidia-smi -rgc, and look for clocks that were locked" if now.max_clock < before.max_clock else ""
    yield from _change(
        f"gpu{number} clocks", before.max_clock and f"{before.max_clock} MHz", f"{now.max_clock} MHz", fix=fix
    )
    fix = f"nvidia-smi -i {number} -pl {before.power_limit}" if now.power_limit < before.power_limit else ""
    yield from _change(
        f"gpu{number} power", before.power_limit and f"{before.power_limit} W", f"{now.power_limit} W", fix=fix
    )
    if abs(now.memory - before.memory) > MEMORY_NOISE * before.memory:
        yield from _change(
            f"gpu{number} memory", format_gib(before.memory), format_gib(now.memory), fix="ECC or MIG mode"
        )
