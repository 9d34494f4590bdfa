"""The box: what it is, and how its cards are joined."""

from collections.abc import Sequence
from dataclasses import dataclass

from moebox import units
from moebox.core.box import Box, Gpu
from moebox.report.block import Block, Cell, Column, Part, Section, Table, words
from moebox.report.naming import box_title, cpu_title
from moebox.report.story import Story
from moebox.report.words import gib, listed

NEAR = ("pix", "pxb")  # behind one PCIe switch, in nvidia-smi topo's words
WORDS = {"nvlink": "NVLink", "pix": "PIX", "pxb": "PXB", "phb": "PHB", "node": "NODE", "sys": "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU in the drawing."""

    index: int
    title: str
    memory: str
    slot: str
    warn: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One NUMA node: groups of cards, those behind a common switch together."""

    title: str
    groups: tuple[tuple[str, tuple[Card, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One box as it is drawn."""

    title: str
    host: str
    nodes: tuple[Node, ...]
    fabric: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    runs: tuple[tuple[str, int], ...]  # labels and colours of the runs on it, when there are several boxes


def section(stories: Sequence[Story]) -> Section | None:
    """Each different box once."""
    boxes: list[tuple[Box, list[int]]] = []
    for index, story in enumerate(stories):
        if story.box:
            same = next((entry for entry in boxes if entry[0] == story.box), None)
            if same:
                same[1].append(index)
            else:
                boxes.append((story.box, [index]))
    if not boxes:
        return None
    blocks: list[Block] = []
    for box, users in boxes:
        runs = tuple((stories[index].label, index % 8 + 1) for index in users) if len(boxes) > 1 else ()
        blocks.append(Part(kind="topology", data=drawing(box, stories[users[0]], runs)))
        if box.links and len(box.gpus) <= 16:
            blocks.append(matrix(box))
    first = boxes[0][0]
    return Section(
        id="hardware", title="Hardware and topology", lead=lead(first) if len(boxes) == 1 else "", blocks=tuple(blocks)
    )


def lead(box: Box) -> str:
    """What of the box decides."""
    if not box.gpus or not box.gpu:
        return f"No GPU: everything runs on the CPU with {gib(box.ram, 0)} of RAM." if box.ram else "No GPU."
    total = f"{gib(box.gpu_memory)} of device memory in all"
    if any(gpu.nvlink for gpu in box.gpus) or any(link.kind == "nvlink" for link in box.links):
        return f"{total}; the GPUs are joined by NVLink."
    across = {gpu.numa for gpu in box.gpus if gpu.numa is not None}
    far = f" and between {len(across)} NUMA nodes" if len(across) > 1 else ""
    joined = f"; without NVLink, every all-reduce crosses PCIe{far}" if len(box.gpus) > 1 else ""
    return f"{total}{joined}."


def drawing(box: Box, story: Story, runs: tuple[tuple[str, int], ...]) -> Drawing:
    """The box as nodes, groups and cards."""
    homes = sorted({gpu.numa if gpu.numa is not None else 0 for gpu in box.gpus})
    nodes = []
    for home in homes:
        members = [index for index, gpu in enumerate(box.gpus) if (gpu.numa or 0) == home]
        groups = tuple(
            (name, tuple(card(index, box.gpus[index], named=box.mixed) for index in group))
            for name, group in switches(box, members)
        )
        nodes.append(Node(title=f"NUMA node {home}" if len(homes) > 1 else "", groups=groups))
    nvlinked = [gpu for gpu in box.gpus if gpu.nvlink]
    fabric = ""
    if nvlinked:
        fabric = f"NVLink, {units.rate(nvlinked[0].nvlink)} per GPU, all GPUs joined"
    elif any(link.kind == "nvlink" for link in box.links):
        fabric = "NVLink between the pairs marked in the matrix"
    return Drawing(
        title=box_title(story),
        host=host(box),
        nodes=tuple(nodes),
        fabric=fabric,
        facts=facts(box),
        notes=story.box_notes,
        runs=runs,
    )


def card(index: int, gpu: Gpu, *, named: bool) -> Card:
    """One card; its name only where cards differ."""
    slot = f"PCIe {gpu.pcie.generation} ×{gpu.pcie.width}" if gpu.pcie else ""
    warn = f"runs at ×{gpu.pcie.width}, could be ×{gpu.pcie.max_width}" if gpu.pcie and gpu.pcie.degraded else ""
    short = gpu.title.removeprefix("NVIDIA ").replace(" Blackwell", "").replace(" Edition", "")
    return Card(index=index, title=(short or gpu.name) if named else "", memory=gib(gpu.memory), slot=slot, warn=warn)


def switches(box: Box, members: list[int]) -> list[tuple[str, list[int]]]:
    """Cards of one node grouped by the PCIe switch they share."""
    group = {index: index for index in members}
    for link in box.links:
        if link.kind in NEAR and link.a in group and link.b in group:
            old, new = group[link.b], group[link.a]
            group = {index: new if home == old else home for index, home in group.items()}
    sets = [[index for index in members if group[index] == root] for root in dict.fromkeys(group.values())]
    if all(len(one) == 1 for one in sets):
        return [("", members)]
    return [("PCIe switch" if len(one) > 1 else "", one) for one in sets]


def host(box: Box) -> str:
    """CPU and RAM in one line."""
    cpu = box.cpu
    model = cpu_title(cpu.model)
    words_ = [f"{cpu.sockets}× {model}" if cpu.sockets > 1 and model else model]
    words_ += [f"{cpu.sockets} sockets"] if cpu.sockets > 1 and not cpu.model else []
    words_ += [f"{cpu.cores} cores"] if cpu.cores else []
    words_ += [f"{gib(box.ram, 0)} RAM"] if box.ram else []
    bandwidth = box.ram_bandwidth_measured or box.ram_bandwidth
    words_ += [units.rate(bandwidth)] if bandwidth else []
    return ", ".join(word for word in words_ if word)


def facts(box: Box) -> tuple[tuple[str, str], ...]:
    """The figures beside the drawing."""
    rows: list[tuple[str, str]] = []
    gpu = box.gpu
    if gpu:
        kind = "compute capability" if gpu.sm[:1].isdigit() else "architecture"
        rows += [("GPUs", f"{len(box.gpus)} × {gpu.title.removeprefix('NVIDIA ')}" if not box.mixed else "mixed")]
        rows += [
            (kind.capitalize(), gpu.sm),
            ("Memory per GPU", gib(gpu.memory)),
            ("Memory in all", gib(box.gpu_memory)),
        ]
        rows += [("Memory bandwidth", f"{units.rate(gpu.bandwidth)} per GPU")]
        rows += [("Shared memory per block", f"{gpu.smem:,} B")] if gpu.smem else []
        rows += [("Between GPUs", between(box))] if len(box.gpus) > 1 else []
    rows += [("Machines", f"{box.nodes}, {units.rate(box.network)} between them")] if box.nodes > 1 else []
    if box.host:
        rows += [("Driver", box.host.driver), ("CUDA", box.host.cuda), ("IOMMU", box.host.iommu), ("ACS", box.host.acs)]
    rows += [("Source", "detected on the machine" if box.source == "detected" else "declared")]
    return tuple((name, value) for name, value in rows if value)


def between(box: Box) -> str:
    """The links in words."""
    if any(gpu.nvlink for gpu in box.gpus):
        return "NVLink"
    kinds = {link.kind for link in box.links}
    near = [f"{link.a}↔{link.b}" for link in box.links if link.kind in NEAR]
    if not kinds:
        return "PCIe (links not recorded)"
    pairs = f", one switch: {listed(near[:8])}" if near else ""
    return ("NVLink" if "nvlink" in kinds else "PCIe only, no NVLink") + pairs


def matrix(box: Box) -> Table:
    """The link between every two cards, as nvidia-smi topo draws it."""
    kinds = {(link.a, link.b): link for link in box.links} | {(link.b, link.a): link for link in box.links}
    head = (
        Column(title="", numeric=False),
        *(Column(title=f"GPU{index}", numeric=False) for index in range(len(box.gpus))),
    )
    rows = []
    for a in range(len(box.gpus)):
        row: list[Cell] = [words(f"GPU{a}")]
        for b in range(len(box.gpus)):
            link = kinds.get((a, b))
            name = WORDS.get(link.kind, link.kind) if link else ""
            name += f" ×{link.lanes}" if link and link.lanes else ""
            name += " no P2P" if link and link.p2p is False else ""
            row.append(
                words("·" if a == b else name, tone="good" if link and link.kind in (*NEAR, "nvlink") else "quiet")
            )
        rows.append(tuple(row))
    note = "PIX: one PCIe switch; NODE: across switches of one NUMA node; SYS: across sockets."
    return Table(caption="Link matrix", columns=head, rows=tuple(rows), note=note, sortable=False, folded=True)
