"""Compare a box with an earlier capture of it: what changed since, and which of it costs speed."""

from collections.abc import Iterator

from moebox.core.box import Box, Gpu, Host, Link
from moebox.doctor.box import HostCheck
from moebox.units import format_gib

MEMORY_NOISE = 0.02  # of RAM or GPU memory that firmware and drivers reserve differently
RESEAT = "reseat the GPU or riser, check the slot's bifurcation in the BIOS"
Change = tuple[str, str, str, str]  # name, before, now, what to do if it is worse


def compare_boxes(box: Box, old: Box) -> list[HostCheck]:
    """Name every change between values that are known in both; warn of those that usually cost speed or stability."""
    changes = [*_host_changes(box.host or Host(), old.host or Host()), ("cpu", old.cpu.model, box.cpu.model, "")]
    if abs(box.ram - old.ram) > MEMORY_NOISE * old.ram:
        fix = "a module or channel is gone: dmidecode -t memory" * (box.ram < old.ram)
        changes.append(("ram", format_gib(old.ram), format_gib(box.ram), fix))
    lost = "`nvidia-smi` must list them all; look for Xid 79 (fallen off the bus) in dmesg"
    changes.append(("gpus", str(len(old.gpus)), str(len(box.gpus)), lost * (len(box.gpus) < len(old.gpus))))
    for number, (before, now) in enumerate(zip(old.gpus, box.gpus, strict=False)):
        changes += _gpu_changes(number, before, now)
    pairs = old.links_by_pair
    for link in box.links:
        if before_link := pairs.get((link.a, link.b)):
            fix = "peer access is gone: BIOS (ACS, IOMMU) or driver" if before_link.p2p and link.p2p is False else ""
            changes.append((f"gpu{link.a}-gpu{link.b}", _link_text(before_link), _link_text(link), fix))
    checks = [
        HostCheck(name=name, verdict="warn" if fix else "pass", found=f"{before} before, {now} now", fix=fix)
        for name, before, now, fix in changes
        if before and now and before != now
    ]
    return checks or [HostCheck(name="changes", verdict="pass", found=f"none since the capture of {old.name}")]


def _link_text(link: Link) -> str:
    return f"{link.kind}, {link.lanes or 'no'} NVLinks, peer access {link.p2p}"


def _host_changes(now: Host, before: Host) -> Iterator[Change]:
    yield "driver", before.driver, now.driver, "rehearse and verify again: kernels and P2P depend on it"
    yield "cuda", before.cuda, now.cuda, ""
    yield "kernel", before.system, now.system, "IOMMU and P2P defaults may differ: --test shows it"
    bios = "check ACS, IOMMU, Above 4G, bifurcation and memory speed: updates reset them"
    yield "bios", before.bios, now.bios, bios
    yield "iommu", before.iommu, now.iommu, "boot with iommu=pt or iommu=off" if now.iommu == "on" else ""
    yield "acs", before.acs, now.acs, "switch ACS off in the BIOS" if now.acs.startswith("on") else ""
    for name in sorted(before.engines.keys() | now.engines.keys()):
        yield name, before.engines.get(name, "not installed"), now.engines.get(name, "not installed"), ""


def _gpu_changes(number: int, before: Gpu, now: Gpu) -> Iterator[Change]:
    name = f"gpu{number}"
    yield name, before.title, now.title, "another GPU, or another order of them"
    if now.title != before.title:
        return
    if now.pcie and before.pcie:
        lanes = [f"x{slot.width}, at most {slot.max_generation}.0" for slot in (before.pcie, now.pcie)]
        worse = (now.pcie.width, now.pcie.max_generation) < (before.pcie.width, before.pcie.max_generation)
        yield f"{name} lanes", lanes[0], lanes[1], RESEAT if worse else ""
    if before.max_clock and now.max_clock:
        fix = "nvidia-smi -rgc, and look for clocks that were locked" * (now.max_clock < before.max_clock)
        yield f"{name} clocks", f"{before.max_clock} MHz", f"{now.max_clock} MHz", fix
    if before.power_limit and now.power_limit:
        fix = f"nvidia-smi -i {number} -pl {before.power_limit}" * (now.power_limit < before.power_limit)
        yield f"{name} power", f"{before.power_limit} W", f"{now.power_limit} W", fix
    if abs(now.memory - before.memory) > MEMORY_NOISE * before.memory:
        yield f"{name} memory", format_gib(before.memory), format_gib(now.memory), "ECC or MIG mode"
