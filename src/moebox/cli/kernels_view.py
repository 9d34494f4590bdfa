"""A kernel scan for the terminal: one row for each kernel and set of blocks."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moebox.core.kernel import KernelLaunch, KernelScan

_STYLE = {"launches": "", "spills": "", "does not fit": "bold red", "does not compile": "bold red"}
_ORDER = {"does not fit": 0, "does not compile": 1, "spills": 2, "launches": 3}


def report(scan: KernelScan, width: int = 120) -> RenderableType:
    """The scan, the worst first."""
    whose = f"{scan.engine} {scan.version or '(version unknown)'} · {scan.model} TP{scan.tp}, {scan.kv} cache"
    head = f"{whose} · {scan.arch} · Triton {scan.triton}"
    parts: list[RenderableType] = [Text(head, style="bold"), Text(), rows(scan.launches, width), Text()]
    for kernel in dict.fromkeys(one.kernel for one in scan.bad):
        bad = [one for one in scan.bad if one.kernel == kernel]
        fault = f"{fault_of(bad[0], scan.arch)}. It is launched at {bad[0].launched_from}."
        parts.append(Text(fault, style="bold red"))
        parts.append(Text(f"It fails in: {'; '.join(dict.fromkeys(one.case for one in bad))}"))
    if any(one.verdict == "does not fit" for one in scan.bad):
        parts.append(Text("`--fix` searches block sizes that fit and writes the patch."))
    if not scan.bad:
        parts.append(Text(f"every one of {len(scan.launches)} launches fits {scan.arch}"))
    if scan.not_covered:
        parts += [Text(), Text("not covered", style="bold")]
        reasons: dict[str, list[str]] = {}
        for missed in scan.not_covered:
            reasons.setdefault(missed.why, []).append(missed.what)
        parts += [Text(f"- {', '.join(what)}: {why}") for why, what in reasons.items()]
    if scan.judged:
        parts += [Text(), Text("not Triton's: known by version, not compiled here", style="bold")]
        parts += [Text(f"- {one.what} → {one.why}") for one in scan.judged]
    return Group(*parts)


def fault_of(launch: KernelLaunch, arch: str) -> str:
    """Why a launch fails."""
    if launch.verdict == "does not compile":
        return f"{launch.kernel} does not compile: {launch.error}"
    return f"{launch.kernel} asks {launch.shared_bytes:,} bytes of shared memory; {arch} gives {launch.limit_bytes:,}"


def rows(launches: tuple[KernelLaunch, ...], width: int) -> Table:
    """Launches that are alike share a row."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=max(12, width - 64))
    table.add_column("tile", no_wrap=True, min_width=10)
    for name, width in (("warps", 5), ("stages", 6), ("shared", 7), ("regs", 4), ("spill", 5), ("per SM", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("verdict", no_wrap=True, min_width=12)
    groups: dict[tuple[object, ...], KernelLaunch] = {}
    for one in launches:
        key = (one.kernel, tile(one), one.num_warps, one.num_stages, one.shared_bytes, one.verdict)
        groups.setdefault(key, one)
    for one in sorted(groups.values(), key=lambda one: (_ORDER[one.verdict], -one.shared_bytes)):
        table.add_row(
            one.kernel,
            tile(one),
            str(one.num_warps),
            str(one.num_stages),
            f"{one.shared_bytes:,}",
            str(one.registers or "-"),
            str(one.spill_bytes),
            str(one.blocks_per_sm),
            Text(one.verdict, style=_STYLE[one.verdict]),
        )
    return table


def tile(launch: KernelLaunch) -> str:
    """The block sizes that matter: M×N×K for matrix products, M×N or N×H for attention."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), ("BLOCK_M", "BLOCK_N", "BLOCK_H", "BLOCK")):
        sides = [str(launch.blocks[name]) for name in names if name in launch.blocks]
        if sides:
            return "×".join(sides)
    return "-"
