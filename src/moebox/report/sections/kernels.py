"""What is known of the engine's kernels before a GPU has to find out: which will not launch, what was not covered."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from moebox.report.block import (
    Block,
    Bullets,
    ReportTable,
    Section,
    TableCell,
    bullet_list,
    figure_cell,
    table_columns,
    text_cell,
)
from moebox.report.format import group_by, unique_names
from moebox.report.kernels import FailingKernel, KernelScanRow
from moebox.report.record import RunRecord

SHOWN = 12  # reasons a list shows at the most


def section(records: Sequence[RunRecord]) -> Section | None:
    """One table of what was judged, one of what fails, and lists of what was left out."""
    scans = [look for record in records for look in record.kernels]
    if not scans:
        return None
    not_covered = chain.from_iterable(look.not_covered for look in scans)
    known = chain.from_iterable(look.known_by_version for look in scans)
    blocks: tuple[Block, ...] = (
        summary(records),
        *failures(scans),
        *lists("Not covered", not_covered, ": "),
        *lists("Not Triton's: known by version, not compiled", known, " → "),
    )
    return Section(id="kernels", title="Kernels", lead=lead(scans), blocks=blocks)


def summary(records: Sequence[RunRecord]) -> ReportTable:
    """One row for each look at an engine."""
    heads = ("Kernels of", "For", "Judged", "Launches", "Spill", "Will not launch", "Not covered")
    rows = tuple(judged(look, record.page_label) for record in records for look in record.kernels)
    return ReportTable(columns=table_columns(*heads, text=(0, 1, 2)), rows=rows, sortable=False)


def failures(scans: Sequence[KernelScanRow]) -> list[ReportTable]:
    """The launches that fail, those that are alike in one row; none where all fit."""
    groups = alike([kernel for look in scans for kernel in look.bad])
    heads = table_columns("Kernel", "Asks bytes", "There are", "Blocks", "When", "Launched at", text=(0, 3, 4, 5))
    rows = tuple(map(failure, groups))
    return [ReportTable(caption="Will not launch", columns=heads, rows=rows)] if rows else []


def lead(looks: Sequence[KernelScanRow]) -> str:
    """The finding in a sentence."""
    launches, bad = sum(look.launches for look in looks), sum(len(look.bad) for look in looks)
    if not launches:
        return "No kernel was judged: see what was not covered."
    how = " or ".join(unique_names(look.method_text for look in looks))
    fate = f"{bad} will not launch" if bad else "all of them fit the GPU's shared memory"
    return f"{launches} launches {how}; {fate}."


def judged(look: KernelScanRow, run: str) -> tuple[TableCell, ...]:
    """One look at an engine."""
    whose = f"{look.model} TP{look.tp}, {look.kv} cache, {look.arch}" if look.model else look.arch
    return (
        text_cell(f"{look.engine} {look.version}".strip() + (f" ({run})" if run else "")),
        text_cell(whose),
        text_cell(method(look)),
        figure_cell(float(look.launches), digits=0),
        figure_cell(float(look.spills), digits=0) if look.compiled else text_cell(""),
        figure_cell(float(len(look.bad)), digits=0, tone="bad" if look.bad else ""),
        figure_cell(float(len(look.not_covered)), digits=0),
    )


def method(look: KernelScanRow) -> str:
    """How it was judged."""
    if look.compiled:
        return f"by compiling (Triton {look.triton})"
    return "by table" if look.launches else "not judged"


def alike(bad: Sequence[FailingKernel]) -> list[list[FailingKernel]]:
    """Launches of one kernel with the same blocks, which fail together."""
    return list(group_by(dict.fromkeys(bad), lambda kernel: replace(kernel, case="")).values())


def failure(group: Sequence[FailingKernel]) -> tuple[TableCell, ...]:
    """A launch that fails, and when."""
    kernel = group[0]
    return (
        text_cell(kernel.name, tone="bad"),
        figure_cell(kernel.needed_bytes, digits=0),
        figure_cell(kernel.limit_bytes, digits=0),
        text_cell(kernel.blocks),
        text_cell(cases_of(group)),
        text_cell(kernel.launched_from),
    )


def cases_of(group: Sequence[FailingKernel]) -> str:
    """Up to three cases by name; of more, two and how many others."""
    cases = unique_names(kernel.case for kernel in group)
    if len(cases) <= 3:
        return "; ".join(cases)
    return f"{'; '.join(cases[:2])} and {len(cases) - 2} more"


def lists(title: str, pairs: Iterable[tuple[str, str]], joint: str) -> list[Bullets]:
    """What shares a reason on one line."""
    reasons = group_by(dict.fromkeys(pairs), lambda pair: pair[1])
    items = [", ".join(what.rstrip(".") for what, _ in group) + because(joint, why) for why, group in reasons.items()]
    if len(items) > SHOWN:
        items = [*items[:SHOWN], f"and {len(items) - SHOWN} more in kernels.json"]
    return bullet_list(title, items)


def because(joint: str, why: str) -> str:
    """The reason behind what shares it; "" where none is known."""
    return joint + why if why else ""
