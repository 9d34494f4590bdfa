"""kernels.json to what was found out about an engine's kernels."""

from typing import Any

from moebox.loose import Json, get_number, get_object, get_objects, get_text
from moebox.report.kernels import FailingKernel, KernelScanRow


def kernels_of(document: Any) -> list[KernelScanRow]:
    """Every look at an engine's kernels, in the order they were taken."""
    return [seen_of(row) for row in get_objects(document, "scans")]


def seen_of(row: Json) -> KernelScanRow:
    """One look."""
    return KernelScanRow(
        engine=get_text(row, "engine"),
        version=get_text(row, "version"),
        arch=get_text(row, "arch"),
        model=get_text(row, "model"),
        tp=get_text(row, "tp"),
        kv=get_text(row, "kv"),
        compiled=get_text(row, "by") == "compiling",
        triton=get_text(row, "triton"),
        launches=int(get_number(row, "launches") or 0),
        spills=int(get_number(row, "spills") or 0),
        bad=tuple(map(failing, get_objects(row, "bad"))),
        not_covered=whats(get_objects(row, "not_covered")),
        known_by_version=whats(get_objects(row, "judged")),
    )


def whats(found: list[Json]) -> tuple[tuple[str, str], ...]:
    """Pairs of what, and why."""
    return tuple((get_text(row, "what"), get_text(row, "why")) for row in found)


def failing(row: Json) -> FailingKernel:
    """A launch that fails."""
    return FailingKernel(
        name=get_text(row, "kernel"),
        case=get_text(row, "error", "case"),
        needed_bytes=get_number(row, "shared_bytes"),
        limit_bytes=get_number(row, "limit_bytes"),
        blocks=", ".join([*sides(get_object(row, "blocks")), *depths(row)]),
        launched_from=get_text(row, "launched_from", "file"),
    )


def sides(blocks: Json) -> list[str]:
    """The lengths of its blocks: "M=64"."""
    named = [(name.removeprefix("BLOCK_").removeprefix("SIZE_"), get_text(blocks, name)) for name in blocks]
    return [f"{name}={value}" for name, value in named if value and len(name) <= 2]


def depths(row: Json) -> list[str]:
    """Warps and stages: "8 warps"."""
    return [f"{get_text(row, name)} {name[4:]}" for name in ("num_warps", "num_stages") if get_text(row, name)]
