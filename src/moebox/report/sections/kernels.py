"""An engine's kernels before a GPU runs them: which will not launch, and which were not covered."""

from collections.abc import Sequence

from moebox.assess.format import group_by, unique_names
from moebox.core.kernel import KernelFindings, KernelLaunch, NotCovered
from moebox.core.symptom import KnownFailure
from moebox.report.block import Block, Bullets, Section, bullet_list
from moebox.report.table import ReportTable, figure_cell, table_blocks, text_cell
from moebox.runs.record import RunRecord

MAX_REASONS = 12  # lines of one list


def kernels_section(records: Sequence[RunRecord]) -> Section | None:
    """A table of what was judged, one of what fails, and lists of what was left out."""
    scans = [scan for record in records for scan in record.kernels]
    if not scans:
        return None
    rows = []
    for record in records:
        for scan in record.kernels:
            compiled = scan.by == "compiling"
            without = "by table" if scan.launches else "not judged"
            run = f" ({record.page_label})" if record.page_label else ""
            row = (
                f"{scan.engine} {scan.version}".strip() + run,
                f"{scan.model} TP{scan.tp}, {scan.kv} cache, {scan.arch}" if scan.model else scan.arch,
                f"by compiling (Triton {scan.triton})" if compiled else without,
                scan.launches,
                scan.spills if compiled else "",
                figure_cell(float(len(scan.bad)), digits=0, tone="bad" if scan.bad else ""),
                len(scan.not_covered),
            )
            rows.append(row)
    heads = ("Kernels of", "For", "Judged", "Launches", "Spill", "Will not launch", "Not covered")
    others = [row for scan in scans for row in scan.judged]
    blocks: tuple[Block, ...] = (
        *table_blocks(heads, rows, text=(0, 1, 2), sortable=False),
        *failure_tables([kernel for scan in scans for kernel in scan.bad]),
        *reason_list("Not covered", [row for scan in scans for row in scan.not_covered], ": "),
        *reason_list("Not Triton's: known by version, not compiled", others, " → "),
    )
    return Section(id="kernels", title="Kernels", lead=kernels_lead(scans), blocks=blocks)


def kernels_lead(scans: Sequence[KernelFindings]) -> str:
    """How many launches were judged, and how many fail."""
    launches, bad = sum(scan.launches for scan in scans), sum(len(scan.bad) for scan in scans)
    if not launches:
        return "No kernel was judged: see what was not covered."
    method = " or ".join(unique_names("compiled" if scan.by == "compiling" else "looked up" for scan in scans))
    result = f"{bad} will not launch" if bad else "all of them fit the GPU's shared memory"
    return f"{launches} launches {method}; {result}."


def failure_tables(bad: Sequence[KernelLaunch | KnownFailure]) -> list[ReportTable]:
    """Launches that fail; those of one kernel with the same blocks in one row, with up to three cases."""
    described = []
    for kernel in bad:
        blocks, place, error = "", "", ""
        if isinstance(kernel, KernelLaunch):
            sides = [
                f"{name}={value}"
                for key, value in kernel.blocks.items()
                if value and len(name := key.removeprefix("BLOCK_").removeprefix("SIZE_")) <= 2
            ]
            blocks = ", ".join([*sides, f"{kernel.num_warps} warps", f"{kernel.num_stages} stages"])
            place, error = kernel.launched_from or kernel.file, kernel.error
        key = (kernel.kernel, kernel.shared_bytes, kernel.limit_bytes, blocks, place)
        described.append((key, error or kernel.case))
    rows = []
    for (name, needed, limit, blocks, place), group in group_by(described, lambda pair: pair[0]).items():
        cases = unique_names(case for _, case in group)
        text = "; ".join(cases) if len(cases) <= 3 else f"{'; '.join(cases[:2])} and {len(cases) - 2} more"
        rows.append((text_cell(name, tone="bad"), needed or None, limit or None, blocks, text, place))
    heads = ("Kernel", "Asks bytes", "There are", "Blocks", "When", "Launched at")
    return table_blocks(heads, rows, text=(0, 3, 4, 5), caption="Will not launch")


def reason_list(title: str, found: Sequence[NotCovered], joint: str) -> list[Bullets]:
    """What shares a reason on one line."""
    items = []
    for reason, group in group_by(dict.fromkeys(found), lambda row: row.why).items():
        items.append(", ".join(row.what.rstrip(".") for row in group) + (joint + reason if reason else ""))
    if len(items) > MAX_REASONS:
        items = [*items[:MAX_REASONS], f"and {len(items) - MAX_REASONS} more in kernels.json"]
    return bullet_list(title, items)
