"""The box: its parts, and how its GPUs are connected."""

from collections.abc import Sequence

from moebox import units
from moebox.assess.assessment import Tone
from moebox.assess.format import format_gib, group_by, join_names
from moebox.assess.naming import box_title, cpu_title
from moebox.core.box import Box
from moebox.loose import Document
from moebox.report.block import Block, CustomBlock, Section
from moebox.report.svg import run_colour
from moebox.report.table import CellValue, ReportTable, table_blocks, text_cell
from moebox.runs.record import RunRecord

NEAR = ("pix", "pxb")  # links behind one PCIe switch, by nvidia-smi topo's names
LINK_NAMES = {"nvlink": "NVLink", "pix": "PIX", "pxb": "PXB", "phb": "PHB", "node": "NODE", "sys": "SYS"}
MAX_MATRIX_GPUS = 16


def hardware_section(records: Sequence[RunRecord]) -> Section:
    """Each different box once, with its runs if there are several boxes."""
    known = [record.box for record in records if record.box is not None]
    boxes = [box for place, box in enumerate(known) if box not in known[:place]]
    blocks: list[Block] = []
    for box in boxes:
        runs = [index for index, record in enumerate(records) if record.box == box]
        labels = [(records[index].label, run_colour(index)) for index in runs] if len(boxes) > 1 else []
        blocks.append(CustomBlock("topology", topology_drawing(box, records[runs[0]]) | {"runs": labels}))
        if box.links and len(box.gpus) <= MAX_MATRIX_GPUS:
            blocks += link_matrix(box)
    lead = hardware_lead(boxes[0]) if len(boxes) == 1 else ""
    return Section(id="hardware", title="Hardware and topology", lead=lead, blocks=blocks)


def hardware_lead(box: Box) -> str:
    """Memory in all, and what the GPUs communicate over."""
    if not box.gpus:
        return f"No GPU: everything runs on the CPU with {format_gib(box.ram, 0)} of RAM." if box.ram else "No GPU."
    total = f"{format_gib(box.gpu_memory)} of device memory in all"
    if has_nvlink(box):
        return f"{total}; the GPUs are joined by NVLink."
    if len(box.gpus) == 1:
        return f"{total}."
    nodes = {gpu.numa for gpu in box.gpus if gpu.numa is not None}
    between = f" and between {len(nodes)} NUMA nodes" if len(nodes) > 1 else ""
    return f"{total}; without NVLink, every all-reduce crosses PCIe{between}."


def has_nvlink(box: Box) -> bool:
    """True if any of its GPUs have NVLink."""
    return any(gpu.nvlink for gpu in box.gpus) or any(link.kind == "nvlink" for link in box.links)


def topology_drawing(box: Box, record: RunRecord) -> Document:
    """The box as host, NUMA nodes, PCIe switches and GPUs, for the template."""
    homes = group_by(range(len(box.gpus)), lambda index: box.gpus[index].numa or 0)
    nodes = []
    for home, members in sorted(homes.items()):
        groups = [(name, [gpu_facts(box, index) for index in group]) for name, group in switch_groups(box, members)]
        nodes.append({"title": f"NUMA node {home}" if len(homes) > 1 else "", "groups": groups})
    rates = [gpu.nvlink for gpu in box.gpus if gpu.nvlink]
    fabric = "NVLink between the pairs marked in the matrix" if has_nvlink(box) else ""
    if rates:
        fabric = f"NVLink, {units.format_rate(rates[0])} per GPU, all GPUs joined"
    model, sockets = cpu_title(box.cpu.model), box.cpu.sockets
    host = (
        model if sockets <= 1 else f"{sockets}× {model}" if model else f"{sockets} sockets",
        f"{box.cpu.cores} cores" if box.cpu.cores else "",
        f"{format_gib(box.ram, 0)} RAM" if box.ram else "",
        units.format_rate(box.ram_rate) if box.ram_rate else "",
    )
    return {
        "title": box_title(record),
        "host": ", ".join(filter(None, host)),
        "nodes": nodes,
        "fabric": fabric,
        "facts": [(name, value) for name, value in box_facts(box).items() if value],
        "notes": record.info.box_notes,
    }


def gpu_facts(box: Box, index: int) -> Document:
    """One GPU; its name only if the box has several kinds."""
    gpu = box.gpus[index]
    slot = f"PCIe {gpu.pcie.generation} ×{gpu.pcie.width}" if gpu.pcie else ""
    warn = f"runs at ×{gpu.degraded_slot.width}, could be ×{gpu.degraded_slot.max_width}" if gpu.degraded_slot else ""
    title = (gpu.short_title or gpu.name) if box.is_mixed else ""
    return {"index": index, "title": title, "memory": format_gib(gpu.memory), "slot": slot, "warn": warn}


def switch_groups(box: Box, members: list[int]) -> list[tuple[str, list[int]]]:
    """GPUs of one node in groups that share a PCIe switch; one group without a name if none do."""
    group = {index: {index} for index in members}
    for link in box.links:
        if link.kind in NEAR and {link.a, link.b} <= set(members):
            both = group[link.a] | group[link.b]
            group |= dict.fromkeys(both, both)
    groups = [*map(sorted, dict.fromkeys(map(frozenset, group.values())))]
    if len(groups) == len(members):
        return [("", members)]
    return [("PCIe switch" if len(found) > 1 else "", found) for found in groups]


def box_facts(box: Box) -> dict[str, str]:
    """The figures beside the drawing; empty ones are not shown."""
    facts: dict[str, str] = {}
    gpu = box.smallest_gpu
    if gpu:
        facts = {
            "GPUs": "mixed" if box.is_mixed else f"{len(box.gpus)} × {gpu.title.removeprefix('NVIDIA ')}",
            "Compute capability" if gpu.sm[:1].isdigit() else "Architecture": gpu.sm,
            "Memory per GPU": format_gib(gpu.memory),
            "Memory in all": format_gib(box.gpu_memory),
            "Memory bandwidth": f"{units.format_rate(gpu.bandwidth)} per GPU",
            "Shared memory per block": f"{gpu.smem:,} B" if gpu.smem else "",
        }
    if len(box.gpus) > 1:
        pairs = [f"{link.a}↔{link.b}" for link in box.links if link.kind in NEAR]
        between = "NVLink" if has_nvlink(box) else "PCIe only, no NVLink"
        if any(each.nvlink for each in box.gpus):
            pairs = []
        elif not box.links:
            between = "PCIe (links not recorded)"
        facts["Between GPUs"] = between + (f", one switch: {join_names(pairs[:8])}" if pairs else "")
    if box.nodes > 1:
        facts["Machines"] = f"{box.nodes}, {units.format_rate(box.network)} between them"
    if box.host:
        facts |= {"Driver": box.host.driver, "CUDA": box.host.cuda, "IOMMU": box.host.iommu, "ACS": box.host.acs}
    facts["Source"] = "detected on the machine" if box.source == "detected" else "declared"
    return facts


def link_matrix(box: Box) -> list[ReportTable]:
    """The link between every two GPUs, as nvidia-smi topo prints it."""
    links = box.links_by_pair
    rows = []
    for a in range(len(box.gpus)):
        cells: list[CellValue] = [f"GPU{a}"]
        for b in range(len(box.gpus)):
            link = links.get((a, b))
            if link is None:
                cells.append(text_cell("·" if a == b else "", tone="quiet"))
                continue
            lanes, peer = f" ×{link.lanes}" if link.lanes else "", " no P2P" if link.p2p is False else ""
            tone: Tone = "good" if link.kind in (*NEAR, "nvlink") else "quiet"
            cells.append(text_cell(f"{LINK_NAMES.get(link.kind, link.kind)}{lanes}{peer}", tone=tone))
        rows.append(cells)
    heads = ("From", *(f"GPU{index}" for index in range(len(box.gpus))))
    note = "PIX: one PCIe switch; NODE: across switches of one NUMA node; SYS: across sockets."
    text = range(len(heads))
    return table_blocks(heads, rows, text=text, caption="Link matrix", note=note, sortable=False, folded=True)
