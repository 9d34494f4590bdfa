"""kernels.json to what was found out about an engine's kernels."""

from typing import Any

from moebox.loose import Json, figure, inner, rows, words
from moebox.report.record import FailingKernel, KernelsJudged


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
    blocks = inner(row, "blocks")
    sides = [(name.removeprefix("BLOCK_").removeprefix("SIZE_"), words(blocks, name)) for name in blocks]
    settings = [f"{name}={value}" for name, value in sides if value and len(name) <= 2]
    settings += [f"{words(row, name)} {name[4:]}" for name in ("num_warps", "num_stages") if words(row, name)]
    return FailingKernel(
        name=words(row, "kernel"),
        case=words(row, "error") or words(row, "case"),
        asked=figure(row, "shared_bytes"),
        limit=figure(row, "limit_bytes"),
        blocks=", ".join(settings),
        place=words(row, "launched_from", "file"),
    )
