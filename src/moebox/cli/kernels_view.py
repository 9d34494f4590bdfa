"""A kernel scan for the terminal: one row for each kernel and set of blocks."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from moebox.core.kernel import KernelLaunch, KernelScan

_STYLE = {"launches": "", "spills": "", "does not fit": "bold red", "does not compile": "bold red"}
_ORDER = {"does not fit": 0, "does not compile": 1, "spills": 2, "launches": 3}


def scan_report(scan: KernelScan, width: int = 120) -> RenderableType:
    """The scan, the worst first."""
    whose = f"{scan.engine} {scan.version or '(version unknown)'} · {scan.model} TP{scan.tp}, {scan.kv} cache"
    head = f"{whose} · {scan.arch} · Triton {scan.triton}"
    parts: list[RenderableType] = [Text(head, style="bold"), Text(), launch_table(scan.launches, width), Text()]
    return Group(*parts, *failure_lines(scan), *uncovered_lines(scan), *version_lines(scan))


def failure_lines(scan: KernelScan) -> Iterator[Text]:
    """Each kernel that fails, where it is launched and in which cases; or that none does."""
    if not scan.failing_launches:
        yield Text(f"every one of {len(scan.launches)} launches fits {scan.arch}")
    failing: dict[str, list[KernelLaunch]] = {}
    for launch in scan.failing_launches:
        failing.setdefault(launch.kernel, []).append(launch)
    for launches in failing.values():
        first = launches[0]
        yield Text(f"{failure_text(first, scan.arch)}. It is launched at {first.launched_from}.", style="bold red")
        yield Text(f"It fails in: {'; '.join(dict.fromkeys(launch.case for launch in launches))}")
    if any(launch.verdict == "does not fit" for launch in scan.failing_launches):
        yield Text("`--fix` searches block sizes that fit and writes the patch.")


def uncovered_lines(scan: KernelScan) -> Iterator[Text]:
    """What was not covered, by reason."""
    reasons: dict[str, list[str]] = {}
    for missed in scan.not_covered:
        reasons.setdefault(missed.why, []).append(missed.what)
    if reasons:
        yield Text("\nnot covered", style="bold")
    yield from (Text(f"- {', '.join(what)}: {why}") for why, what in reasons.items())


def version_lines(scan: KernelScan) -> Iterator[Text]:
    """What is known of an engine's release without compiling."""
    if scan.judged:
        yield Text("\nnot Triton's: known by version, not compiled here", style="bold")
    yield from (Text(f"- {known.what} → {known.why}") for known in scan.judged)


def failure_text(launch: KernelLaunch, arch: str) -> str:
    """Why a launch fails."""
    if launch.verdict == "does not compile":
        return f"{launch.kernel} does not compile: {launch.error}"
    return f"{launch.kernel} asks {launch.shared_bytes:,} bytes of shared memory; {arch} gives {launch.limit_bytes:,}"


def launch_table(launches: tuple[KernelLaunch, ...], width: int) -> Table:
    """Launches that are alike share a row."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=max(12, width - 64))
    table.add_column("tile", no_wrap=True, min_width=10)
    for name, width in (("warps", 5), ("stages", 6), ("shared", 7), ("regs", 4), ("spill", 5), ("per SM", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("verdict", no_wrap=True, min_width=12)
    groups: dict[tuple[object, ...], KernelLaunch] = {}
    for launch in launches:
        key = (
            launch.kernel,
            tile_size(launch),
            launch.num_warps,
            launch.num_stages,
            launch.shared_bytes,
            launch.verdict,
        )
        groups.setdefault(key, launch)
    for launch in sorted(groups.values(), key=lambda launch: (_ORDER[launch.verdict], -launch.shared_bytes)):
        table.add_row(*_row(launch))
    return table


def _row(launch: KernelLaunch) -> tuple[str | Text, ...]:
    return (
        launch.kernel,
        tile_size(launch),
        str(launch.num_warps),
        str(launch.num_stages),
        f"{launch.shared_bytes:,}",
        str(launch.registers or "-"),
        str(launch.spill_bytes),
        str(launch.blocks_per_sm),
        Text(launch.verdict, style=_STYLE[launch.verdict]),
    )


def tile_size(launch: KernelLaunch) -> str:
    """The block sizes that matter: M×N×K for matrix products, M×N or N×H for attention."""
    for names in (("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), ("BLOCK_M", "BLOCK_N", "BLOCK_H", "BLOCK")):
        sides = [str(launch.blocks[name]) for name in names if name in launch.blocks]
        if sides:
            return "×".join(sides)
    return "-"
