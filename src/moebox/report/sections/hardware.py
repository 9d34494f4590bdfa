"""The box: what it is, and how its GPUs are joined."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from moebox import units
from moebox.core.box import Box, Gpu, Link
from moebox.report.block import Block, CustomBlock, ReportTable, Section, TableCell, TableColumn, text_cell
from moebox.report.format import format_gib, group_by, join_names
from moebox.report.naming import box_title, cpu_title, short_title
from moebox.report.palette import run_colour
from moebox.report.record import RunRecord

NEAR = ("pix", "pxb")  # behind one PCIe switch, in nvidia-smi topo's words
WORDS = {"nvlink": "NVLink", "pix": "PIX", "pxb": "PXB", "phb": "PHB", "node": "NODE", "sys": "SYS"}
MOST_IN_MATRIX = 16  # GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBox:
    """One GPU in the drawing."""

    index: int
    title: str
    memory: str
    slot: str
    warn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One NUMA node: groups of cards, those behind a common switch together."""

    title: str
    groups: tuple[tuple[str, tuple[GpuBox, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDrawing:
    """One box as it is drawn."""

    title: str
    host: str
    nodes: tuple[NumaNode, ...]
    fabric: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    runs: tuple[tuple[str, int], ...]  # labels and colours of the runs on it, when there are several boxes


def section(records: Sequence[RunRecord]) -> Section:
    """Each different box once."""
    boxes = by_box(records)
    blocks = chain.from_iterable(shown(box, users, records, named=len(boxes) > 1) for box, users in boxes)
    text = lead(boxes[0][0]) if len(boxes) == 1 else ""
    return Section(id="hardware", title="Hardware and topology", lead=text, blocks=tuple(blocks))


def shown(box: Box, users: Sequence[int], records: Sequence[RunRecord], *, named: bool) -> Iterator[Block]:
    """One box, with the runs on it where there are several boxes; its links where that matrix can be read."""
    runs = tuple((records[index].label, run_colour(index)) for index in users) if named else ()
    yield CustomBlock(kind="topology", data=drawing(box, records[users[0]], runs))
    if box.links and len(box.gpus) <= MOST_IN_MATRIX:
        yield link_matrix(box)


def by_box(records: Sequence[RunRecord]) -> list[tuple[Box, list[int]]]:
    """Each different box, and the runs that were on it."""
    boxes: list[tuple[Box, list[int]]] = []
    for index, record in enumerate(records):
        if record.box is None:
            continue
        users = next((users for box, users in boxes if box == record.box), None)
        if users is None:
            boxes.append((record.box, [index]))
        else:
            users.append(index)
    return boxes


def lead(box: Box) -> str:
    """What of the box decides."""
    if not box.gpus:
        return f"No GPU: everything runs on the CPU with {format_gib(box.ram, 0)} of RAM." if box.ram else "No GPU."
    total = f"{format_gib(box.gpu_memory)} of device memory in all"
    if linked(box):
        return f"{total}; the GPUs are joined by NVLink."
    return f"{total}{over_pcie(box)}."


def over_pcie(box: Box) -> str:
    """What GPUs without NVLink share; "" for one alone."""
    if len(box.gpus) == 1:
        return ""
    homes = {gpu.numa for gpu in box.gpus if gpu.numa is not None}
    far = f" and between {len(homes)} NUMA nodes" if len(homes) > 1 else ""
    return f"; without NVLink, every all-reduce crosses PCIe{far}"


def linked(box: Box) -> bool:
    """Whether any of its GPUs have NVLink."""
    return any(gpu.nvlink for gpu in box.gpus) or any(link.kind == "nvlink" for link in box.links)


def drawing(box: Box, record: RunRecord, runs: tuple[tuple[str, int], ...]) -> TopologyDrawing:
    """The box as nodes, groups and cards."""
    return TopologyDrawing(
        title=box_title(record),
        host=host(box),
        nodes=tuple(numa_nodes(box)),
        fabric=fabric(box),
        facts=facts(box),
        notes=record.box_notes,
        runs=runs,
    )


def numa_nodes(box: Box) -> Iterator[NumaNode]:
    """The GPUs by the NUMA node they hang on; one without a name where there is only one."""
    homes = group_by(range(len(box.gpus)), lambda index: box.gpus[index].numa or 0)
    for home, members in sorted(homes.items()):
        groups = tuple((name, cards(box, group)) for name, group in switches(box, members))
        yield NumaNode(title=f"NUMA node {home}" if len(homes) > 1 else "", groups=groups)


def cards(box: Box, group: Sequence[int]) -> tuple[GpuBox, ...]:
    """GPUs behind one switch."""
    return tuple(card(index, box.gpus[index], named=box.is_mixed) for index in group)


def fabric(box: Box) -> str:
    """NVLink in a line; "" without."""
    rates = [gpu.nvlink for gpu in box.gpus if gpu.nvlink]
    if rates:
        return f"NVLink, {units.format_rate(rates[0])} per GPU, all GPUs joined"
    return "NVLink between the pairs marked in the matrix" if linked(box) else ""


def card(index: int, gpu: Gpu, *, named: bool) -> GpuBox:
    """One GPU; its name only where they differ."""
    title = (short_title(gpu.title) or gpu.name) if named else ""
    slot = f"PCIe {gpu.pcie.generation} ×{gpu.pcie.width}" if gpu.pcie else ""
    warn = f"runs at ×{gpu.degraded_slot.width}, could be ×{gpu.degraded_slot.max_width}" if gpu.degraded_slot else ""
    return GpuBox(index=index, title=title, memory=format_gib(gpu.memory), slot=slot, warn=warn)


def switches(box: Box, members: list[int]) -> list[tuple[str, list[int]]]:
    """GPUs of one node grouped by the PCIe switch they share."""
    groups = connected_groups(members, [(link.a, link.b) for link in near(box) if {link.a, link.b} <= set(members)])
    if len(groups) == len(members):
        return [("", members)]
    return [("PCIe switch" if len(group) > 1 else "", group) for group in groups]


def near(box: Box) -> list[Link]:
    """The links that cross no more than PCIe switches."""
    return [link for link in box.links if link.kind in NEAR]


def connected_groups(members: list[int], pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Members in groups: two that are a pair are in one, and so is whatever hangs on either."""
    group = {index: {index} for index in members}
    for a, b in pairs:
        both = group[a] | group[b]
        group |= dict.fromkeys(both, both)
    return [sorted(found) for found in dict.fromkeys(map(frozenset, group.values()))]


def host(box: Box) -> str:
    """CPU and RAM in one line."""
    parts = [
        processors(box),
        f"{box.cpu.cores} cores" if box.cpu.cores else "",
        f"{format_gib(box.ram, 0)} RAM" if box.ram else "",
        units.format_rate(box.ram_rate) if box.ram_rate else "",
    ]
    return ", ".join(filter(None, parts))


def processors(box: Box) -> str:
    """The processor's name, or how many there are where it is unknown."""
    model, sockets = cpu_title(box.cpu.model), box.cpu.sockets
    if sockets <= 1:
        return model
    return f"{sockets}× {model}" if model else f"{sockets} sockets"


def facts(box: Box) -> tuple[tuple[str, str], ...]:
    """The figures beside the drawing."""
    rows = [*gpu_facts(box), *machine_facts(box)]
    rows.append(("Source", "detected on the machine" if box.source == "detected" else "declared"))
    return tuple((name, value) for name, value in rows if value)


def machine_facts(box: Box) -> Iterator[tuple[str, str]]:
    """What of the machines around the GPUs decides."""
    if box.nodes > 1:
        yield "Machines", f"{box.nodes}, {units.format_rate(box.network)} between them"
    if box.host:
        yield "Driver", box.host.driver
        yield "CUDA", box.host.cuda
        yield "IOMMU", box.host.iommu
        yield "ACS", box.host.acs


def gpu_facts(box: Box) -> Iterator[tuple[str, str]]:
    """What one GPU is, and how they are joined."""
    gpu = box.smallest_gpu
    if gpu is None:
        return
    yield "GPUs", "mixed" if box.is_mixed else f"{len(box.gpus)} × {gpu.title.removeprefix('NVIDIA ')}"
    yield "Compute capability" if gpu.sm[:1].isdigit() else "Architecture", gpu.sm
    yield "Memory per GPU", format_gib(gpu.memory)
    yield "Memory in all", format_gib(box.gpu_memory)
    yield "Memory bandwidth", f"{units.format_rate(gpu.bandwidth)} per GPU"
    yield "Shared memory per block", f"{gpu.smem:,} B" if gpu.smem else ""
    yield "Between GPUs", between(box) if len(box.gpus) > 1 else ""


def between(box: Box) -> str:
    """The links in words."""
    if any(gpu.nvlink for gpu in box.gpus):
        return "NVLink"
    if not box.links:
        return "PCIe (links not recorded)"
    return ("NVLink" if linked(box) else "PCIe only, no NVLink") + behind_switches(box)


def behind_switches(box: Box) -> str:
    """The pairs that share a PCIe switch; "" where none do."""
    pairs = [f"{link.a}↔{link.b}" for link in near(box)]
    return f", one switch: {join_names(pairs[:8])}" if pairs else ""


def link_matrix(box: Box) -> ReportTable:
    """The link between every two GPUs, as nvidia-smi topo draws it."""
    links = box.links_by_pair
    places = range(len(box.gpus))
    heads = ("From", *(f"GPU{index}" for index in places))
    rows = [(text_cell(f"GPU{a}"), *(joint(a, b, links.get((a, b))) for b in places)) for a in places]
    return ReportTable(
        caption="Link matrix",
        columns=tuple(TableColumn(title=title, numeric=False) for title in heads),
        rows=tuple(rows),
        note="PIX: one PCIe switch; NODE: across switches of one NUMA node; SYS: across sockets.",
        sortable=False,
        folded=True,
    )


def joint(a: int, b: int, link: Link | None) -> TableCell:
    """How two GPUs are joined."""
    if link is None:
        return text_cell("·" if a == b else "", tone="quiet")
    lanes = f" ×{link.lanes}" if link.lanes else ""
    peer = " no P2P" if link.p2p is False else ""
    near = link.kind in (*NEAR, "nvlink")
    return text_cell(f"{WORDS.get(link.kind, link.kind)}{lanes}{peer}", tone="good" if near else "quiet")
