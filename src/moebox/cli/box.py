"""`moebox box`: this machine, or a described one."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from moebox import detect
from moebox.cli import flags
from moebox.cli.display import make_grid, make_group, make_table
from moebox.cli.flags import AsJson, Ram, RamBandwidth, Switch
from moebox.cli.output import Part, print_note, print_parts, print_result
from moebox.core.box import Box
from moebox.core.recipe import VISIBLE_DEVICES
from moebox.units import format_gb, format_gib, format_rate, plural

LINK_NAMES = {"nvlink": "NV", "pix": "PIX", "pxb": "PXB", "phb": "PHB", "node": "NODE", "sys": "SYS"}
LINK_MEANINGS = {"NV": "NVLink", "PIX": "one PCIe switch", "PXB": "several switches", "PHB": "a host bridge"}
LINK_MEANINGS |= {"NODE": "one NUMA node", "SYS": "across sockets"}


def box(
    *,
    box: str | None = None,
    ram: Ram = "",
    ram_bandwidth: RamBandwidth = "",
    measure: Switch = False,
    hosts: Path | None = None,
    node_python: str = "",
    save: Path | None = None,
    json: AsJson = False,
) -> int:
    """Show this machine: GPUs, links, CPU, memory, and what is installed.

    Args:
        box: Show this box instead: COUNTxGPU such as 8x-h200 or 1x-rtx-5090+512GB, or a TOML file.
        measure: Measure the memory bandwidth; takes a few seconds.
        hosts: Time the network between the nodes of this hosts file, over ssh; forecasts with the saved box use it.
        node_python: The Python on those nodes. Default: python3.
        save: Write a capture bundle for a bug report to this folder, without names and serial numbers.
    """
    if not hosts:
        flags.refuse_without("--hosts", node_python=node_python)
    if measure:
        from moebox.detect.declared import with_ram
        from moebox.detect.machine import detect_machine

        flags.refuse_unused("--measure measures this machine", box=box, ram_bandwidth=ram_bandwidth)
        found = with_ram(detect_machine(measure=True), ram=ram, ram_bandwidth=ram_bandwidth)
    else:
        found = detect.load_box(box, ram=ram, ram_bandwidth=ram_bandwidth)
    if hosts:
        from moebox.serve.nodes import measure_network

        found = measure_network(found, hosts, python=node_python or "python3")
    print_result(json, found, lambda: print_parts(box_panel(found)))
    if save:
        from moebox.detect.bundle import save_bundle

        files = save_bundle(found, save)
        print_note(f"wrote {len(files)} files to {save}: {', '.join(file.name for file in files)}")
    return 0


def box_panel(box: Box) -> Part:
    from rich.panel import Panel

    parts = [gpu_table(box), "", make_grid(_box_facts(box), gap=2)]
    if box.links:
        parts += ["", *link_matrix(box)]
    if warnings := box_warnings(box):
        parts += ["", *((f"! {line}", "bold yellow") for line in warnings)]
    nodes = f", {box.nodes} nodes" if box.nodes > 1 else ""
    title = f"[bold]{box.name}[/bold] ({box.source}){nodes}"
    return Panel(make_group(*parts), title=title, title_align="left", expand=False, padding=(1, 2))


def gpu_table(box: Box) -> Part:
    """Return a row for each GPU; neighbours that are alike in every way share one."""
    if not box.gpus:
        return "no GPUs: the embedded engine and CPU engines can run here"
    has_free = any(gpu.memory_free is not None for gpu in box.gpus)
    heads = ["GPU", "model", "free memory" if has_free else "memory", "PCIe"]
    has_nvlink, has_numa = any(gpu.nvlink for gpu in box.gpus), any(gpu.numa is not None for gpu in box.gpus)
    heads += ["NVLink"] * has_nvlink + ["NUMA"] * has_numa
    rows = []
    for gpu, group in itertools.groupby(range(len(box.gpus)), key=lambda index: box.gpus[index]):
        first, *others = group
        memory = format_gib(gpu.memory)
        if gpu.memory_free is not None:
            memory = f"{gpu.memory_free / 2**30:.1f} of {memory}"
        slot: Part = f"{gpu.pcie.generation}.0 x{gpu.pcie.width}" if gpu.pcie else "unknown"
        if gpu.pcie and gpu.degraded_slot:
            slot = (f"{slot} (of x{gpu.pcie.max_width}!)", "bold red")
        cells: list[Part] = [f"{first}-{others[-1]}" if others else str(first), gpu.short_title, memory, slot]
        cells += [format_rate(gpu.nvlink) if gpu.nvlink else "none"] if has_nvlink else []
        cells += ["unknown" if gpu.numa is None else str(gpu.numa)] if has_numa else []
        rows.append(cells)
    return make_table(heads, rows, left_columns=("GPU", "model"), gap=1)


def _box_facts(box: Box) -> Iterator[tuple[str, str]]:
    """Yield GPUs, processor, memory, network, and what is installed; a described box has no host."""
    from moebox.planner.speed.links import describe_network

    for gpu in {gpu.name: gpu for gpu in box.gpus}.values():
        kind = f"{format_rate(gpu.bandwidth)}, sm {gpu.sm}, {gpu.smem:,} B of shared memory a block"
        yield "GPU", f"{gpu.short_title}: {kind}"
    for index, gpu in enumerate(box.gpus):
        for holder in gpu.holders:
            process = f"pid {holder.pid} {holder.name or '(another user)'}, {format_gb(holder.bytes)}"
            ours = f", moebox's {holder.instance}: a plan counts it as free" if holder.instance else ""
            yield f"gpu{index} held", process + ours
    cpu = box.cpu
    if cpu.model or cpu.cores:
        nodes = f", {cpu.numa_nodes} NUMA nodes" if cpu.numa_nodes > 1 else ""
        yield "CPU", f"{cpu.model}, {plural(cpu.sockets, 'socket')}, {cpu.cores} cores{nodes}"
    if box.ram:
        free = f", {format_gib(box.ram_free)} free" if box.ram_free is not None else ""
        speed = f"{format_rate(box.ram_bandwidth)} in theory" if box.ram_bandwidth else "bandwidth unknown (--measure)"
        if box.ram_bandwidth_measured:
            speed = f"{format_rate(box.ram_bandwidth_measured)} measured"
        yield "RAM", f"{format_gib(box.ram)}{free}, {speed}"
    elif box.has_unified_memory:
        yield "RAM", "shared with the GPU"
    if box.nodes > 1:
        yield "network", describe_network(box)
    if host := box.host:
        yield "driver", f"{host.driver} (CUDA {host.cuda})" if host.driver else "none"
        state = "".join(f", {name} {value}" for name, value in (("IOMMU", host.iommu), ("ACS", host.acs)) if value)
        yield "host", f"{host.system}, {format_gib(host.shm)} /dev/shm{state}"
        yield "disk", f"{format_gb(host.disk_free)} free for models"
        for name, versions in (("containers", host.runtimes), ("engines", host.engines)):
            yield name, ", ".join(map(" ".join, versions.items())) or "none found"
    if unverified := sorted({field for gpu in box.gpus for field in gpu.unverified}):
        yield "unverified", f"{', '.join(unverified)} rates: from data sheets, not measured here"


def link_matrix(box: Box) -> list[Part]:
    """Return how the GPUs are connected ("NV18", "PIX", "SYS no p2p") as a table, and what its words mean."""
    names = [f"gpu{index}" for index in range(len(box.gpus))]
    rows: list[list[Part]] = []
    for a, name in enumerate(names):
        links = [box.links_by_pair.get((a, b)) for b in range(len(names))]
        texts = (
            link and f"{LINK_NAMES.get(link.kind, link.kind)}{link.lanes or ''}{' no p2p' * (link.p2p is False)}"
            for link in links
        )
        rows.append([(name, "bold"), *(text or "·" for text in texts)])
    kinds = {LINK_NAMES.get(link.kind) for link in box.links}
    legend = ", ".join(f"{name} {meaning}" for name, meaning in LINK_MEANINGS.items() if name in kinds)
    return [make_table(("links", *names), rows, left_columns=("links",)), (legend, "dim")]


def box_warnings(box: Box) -> list[str]:
    """Return problems of the box that the user should see first."""
    lines = []
    for index, gpu in enumerate(box.gpus):
        if slot := gpu.degraded_slot:
            lanes = f"runs at x{slot.width} and could run at x{slot.max_width}"
            lines.append(f"gpu{index} {lanes}: check slot, riser, BIOS")
        if gpu.mig:
            lines.append(f"gpu{index} is in MIG mode: engines see its slices, not the GPU")
    if any(link.p2p is False for link in box.links):
        lines.append("some GPUs cannot reach each other directly: tensor parallel goes through host memory")
    if box.gpu_numbers:
        lines.append(f"{VISIBLE_DEVICES} hides all but the driver's GPU {', '.join(map(str, box.gpu_numbers))}")
    if box.is_mixed:
        lines.append("GPUs differ: tensor parallel runs at the speed and size of the smallest")
    return lines
