"""kernels.json to what was found out about an engine's kernels."""

from typing import Any

from moebox.loose import Json, figure, inner, rows, words
from moebox.report.kernels import FailingKernel, KernelsJudged


def kernels_of(document: Any) -> list[KernelsJudged]:
    """Every look at an engine's kernels, in the order they were taken."""
    return [seen_of(row) for row in rows(document, "scans")]


def seen_of(row: Json) -> KernelsJudged:
    """One look."""
    return KernelsJudged(
        engine=words(row, "engine"),
        version=words(row, "version"),
        arch=words(row, "arch"),
        model=words(row, "model"),
        tp=words(row, "tp"),
        kv=words(row, "kv"),
        compiled=words(row, "by") == "compiling",
        triton=words(row, "triton"),
        launches=int(figure(row, "launches") or 0),
        spills=int(figure(row, "spills") or 0),
        bad=tuple(map(failing, rows(row, "bad"))),
        not_covered=whats(rows(row, "not_covered")),
        judged=whats(rows(row, "judged")),
    )


def whats(found: list[Json]) -> tuple[tuple[str, str], ...]:
    """Pairs of what, and why."""
    return tuple((words(row, "what"), words(row, "why")) for row in found)


def failing(row: Json) -> FailingKernel:
    """A launch that fails."""
    return FailingKernel(
        name=words(row, "kernel"),
        case=words(row, "error", "case"),
        asked=figure(row, "shared_bytes"),
        limit=figure(row, "limit_bytes"),
        blocks=", ".join([*sides(inner(row, "blocks")), *depths(row)]),
        place=words(row, "launched_from", "file"),
    )


def sides(blocks: Json) -> list[str]:
    """The lengths of its blocks: "M=64"."""
    named = [(name.removeprefix("BLOCK_").removeprefix("SIZE_"), words(blocks, name)) for name in blocks]
    return [f"{name}={value}" for name, value in named if value and len(name) <= 2]


def depths(row: Json) -> list[str]:
    """Warps and stages: "8 warps"."""
    return [f"{words(row, name)} {name[4:]}" for name in ("num_warps", "num_stages") if words(row, name)]
