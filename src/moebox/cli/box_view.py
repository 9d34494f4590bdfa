"""A box as a picture for the terminal."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from moebox.cli.tables import make_grid
from moebox.core.box import Box, Cpu, Gpu, Host, Link
from moebox.core.gpu_list import VISIBLE_DEVICES
from moebox.planner.speed.links import describe_network
from moebox.units import format_gb, format_gib, format_rate, plural

_SHORT = {"nvlink": "NV", "pix": "PIX", "pxb": "PXB", "phb": "PHB", "node": "NODE", "sys": "SYS"}
_MEANING = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several switches",
    "PHB": "a host bridge",
    "NODE": "one NUMA node",
    "SYS": "across sockets",
}


def box_panel(box: Box) -> RenderableType:
    """The whole box."""
    title = f"[bold]{box.name}[/bold] ({box.source})"
    if box.nodes > 1:
        title += f", {box.nodes} nodes"
    parts: list[RenderableType] = [gpu_table(box), Text(), fact_table(box)]
    if box.links:
        parts += [Text(), link_matrix(box)]
    alarms = box_warnings(box)
    if alarms:
        parts += [Text(), *(Text(f"! {line}", style="bold yellow") for line in alarms)]
    return Panel(Group(*parts), title=title, title_align="left", expand=False, padding=(1, 2))


def gpu_table(box: Box) -> RenderableType:
    """A row for each GPU; GPUs that are alike in every way share one."""
    if not box.gpus:
        return Text("no GPUs: the embedded engine and CPU engines can run here")
    table = Table(box=None, pad_edge=False)
    shown = [column for column in _COLUMNS if column.there(box)]
    for column in shown:
        table.add_column(column.title(box), justify=column.justify, no_wrap=True)
    for numbers, gpu in group_gpus(box.gpus):
        table.add_row(*(column.read(numbers, gpu) for column in shown))
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column of the GPUs: its title, what it shows of a group of them, and on which boxes."""

    title: Callable[[Box], str]
    read: Callable[[str, Gpu], RenderableType]
    justify: Literal["left", "right"] = "right"
    there: Callable[[Box], bool] = lambda box: True


def _memory_title(box: Box) -> str:
    return "free memory" if any(gpu.memory_free is not None for gpu in box.gpus) else "memory"


_COLUMNS = (
    _Column(title=lambda box: "GPU", read=lambda numbers, gpu: numbers, justify="left"),
    _Column(title=lambda box: "model", read=lambda numbers, gpu: gpu_name(gpu), justify="left"),
    _Column(title=_memory_title, read=lambda numbers, gpu: gpu_memory(gpu)),
    _Column(title=lambda box: "PCIe", read=lambda numbers, gpu: pcie_slot(gpu)),
    _Column(
        title=lambda box: "NVLink",
        read=lambda numbers, gpu: format_rate(gpu.nvlink) if gpu.nvlink else "-",
        there=lambda box: any(gpu.nvlink for gpu in box.gpus),
    ),
    _Column(
        title=lambda box: "NUMA",
        read=lambda numbers, gpu: "-" if gpu.numa is None else str(gpu.numa),
        there=lambda box: any(gpu.numa is not None for gpu in box.gpus),
    ),
)


def gpu_name(gpu: Gpu) -> str:
    """The GPU's name as people say it."""
    return gpu.title.removeprefix("NVIDIA ").removesuffix(" Edition").replace(" Blackwell", "")


def group_gpus(gpus: tuple[Gpu, ...]) -> list[tuple[str, Gpu]]:
    """Runs of equal GPUs as ("0-3", GPU)."""
    groups: list[tuple[int, int, Gpu]] = []
    for index, gpu in enumerate(gpus):
        if groups and groups[-1][2] == gpu:
            groups[-1] = (groups[-1][0], index, gpu)
        else:
            groups.append((index, index, gpu))
    return [(str(a) if a == b else f"{a}-{b}", gpu) for a, b, gpu in groups]


def gpu_memory(gpu: Gpu) -> str:
    """Total memory, and what is free where that is known."""
    if gpu.memory_free is None:
        return format_gib(gpu.memory)
    return f"{gpu.memory_free / 2**30:.1f} of {format_gib(gpu.memory)}"


def pcie_slot(gpu: Gpu) -> Text:
    """The slot now; fewer lanes than possible stand out."""
    if not gpu.pcie:
        return Text("-")
    now = f"{gpu.pcie.generation}.0 x{gpu.pcie.width}"
    return Text(f"{now} (of x{gpu.pcie.max_width}!)", style="bold red") if gpu.degraded_slot else Text(now)


def fact_table(box: Box) -> RenderableType:
    """CPU, memory and what is installed; a described box has no host."""
    host = _host_facts(box.host) if box.host else ()
    table = make_grid((*_gpu_facts(box), *_memory_facts(box), *host), gap=2)
    unsure = sorted({field for gpu in box.gpus for field in gpu.unverified})
    if unsure:
        table.add_row("unverified", f"{', '.join(unsure)} rates: from data sheets, not measured here")
    return table


def _gpu_facts(box: Box) -> Iterator[tuple[str, str]]:
    """Each kind of GPU, and who holds memory of which."""
    for gpu in {gpu.name: gpu for gpu in box.gpus}.values():
        kind = f"{format_rate(gpu.bandwidth)}, sm {gpu.sm}, {gpu.smem:,} B of shared memory a block"
        yield "GPU", f"{gpu_name(gpu)}: {kind}"
    for index, gpu in enumerate(box.gpus):
        for holder in gpu.holders:
            who = f"pid {holder.pid} {holder.name or '(another user)'}"
            ours = f", moebox's {holder.instance}: a plan counts it as free" if holder.instance else ""
            yield f"gpu{index} held", f"{who}, {format_gb(holder.bytes)}{ours}"


def _memory_facts(box: Box) -> Iterator[tuple[str, str]]:
    """Processor, RAM, and the network where there are several nodes."""
    if box.cpu.model or box.cpu.cores:
        yield "CPU", _processor(box.cpu)
    if box.ram:
        free = f", {format_gib(box.ram_free)} free" if box.ram_free is not None else ""
        yield "RAM", f"{format_gib(box.ram)}{free}{ram_bandwidth(box)}"
    elif box.has_unified_memory:
        yield "RAM", "the GPU's memory: both use the same"
    if box.nodes > 1:
        yield "network", describe_network(box)


def _processor(cpu: Cpu) -> str:
    nodes = f", {cpu.numa_nodes} NUMA nodes" if cpu.numa_nodes > 1 else ""
    return f"{cpu.model}, {plural(cpu.sockets, 'socket')}, {cpu.cores} cores{nodes}"


def _host_facts(host: Host) -> Iterator[tuple[str, str]]:
    """Driver, system, disk, and what is installed."""
    yield "driver", f"{host.driver} (CUDA {host.cuda})" if host.driver else "none"
    state = "".join(f", {name} {value}" for name, value in (("IOMMU", host.iommu), ("ACS", host.acs)) if value)
    yield "host", f"{host.system}, {format_gib(host.shm)} /dev/shm{state}"
    yield "disk", f"{format_gb(host.disk_free)} free for models"
    yield "containers", _versions(host.runtimes)
    yield "engines", _versions(host.engines)


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "none found"


def ram_bandwidth(box: Box) -> str:
    """Memory bandwidth: measured before theoretical."""
    if box.ram_bandwidth_measured:
        return f", {format_rate(box.ram_bandwidth_measured)} measured"
    return f", {format_rate(box.ram_bandwidth)} in theory" if box.ram_bandwidth else ", bandwidth unknown (--measure)"


def link_matrix(box: Box) -> RenderableType:
    """How the GPUs reach each other."""
    places = range(len(box.gpus))
    table = Table(box=None, pad_edge=False)
    table.add_column("links")
    for index in places:
        table.add_column(f"gpu{index}", justify="center")
    links = box.links_by_pair
    for a in places:
        table.add_row(Text(f"gpu{a}", style="bold"), *(Text(_joint(links.get((a, b)))) for b in places))
    kinds = {_SHORT.get(link.kind) for link in box.links}
    legend = ", ".join(f"{word} {meaning}" for word, meaning in _MEANING.items() if word in kinds)
    return Group(table, Text(legend, style="dim"))


def _joint(link: Link | None) -> str:
    """The way between two GPUs: "NV18", "PIX", "SYS no p2p"."""
    if link is None:
        return "·"
    lanes = str(link.lanes) if link.lanes else ""
    return _SHORT.get(link.kind, link.kind) + lanes + (" no p2p" if link.p2p is False else "")


def box_warnings(box: Box) -> list[str]:
    """What a person should see before anything else."""
    lines = [line for index, gpu in enumerate(box.gpus) for line in _gpu_warnings(index, gpu)]
    if any(link.p2p is False for link in box.links):
        lines.append("some GPUs cannot reach each other directly: tensor parallel goes through host memory")
    if box.gpu_numbers:
        lines.append(f"{VISIBLE_DEVICES} hides all but the driver's GPU {', '.join(map(str, box.gpu_numbers))}")
    if box.is_mixed:
        lines.append("GPUs differ: tensor parallel runs at the pace and size of the smallest")
    return lines


def _gpu_warnings(index: int, gpu: Gpu) -> Iterator[str]:
    if gpu.degraded_slot:
        lanes = f"runs at x{gpu.degraded_slot.width} and could run at x{gpu.degraded_slot.max_width}"
        yield f"gpu{index} {lanes}: check slot, riser, BIOS"
    if gpu.mig:
        yield f"gpu{index} is in MIG mode: engines see its slices, not the GPU"
